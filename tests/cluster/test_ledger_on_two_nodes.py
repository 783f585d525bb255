"""Sixty-four Ray tasks on two nodes race for a budget that fits twenty: twenty get it, on either store."""

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from dp_accounting import GaussianDpEvent
from postgres import postgres_server
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from sqlalchemy import make_url

from rayprivacy.accounting.calibrate import sigma_for
from rayprivacy.core.errors import BudgetRefusedError
from rayprivacy.core.units import Budget, NeighbouringRelation, PrivacyUnit
from rayprivacy.ledger.store import Ledger

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.exhaustive, pytest.mark.timeout(600)]

TASKS, FIT = 64, 20
CAP = Budget(3.0, 1e-6)
EVENT = GaussianDpEvent(sigma_for(FIT, CAP))


@pytest.fixture(scope="module")
def nodes(zygotes: None) -> Iterator[set[str]]:
    """Two nodes of four (fake) CPUs each on this host; yields their ids."""
    if ray.is_initialized():  # by an earlier test of the session, on one node
        ray.shutdown()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "include_dashboard": False})
    cluster.add_node(num_cpus=4)
    # The workers import this module by name, so they need the path that the test process has.
    ray.init(address=cluster.address, log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": ":".join(sys.path)}})
    cluster.wait_for_nodes()
    yield {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/ledger.db"
        return
    with postgres_server() as server:
        yield make_url(server).set(drivername="postgresql").render_as_string(hide_password=False)


def _pay(url: str, number: int) -> tuple[str, str]:
    ledger = Ledger.open(url)
    node = ray.get_runtime_context().get_node_id()
    try:
        charge = ledger.start(ledger.reserve("chat", f"run-{number}", "d", EVENT))
    except BudgetRefusedError:
        return node, "refused"
    ledger.commit_output(charge, str(number).encode())
    return node, "paid"


def test_tasks_on_two_nodes_cannot_overspend(url: str, nodes: set[str]) -> None:
    assert len(nodes) == 2
    ledger = Ledger.open(url)
    ledger.create_account("chat", PrivacyUnit.USER, NeighbouringRelation.ADD_OR_REMOVE, CAP)
    pay = ray.remote(_pay)
    places = [NodeAffinitySchedulingStrategy(node, soft=False) for node in nodes]
    tasks = [
        pay.options(num_cpus=0.5, max_retries=0, scheduling_strategy=places[number % 2]).remote(url, number)
        for number in range(TASKS)
    ]
    found = ray.get(tasks, timeout=400)
    assert Counter(outcome for _, outcome in found) == {"paid": FIT, "refused": TASKS - FIT}
    assert {node for node, _ in found} == nodes
    report = ledger.verify()
    assert (report.charges, report.outputs, report.entries) == (FIT, FIT, 1 + 3 * FIT)
    ledger.close()
