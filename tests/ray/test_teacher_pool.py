"""Real teacher actors: killed wherever they are, failing on their data, what leaves them, and what the driver holds."""

import os
import random
import signal
import threading
import time
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
import torch
from ray.exceptions import RayActorError
from ray_processes import actors_of, peak_rise
from safetensors.torch import save_file

from rayprivacy.core.errors import ClusterError, ConfigError, ReleaseError
from rayprivacy.core.keys import Key, create_key
from rayprivacy.core.private import digest_json
from rayprivacy.core.units import Budget, NeighbouringRelation, PrivacyUnit
from rayprivacy.corpus.manifest import part_path
from rayprivacy.ledger.store import Ledger
from rayprivacy.models.features import Queries
from rayprivacy.models.settings import ModelConfig
from rayprivacy.models.store import FeatureStore
from rayprivacy.release.gate import Asked, Gate
from rayprivacy.release.votes import SCALE, VoteMechanism
from rayprivacy.teachers import handout
from rayprivacy.teachers import pool as pool_module
from rayprivacy.teachers.encoding import encode_part
from rayprivacy.teachers.group import TeacherGroup, kind_for
from rayprivacy.teachers.handout import ActorPool
from rayprivacy.teachers.pool import teacher_pool, tree_sum
from rayprivacy.teachers.settings import ResourcesConfig, TeachersConfig
from rayprivacy.teachers.spec import GroupSpec, blocks_of
from rayprivacy.teachers.votes import PartialSum, Question, summed_votes
from rayprivacy.teachers.workspace import Workspace

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_ray")]
TEACHERS = TeachersConfig(count=12, stack=2, rank=16, max_steps=2, batch=8)
RESOURCES = ResourcesConfig(actors=2, cpus_per_actor=0.5)
ALONE = ResourcesConfig(actors=1, cpus_per_actor=0.5)
NOBODY = (3, 8, 9)  # M exceeds the number of users
QUERIES, CANDIDATES = 70, 6
MECHANISM = VoteMechanism(QUERIES, CANDIDATES, TEACHERS.count, sigma=40.0)
ASKED = Asked(digest_json("corpus"), digest_json("question"))
STORMS = 2 * int(os.environ.get("RAYPRIVACY_TEST_EFFORT", "1"))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, tiny_base, tiny_basis, tiny_backbone):
    folder = tmp_path_factory.mktemp("ensemble")
    basis, warm = folder / "basis.safetensors", folder / "warm.safetensors"
    save_file({name: getattr(tiny_basis, name).contiguous() for name in ("inward", "outward", "shortlist")}, basis)
    save_file({"matrix": torch.eye(16) / 50}, warm)
    create_key(folder / "key")
    store, shards = FeatureStore(folder / "features", "recipe-of-the-states", folder / "key"), folder / "shards"
    store.prepare()
    shards.mkdir()
    model, workspace = ModelConfig(base=str(tiny_base), dtype="float32"), Workspace(folder / "teachers", "recipe")
    spec = GroupSpec(model, TEACHERS, PrivacyUnit.USER, shards, store, basis, warm, workspace)
    schema = {"shard": pa.int32(), "user": pa.string(), "record": pa.int32(), "text": pa.large_string()}
    for part in range(TEACHERS.parts):
        rows = [
            {"shard": shard, "user": f"u{shard}", "record": n, "text": f"hello {shard} how are you today {n}"}
            for shard in TEACHERS.members(part)
            if shard not in NOBODY
            for n in range(3)
        ]
        pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(schema)), part_path(shards, part))
        encode_part(spec, part, tiny_backbone)
    return spec


@pytest.fixture
def spec(corpus, tmp_path):
    workspace = Workspace(tmp_path / "teachers", "recipe")
    workspace.prepare()
    return replace(corpus, workspace=workspace)


def some_queries(features, count):
    draw = torch.Generator().manual_seed(3)
    candidates = torch.stack([torch.randperm(400, generator=draw)[:CANDIDATES] for _ in range(count)])
    hidden = features.hidden[torch.arange(count) % len(features)].float()
    hidden = hidden + torch.randn(hidden.shape, generator=draw) / 100
    centre = torch.rand(count, CANDIDATES, generator=draw).softmax(-1)
    context = torch.zeros(count, 2, dtype=torch.int64)
    return Queries(hidden, candidates, torch.ones_like(candidates, dtype=torch.bool), centre, context)


@pytest.fixture(scope="module")
def queries(tiny_features):
    return some_queries(tiny_features, QUERIES)


@pytest.fixture(scope="module")
def expected(corpus, queries, tiny_backbone, tmp_path_factory):
    """The sums, without Ray: every teacher trained by itself, and every block asked by itself."""
    threads = torch.get_num_threads()
    alone = replace(corpus, workspace=Workspace(tmp_path_factory.mktemp("alone") / "teachers", "recipe"))
    alone.workspace.prepare()
    kind, group = kind_for(alone, tiny_backbone), TeacherGroup(alone)
    for teacher in range(TEACHERS.count):
        group.train(range(teacher, teacher + 1))
    blocks = blocks_of(range(TEACHERS.count))
    sums = [summed_votes(kind, alone.workspace.read(block), queries, MECHANISM) for block in blocks]
    torch.set_num_threads(threads)
    return np.sum(sums, axis=0)


def strike(pool, chance):
    """Kill an actor, starting or working, through Ray or behind its back."""
    processes = actors_of("_SealedGroup")
    if processes and chance.random() < 0.5:
        os.kill(chance.choice(processes).pid, signal.SIGKILL)
    else:
        ray.kill(chance.choice(pool.actors.workers).actor)


def train(pool, after=None, hit=bool):
    """Train everything; hit after a number of pieces."""
    done: list[range] = []
    for piece in pool.train():
        done.append(piece)
        if len(done) == after:
            hit()
    assert sorted(teacher for piece in done for teacher in piece) == list(range(TEACHERS.count))


@pytest.mark.timeout(600 + 60 * STORMS)  # a dozen actors start, each with a torch of its own
def test_many_storms_and_one_release(spec, queries, expected, tmp_path, monkeypatch):
    chance, strikes = random.Random(20), []
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    ledger.ensure_account("chat", PrivacyUnit.USER, NeighbouringRelation.ADD_OR_REMOVE, Budget(8.0, 1e-6))
    gate, released = Gate(ledger, "chat", Key.for_tests()), []
    monkeypatch.setattr(pool_module, "QUERY_BATCH", 32)
    with closing(ledger), teacher_pool(spec, RESOURCES) as pool:

        def hit():
            strikes.append(strike(pool, chance))

        def shaken(sums):
            if collecting.pop() if collecting else False:
                hit()
            return tree_sum(sums)

        monkeypatch.setattr(pool_module, "tree_sum", shaken)
        for storm in range(STORMS):
            for path in spec.workspace.root.iterdir():
                path.unlink()
            points = [{"training", "voting"}, {"between", "collecting"}][storm % 2]
            collecting = [place == 1 for place in range(3)] if "collecting" in points else []
            train(pool, chance.randrange(1, 7) if "training" in points else None, hit)
            if "between" in points:
                hit()
            timer = threading.Timer(chance.uniform(0, 0.1) if "voting" in points else 0, hit)
            if "voting" in points:
                timer.start()
            sums, manifest = pool.vote(queries, MECHANISM)
            if "voting" in points:
                timer.join()
            assert manifest.teachers == tuple(range(TEACHERS.count)), storm
            assert np.array_equal(sums.reveal(), expected), storm
            released.append(gate.release_votes("storm", MECHANISM, sums, manifest, asked=ASKED).value)
        assert all(np.array_equal(votes, released[0]) for votes in released)
        assert len(ledger.charges_of("chat", "storm")) == 1
        assert ledger.verify().charges == 1
    assert len(strikes) == 2 * STORMS


@pytest.mark.parametrize("pieces", [2, *(pytest.param(each, marks=pytest.mark.exhaustive) for each in (1, 4, 12))])
def test_spreading_the_work_changes_nothing(pieces, spec, queries, expected, monkeypatch):
    monkeypatch.setattr("rayprivacy.teachers.spec.PIECES", pieces)
    with teacher_pool(spec, ALONE) as pool:
        train(pool)
        sums, manifest = pool.vote(queries, MECHANISM)
        again, _ = pool.vote(queries, MECHANISM)
    np.testing.assert_array_equal(sums.reveal(), expected)
    np.testing.assert_array_equal(again.reveal(), expected)
    assert manifest.teachers == tuple(range(TEACHERS.count))


def plasma():
    found = []
    for process in psutil.Process().children():
        if process.name() == "raylet":
            for handle in Path(f"/proc/{process.pid}/fd").iterdir():
                if "plasma" in os.readlink(handle) and "shm" in os.readlink(handle):
                    found.append(written(handle))
    return b"".join(found)


def written(path):
    regions, at = [], 0
    with path.open("rb", buffering=0) as file, suppress(OSError):  # there is no more
        while True:
            start = os.lseek(file.fileno(), at, os.SEEK_DATA)
            at = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            regions.append(os.pread(file.fileno(), at - start, start))
    return b"".join(regions)


def test_no_teachers_vote_leaves_an_actor(spec, tiny_features, tiny_backbone, local_ray, monkeypatch):
    many = some_queries(tiny_features, 3000)  # large enough that a sum goes through the object store
    mechanism = replace(MECHANISM, queries=len(many))
    seen, real = [], ray.get

    def get(refs):
        seen.append(real(refs))
        return seen[-1]

    monkeypatch.setattr(pool_module, "QUERY_BATCH", 3008)
    with teacher_pool(spec, RESOURCES) as pool:
        list(pool.train())
        real([worker.actor.__ray_ready__.remote() for worker in pool.actors.workers])  # both have votes to hand over
        monkeypatch.setattr(ray, "get", get)
        sums, _ = pool.vote(many, mechanism)
        monkeypatch.setattr(ray, "get", real)
        digest = Question.of(many, mechanism).digest
        held = [real(worker.actor.collect.remote(digest)) for worker in pool.actors.workers]
        stored = plasma()
    totals = [value for value in seen if isinstance(value, PartialSum)]
    assert [len(total.teachers) for total in totals] == [TEACHERS.count]
    assert [value for value in seen if value is not None and not isinstance(value, PartialSum)] == []
    assert all(len(partial.teachers) >= 2 and vars(partial).keys() == {"teachers", "sums"} for partial in held)
    assert sum(len(partial.teachers) for partial in held) == TEACHERS.count
    assert sums.reveal()[:8].tobytes() in stored, "the search finds what is there"
    files = [path for root in (local_ray, spec.workspace.root) for path in root.rglob("*") if path.is_file()]
    haystacks = [stored, *(path.read_bytes() for path in files)]
    kind = kind_for(spec, tiny_backbone)
    for teacher in range(0, TEACHERS.count, 2):
        answers = torch.cat(list(kind.answers(spec.workspace.read([teacher]), many)))[:, 0].numpy()
        for query in (0, 1500, 2999):
            distribution = np.ascontiguousarray(answers[query])
            ballot = np.rint(distribution * np.float32(SCALE)).astype(np.int64)
            for needle in (distribution.tobytes(), ballot.tobytes(), distribution.astype(np.float64).tobytes()):
                assert not any(needle in haystack for haystack in haystacks)


def test_errors_of_private_code_are_one_sentence_without_its_text(corpus, tmp_path):
    secret = "the secret words of user 7"
    shards, workspace = tmp_path / "shards", Workspace(tmp_path / "teachers", "recipe")
    workspace.prepare()
    shards.mkdir()
    for part in range(TEACHERS.parts):
        part_path(shards, part).write_bytes(secret.encode())
    broken = replace(corpus, shards=shards, workspace=workspace)
    with pytest.raises(ReleaseError) as caught, teacher_pool(broken, ALONE) as pool:
        list(pool.train())
    assert "training teachers" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert secret not in str(caught.value)


def test_a_group_that_cannot_start_is_one_sentence(spec):
    broken = replace(spec, model=ModelConfig(base="./nowhere"))
    said = pytest.raises(ConfigError, match=r"^[^\n]*there is no such directory[^\n]*$")
    with said, teacher_pool(broken, ALONE) as pool:
        list(pool.train())


@pytest.mark.exhaustive
def test_the_drivers_memory_does_not_grow_with_the_teachers(corpus, tiny_features, tmp_path):
    many, rises = some_queries(tiny_features, 1024), []
    for count in (200, 4000):
        workspace = Workspace(tmp_path / f"{count}", "recipe")
        workspace.prepare()
        config = TeachersConfig(count=count, stack=50, rank=4)
        for part in range(config.parts):
            state = {"matrix": torch.randn(50, 4, 4), "filled": torch.ones(50, dtype=torch.bool)}
            workspace.write(dict.fromkeys(config.members(part), "source"), state)
        spec = replace(corpus, teachers=config, workspace=workspace)
        with teacher_pool(spec, ALONE) as pool:
            pool.vote(many.rows(0, 32), VoteMechanism(32, CANDIDATES, count, sigma=5.0))  # warms up
            mechanism = VoteMechanism(1024, CANDIDATES, count, sigma=5.0)
            rises.append(peak_rise(partial(pool.vote, many, mechanism)))
    assert rises[1] - rises[0] < 8 * 2**20, "one vote of each of 4,000 teachers would be 190 MB"


def toys(cpus=0.1):
    class Toy:  # in here, so that it travels by value: workers cannot import tests
        def ready(self): ...

        def double(self, piece):
            if piece < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return 2 * piece

        def nap(self, piece, hung):
            if piece == 3 and not os.path.exists(hung):
                open(hung, "w").close()
                time.sleep(600)
            return 2 * piece

        def fail(self, piece):
            raise ValueError(f"private text {piece}")

    return lambda: ray.remote(Toy).options(num_cpus=cpus).remote()


@pytest.fixture
def actors():
    made = ActorPool(toys(), 2)
    yield made
    made.close()


def test_an_actor_that_never_starts_delays_nobody(actors):
    huge = ActorPool(toys(1000), 1)
    actors.workers += huge.workers
    assert sorted(actors.work("toying", "double", range(9))) == [(n, 2 * n) for n in range(9)]


def test_no_actor_has_more_than_two_calls_outstanding(actors, monkeypatch):
    open_calls = []
    real = ray.wait

    def wait(refs, **options):
        open_calls.append(max(worker.open for worker in actors.workers))
        return real(refs, **options)

    monkeypatch.setattr(ray, "wait", wait)
    assert len(list(actors.work("toying", "double", range(40)))) == 40
    assert max(open_calls) == handout.AHEAD
    assert all(worker.open == 0 for worker in actors.workers)


def test_the_number_of_deaths_is_bounded(actors):
    with pytest.raises(ReleaseError, match="toying lost processes again and again: check the memory"):
        list(actors.work("toying", "double", [-1]))
    actors.begin()
    assert list(actors.work("toying", "double", [4])) == [(4, 8)]


@pytest.mark.timeout(60)
def test_an_idle_actor_does_what_a_straggler_is_at(actors, tmp_path, monkeypatch):
    monkeypatch.setattr(handout, "LEAST_PATIENCE_S", 0.5)
    before = [worker.actor for worker in actors.workers]
    done = list(actors.work("toying", "nap", range(9), str(tmp_path / "hung")))
    assert sorted(done) == [(n, 2 * n) for n in range(9)], "every piece once"
    assert len({worker.actor for worker in actors.workers} - set(before)) == 1, "the straggler's place is another's"
    assert actors._losses == 0
    assert sorted(actors.work("toying", "double", range(9))) == [(n, 2 * n) for n in range(9)]


def test_a_step_may_be_abandoned(actors):
    next(actors.work("toying", "double", range(20), kept=True))
    actors.begin()
    assert not actors.held
    assert sorted(actors.work("toying", "double", range(9))) == [(n, 2 * n) for n in range(9)]


def test_what_a_dead_actor_held_is_done_again(actors):
    done = list(actors.work("toying", "double", range(20), kept=True))
    assert len(done) == 20
    assert actors.held == set(range(20))
    worker = max(actors.workers, key=lambda worker: len(worker.holds))
    lost = set(worker.holds)
    ray.kill(worker.actor)
    with suppress(RayActorError):
        while True:  # a kill takes a moment
            ray.get(worker.actor.ready.remote())
    actors.check_alive("toying")
    assert actors.held == set(range(20)) - lost
    assert worker not in actors.workers


def test_a_failure_of_the_code_is_no_loss(actors):
    with pytest.raises(ReleaseError, match="toying stopped with") as caught:
        list(actors.work("toying", "fail", range(3)))
    assert "private text" not in str(caught.value)
    assert actors._losses == 0


def test_the_tree_adds_each_summand_once_and_refuses_overlaps():
    partials = [PartialSum((2 * part, 2 * part + 1), np.full((3, 2), part + 1)) for part in range(70)]
    total = ray.get(tree_sum([ray.put(partial) for partial in partials]))
    assert (total.sums == 70 * 71 / 2).all()
    assert total.teachers == tuple(range(140))
    doubled = [*partials, PartialSum((5, 200), np.ones((3, 2), dtype=np.int64))]
    with pytest.raises(ReleaseError, match="in two partial sums"):
        ray.get(tree_sum([ray.put(partial) for partial in doubled]))


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch has the GPU here")
def test_a_gpu_that_torch_does_not_find_stops_the_training_in_a_sentence(spec):
    """Ray believes in its GPU here, so actors start on halves of it."""
    shared = ResourcesConfig(cpus_per_actor=0.5, gpus_per_actor=0.5)
    with teacher_pool(replace(spec, gpu=True), shared) as pool:
        assert len(pool.actors.workers) == 2
        with pytest.raises(ClusterError, match="torch finds no GPU on a node: install torch with CUDA there"):
            list(pool.train())
