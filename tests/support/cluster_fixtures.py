"""Nodes that tests may take away."""

import pytest
from head_node import head_node
from node_loss import Nodes


@pytest.fixture(scope="module")
def two_nodes(zygotes):
    """A head, and room for one more node at a time; drivers join it from processes of their own."""
    nodes = Nodes()
    nodes.other()
    yield nodes
    nodes.shutdown()


@pytest.fixture(scope="package")
def head(zygotes):
    """A cluster of one node, with a dashboard and a token, for all files: it takes longer to start than most jobs."""
    with head_node() as found:
        yield found
