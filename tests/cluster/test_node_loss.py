"""Whole nodes, and drivers, lost in the middle of their work: the same votes, model and certificate, charged once."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from node_loss import GENERATOR, SEQPATE, Driver, Job, Nodes
from ray.exceptions import GetTimeoutError

from rayprivacy.core.errors import CorpusError, LedgerError
from rayprivacy.corpus import shards
from rayprivacy.ledger.client import connect
from rayprivacy.ledger.service import Address, ensure_service
from rayprivacy.ledger.store import Ledger, LedgerApi
from rayprivacy.methods.registry import load_recipe
from rayprivacy.work import pieces

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.exhaustive, pytest.mark.timeout(1500)]

ONE_CHARGE = ["create", "reserve", "start", "commit"]
THREE_CHARGES = ["create", *["reserve", "start", "commit"] * 3]  # the shares of the codes, and two chunks


def _finished(driver: Driver) -> None:
    assert driver.finish() == 0, driver.stderr.read_text()


def _undisturbed(folder: Path, base: Path, nodes: Nodes, blocks: dict[str, Any]) -> Job:
    """A recipe, and a run of it that nobody disturbs."""
    nodes.other()
    job = Job.make(folder, base, nodes.address, blocks)
    _finished(job.start("undisturbed"))
    return job


@pytest.fixture(scope="module")
def seqpate(two_nodes: Nodes, tiny_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Job:
    return _undisturbed(tmp_path_factory.mktemp("seqpate"), tiny_base, two_nodes, SEQPATE)


@pytest.fixture(scope="module")
def generator(two_nodes: Nodes, tiny_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Job:
    return _undisturbed(tmp_path_factory.mktemp("generator"), tiny_base, two_nodes, GENERATOR)


@pytest.fixture
def drivers() -> Iterator[list[Driver]]:
    """Drivers that do not outlive their test."""
    started: list[Driver] = []
    yield started
    for driver in started:
        driver.kill()


def _same_votes(job: Job, out: str) -> None:
    """One charge; the keyed digest of the summed votes is in it."""
    (kinds, charges), (_, undisturbed) = job.book(out), job.book("undisturbed")
    assert kinds == ONE_CHARGE
    assert [charge.input_digest for charge in charges] == [charge.input_digest for charge in undisturbed]
    _same_files(job, out, "private/teachers/*.safetensors")


def _same_files(job: Job, out: str, pattern: str) -> None:
    for each in ("private/shards/*", pattern):
        assert job.contents(out, each) == job.contents("undisturbed", each)
    assert job.certificate(out) == job.certificate("undisturbed")


def _same_model(job: Job, out: str) -> None:
    """One charge for each chunk, and the model that the noise of these chunks makes; the shares have other noise."""
    kinds, charges = job.book(out)
    assert kinds == THREE_CHARGES
    assert len(charges) == 3
    _same_files(job, out, "model/model.safetensors")


def test_seqpate_loses_a_node_while_it_shards_trains_and_votes(
    seqpate: Job, two_nodes: Nodes, drivers: list[Driver]
) -> None:
    first = two_nodes.other()
    driver = seqpate.start("disturbed", orders={"sharding": first, "training": "", "voting": ""})
    drivers.append(driver)
    driver.caught("sharding")
    assert driver.visits("reading", first)
    written = driver.visits("sharding")
    driver.lose("sharding", two_nodes)
    manifest = driver.out / "private" / "shards" / "manifest.json"
    driver.until(manifest.exists, "shards on the node that is left")
    assert driver.visits("sharding") > written, "what the lost node was writing was not written again"

    second = two_nodes.other()
    driver.caught("training", second)
    assert driver.visits("training", second) == 2
    driver.lose("training", two_nodes)
    teachers = driver.out / "private" / "teachers"
    driver.until(lambda: len(list(teachers.glob("*.safetensors"))) == 6, "teachers from the node that is left")

    third = two_nodes.other()
    driver.caught("voting", third)
    assert driver.visits("voting", third) == 2
    before = driver.visits("voting")
    driver.lose("voting", two_nodes)
    _finished(driver)
    assert driver.visits("voting") > before, "the votes of the lost node were not asked again"
    _same_votes(seqpate, "disturbed")


def test_dpsgd_loses_a_node_in_the_middle_of_a_chunk(generator: Job, two_nodes: Nodes, drivers: list[Driver]) -> None:
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
    request: pytest.FixtureRequest,
    two_nodes: Nodes,
    drivers: list[Driver],
    method: str,
    point: str,
    charged: Any,
    same: Any,
) -> None:
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


def test_training_without_room_for_its_workers_gives_up(
    generator: Job, two_nodes: Nodes, drivers: list[Driver]
) -> None:
    two_nodes.lose()
    driver = generator.start("crowded", RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S="0.5")
    drivers.append(driver)
    assert driver.finish() == 1
    assert "no room for resources.workers = 3" in driver.stderr.read_text()
    assert generator.book("crowded")[0] == ONE_CHARGE  # the shares of the codes


@pytest.fixture
def joined(two_nodes: Nodes) -> Iterator[Nodes]:
    """The nodes, with this process as a driver."""
    if ray.is_initialized():  # by an earlier test of the session, on one node
        ray.shutdown()
    ray.init(address=two_nodes.address, log_to_driver=False)
    yield two_nodes
    ray.shutdown()


def test_sharding_that_loses_processes_again_and_again_gives_up(
    joined: Nodes, seqpate: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined.other()
    attempts: list[None] = []

    def late() -> None:
        raise GetTimeoutError("quoted-71ab")

    def task(*_: object) -> None:
        late()

    lost = pieces._round

    def counted(*arguments: Any) -> Any:
        attempts.append(None)
        return lost(*arguments)

    monkeypatch.setattr(pieces, "_round", counted)
    monkeypatch.setattr(pieces, "_task", task)
    config = load_recipe(seqpate.recipe, ()).corpus
    with pytest.raises(CorpusError, match="lost processes 3 times") as caught:
        shards.shard_corpus(config, seqpate.folder / "secret.key", 4, 2, tmp_path / "shards")
    assert len(attempts) == pieces.ATTEMPTS
    assert caught.value.__cause__ is caught.value.__context__ is None
    assert not (tmp_path / "shards" / "manifest.json").exists()


def test_a_ledger_file_on_a_lost_node_is_missed_in_a_sentence(joined: Nodes, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    Ledger.open(url).close()
    ensure_service(Address.of(url), node=joined.other())
    client = connect(url)
    assert client.accounts() == []
    joined.lose()
    with pytest.raises(LedgerError, match="the node that keeps the ledger file has left the cluster"):
        _ask_on(client)


def _ask_on(client: LedgerApi) -> None:
    """Ask again and again for ten seconds: the process of a killed service may answer for a moment."""
    for _ in range(100):
        client.accounts()
        time.sleep(0.1)
