"""Tiny matrices: one thread is faster than several, above all when the cores are shared."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def own_one_thread(one_thread):
    """For every module here."""
