"""Two ranks, for all tests of this folder."""

import pytest
from rank_processes import Ranks


@pytest.fixture(scope="session")
def pair():
    """Two real processes in one gloo group."""
    ranks = Ranks(2)
    yield ranks
    ranks.close()
