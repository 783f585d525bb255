"""The toy on one local Ray."""

import pytest
from toy_bench import Bench


@pytest.fixture
def bench(tmp_path, tiny_base, local_ray):
    return Bench(tmp_path, tiny_base)
