"""Tests that need Ray are run by one process, so that no fixture of theirs is made twice."""

import pytest


def test_a_test_with_ray_is_in_its_group(request, local_ray):
    if not hasattr(request.config, "workerinput"):
        pytest.skip("one process runs all tests")
    assert request.node.nodeid.endswith("@ray"), "xdist read no group: is this a version of pytest that it knows?"
