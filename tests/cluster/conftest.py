"""Nodes that tests may take away."""

from collections.abc import Iterator

import pytest
from node_loss import Nodes


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[Nodes]:
    """A head, and room for one more node at a time; drivers join it from processes of their own."""
    nodes = Nodes()
    nodes.other()
    yield nodes
    nodes.shutdown()
