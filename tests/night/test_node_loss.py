"""Whole nodes, and drivers, lost in the middle of their work: the same votes, model and figures, charged once."""

import sys
import time
from collections import Counter
from contextlib import ExitStack, closing

import pytest
import ray
from dp_accounting import GaussianDpEvent
from node_loss import GENERATOR, SEQPATE, Driver, Job, Nodes
from postgres import postgres_server
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from sqlalchemy import make_url

from rayprivacy.accounting.calibrate import sigma_for
from rayprivacy.core.errors import BudgetRefusedError, LedgerError
from rayprivacy.core.units import Budget, NeighbouringRelation, PrivacyUnit
from rayprivacy.ledger.client import connect
from rayprivacy.ledger.service import Address, ensure_service
from rayprivacy.ledger.store import Ledger

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.exhaustive, pytest.mark.timeout(1800)]

ONE_CHARGE = ["create", "reserve", "start", "commit"]
THREE_CHARGES = ["create", *["reserve", "start", "commit"] * 3]  # the shares of the codes, and two chunks
CAP = Budget(3.0, 1e-6)
TEACHERS = "private/teachers/*.safetensors"
TWENTIETH = GaussianDpEvent(sigma_for(20, CAP))


def _finished(driver):
    assert driver.finish() == 0, driver.stderr.read_text()


def _undisturbed(folder, base, nodes, blocks):
    nodes.other()
    job = Job.make(folder, base, nodes.address, blocks)
    _finished(job.start("undisturbed"))
    return job


@pytest.fixture(scope="module")
def seqpate(two_nodes, tiny_base, tmp_path_factory):
    return _undisturbed(tmp_path_factory.mktemp("seqpate"), tiny_base, two_nodes, SEQPATE)


@pytest.fixture(scope="module")
def generator(two_nodes, tiny_base, tmp_path_factory):
    return _undisturbed(tmp_path_factory.mktemp("generator"), tiny_base, two_nodes, GENERATOR)


@pytest.fixture
def drivers():
    started: list[Driver] = []
    yield started
    for driver in started:
        driver.kill()


def _same_votes(job, out):
    """One charge; the keyed digest of the summed votes is in it."""
    (kinds, charges), (_, undisturbed) = job.book(out), job.book("undisturbed")
    assert kinds == ONE_CHARGE
    assert [charge.input_digest for charge in charges] == [charge.input_digest for charge in undisturbed]
    _same_files(job, out, "private/features/*/*.safetensors", TEACHERS)


def _same_model(job, out):
    """One charge for each chunk, and the model that the noise of these chunks makes; the shares have other noise."""
    assert job.book(out)[0] == THREE_CHARGES
    _same_files(job, out, "model/model.safetensors")


def _same_files(job, out, *patterns):
    for each in ("private/shards/*", *patterns):
        assert job.contents(out, each) == job.contents("undisturbed", each)
    assert job.certificate(out) == job.certificate("undisturbed")
    assert job.figures(out) == job.figures("undisturbed")


def test_seqpate_loses_a_node_in_each_stage(seqpate, two_nodes, drivers):
    first, later = two_nodes.other(), ("encoding", "training", "voting", "measuring")
    driver = seqpate.start("disturbed", orders={"sharding": first, **dict.fromkeys(later, "")})
    drivers.append(driver)
    driver.caught("sharding")
    assert driver.visits("reading", first)
    written = driver.visits("sharding")
    driver.lose("sharding", two_nodes)
    manifest = driver.out / "private" / "shards" / "manifest.json"
    driver.until(manifest.exists, "shards on the node that is left")
    assert driver.visits("sharding") > written, "what the lost node was writing was not written again"

    second = two_nodes.other()
    driver.caught("encoding", second)
    assert driver.visits("encoding", second) == 2
    before = driver.visits("encoding")
    driver.lose("encoding", two_nodes)
    third = two_nodes.other()
    driver.caught("training", third)
    assert driver.visits("encoding") > before, "what the lost node was encoding was not encoded again"
    assert driver.visits("training", third) == 2
    driver.lose("training", two_nodes)
    teachers, trained = driver.out / "private" / "teachers", seqpate.contents("undisturbed", TEACHERS).keys()
    driver.until(lambda: trained <= {path.name for path in teachers.iterdir()}, "teachers from the node that is left")

    fourth = two_nodes.other()
    driver.caught("voting", fourth)
    assert driver.visits("voting", fourth) == 2
    before = driver.visits("voting")
    driver.lose("voting", two_nodes)

    two_nodes.other()
    driver.until(lambda: driver.visits("measuring"), "figures on held-out users")
    driver.lose("measuring", two_nodes)
    _finished(driver)
    assert driver.visits("voting") > before, "the votes of the lost node were not asked again"
    _same_votes(seqpate, "disturbed")


def test_dpsgd_loses_a_node_in_the_middle_of_a_chunk(generator, two_nodes, drivers):
    doomed = two_nodes.other()
    driver = generator.start("disturbed", orders={"steps": doomed})
    drivers.append(driver)
    driver.caught("steps")
    driver.lose("steps", two_nodes)
    two_nodes.other()
    _finished(driver)
    assert driver.visits("steps", doomed)
    assert driver.visits("steps") > 3, "each of three ranks does the step anew"
    _same_model(generator, "disturbed")


@pytest.mark.parametrize(
    ("method", "point", "charged", "same"),
    [("seqpate", "voting", ONE_CHARGE[:1], _same_votes), ("generator", "steps", THREE_CHARGES[:9], _same_model)],
)
def test_a_driver_that_is_killed_is_finished_by_a_second_start(
    request,
    two_nodes,
    drivers,
    method,
    point,
    charged,
    same,
):
    job = request.getfixturevalue(method)
    killed = job.start("killed", orders={point: two_nodes.other()})
    drivers.append(killed)
    killed.caught(point)
    killed.kill()
    killed.release(point)  # what still runs of the first start may go on, until Ray ends it
    assert not (killed.out / "certificate.json").exists()
    assert job.book("killed")[0] == charged
    drivers.append(job.start("killed", "--resume"))
    _finished(drivers[-1])
    same(job, "killed")


def test_training_without_room_for_its_workers_gives_up(generator, two_nodes, drivers):
    two_nodes.lose()
    driver = generator.start("crowded", RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S="0.5")
    drivers.append(driver)
    assert driver.finish() == 1
    assert "no room for resources.workers = 3" in driver.stderr.read_text()
    assert generator.book("crowded")[0] == ONE_CHARGE  # the shares of the codes


@pytest.fixture
def joined(two_nodes):
    """The nodes, with this process as a driver; workers import this module by name."""
    if ray.is_initialized():  # by an earlier test of the session, on one node
        ray.shutdown()
    path = {"env_vars": {"PYTHONPATH": ":".join(sys.path)}}
    ray.init(address=two_nodes.address, log_to_driver=False, runtime_env=path)
    yield two_nodes
    ray.shutdown()


def _pay(url, number):
    with closing(Ledger.open(url)) as ledger:
        node = ray.get_runtime_context().get_node_id()
        try:
            charge = ledger.start(ledger.reserve("chat", f"run-{number}", "d", TWENTIETH))
        except BudgetRefusedError:
            return node, "refused"
        ledger.commit_output(charge, str(number).encode())
        return node, "paid"


@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
def test_sixty_four_tasks_on_two_nodes_cannot_overspend_what_fits_twenty(joined, tmp_path, store):
    joined.other()
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    pay = ray.remote(num_cpus=0.5, max_retries=0)(_pay)
    with ExitStack() as stack:
        server = make_url(stack.enter_context(postgres_server())) if store == "postgresql" else None
        there = server and server.set(drivername=store).render_as_string(hide_password=False)
        url = there or f"sqlite:///{tmp_path}/ledger.db"
        ledger = stack.enter_context(closing(Ledger.open(url)))
        ledger.create_account("chat", PrivacyUnit.USER, NeighbouringRelation.ADD_OR_REMOVE, CAP)
        places = [pay.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)) for node in nodes]
        found = ray.get([places[number % 2].remote(url, number) for number in range(64)], timeout=400)
        assert Counter(outcome for _, outcome in found) == {"paid": 20, "refused": 44}
        assert {node for node, _ in found} == {*nodes}
        report = ledger.verify()
        assert (report.charges, report.outputs, report.entries) == (20, 20, 1 + 3 * 20)


def test_a_ledger_file_on_a_lost_node_is_missed_in_a_sentence(joined, tmp_path):
    url = f"sqlite:///{tmp_path}/ledger.db"
    Ledger.open(url).close()
    ensure_service(Address.of(url), node=joined.other())
    client = connect(url)
    assert client.accounts() == []
    joined.lose()
    with pytest.raises(LedgerError, match="the node that keeps the ledger file has left the cluster"):
        _ask_on(client)


def _ask_on(client):
    """Ask again and again for ten seconds: the process of a killed service may answer for a moment."""
    for _ in range(100):
        client.accounts()
        time.sleep(0.1)


PARTS, WORKERS = 64, 8


@pytest.fixture
def eight_cpus(zygotes):
    nodes = Nodes(cpus=WORKERS // 2, largest_message=100_000)  # as Ray has it: an actor is restarted with what it had
    nodes.other()
    yield nodes
    nodes.shutdown()


def test_eight_workers_that_lose_a_node_in_each_stage_make_the_model_of_one(eight_cpus, tiny_base, tmp_path, drivers):
    several_blocks = {"texts": 192, "max_tokens": 6}  # so that there are two actors
    own = {"generation": several_blocks, "resources": {"workers": WORKERS, "cpus": 1, "actors": 2}}
    job, points = Job.make(tmp_path, tiny_base, eight_cpus.address, GENERATOR | own), ("sharding", "steps", "writing")
    _finished(job.start("one", "-o", "resources.workers=1", PART_FILES=str(PARTS)))
    many = job.start("many", orders=dict.fromkeys(points, ""), PART_FILES=str(PARTS))
    drivers.append(many)
    for point in points:
        many.caught(point, eight_cpus.other())
        many.lose(point, eight_cpus)
        eight_cpus.other()
    _finished(many)
    assert many.visits("sharding") > PARTS
    assert many.visits("steps") >= 2 * WORKERS, "every rank does the step anew"
    for pattern in ("private/shards/*", "model/model.safetensors"):
        assert job.contents("many", pattern) == job.contents("one", pattern)
    assert job.certificate("many") == job.certificate("one")
    assert job.book("many")[0] == job.book("one")[0] == THREE_CHARGES
