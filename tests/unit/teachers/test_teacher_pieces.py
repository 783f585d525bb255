"""Sums of votes hold every teacher once, finished files are whole, and pieces are dealt out and stolen once."""

import gc
import itertools
import json
import stat
import weakref
from typing import Any

import numpy as np
import pytest
import ray
import torch

from rayprivacy.core.errors import ClusterError, ConfigError, ReleaseError, ShardError
from rayprivacy.core.files import Journal
from rayprivacy.teachers import handout as handout_module
from rayprivacy.teachers import workspace as workspace_module
from rayprivacy.teachers.handout import LEAST_PATIENCE_S, Handout, Worker
from rayprivacy.teachers.head_kinds import VOTERS
from rayprivacy.teachers.settings import ResourcesConfig, TeachersConfig
from rayprivacy.teachers.spec import actor_options, blocks_of, places, training_pieces, voting_pieces
from rayprivacy.teachers.votes import PartialSum, VoteTotal
from rayprivacy.teachers.workspace import Workspace


def _partial(pairs, value=None):
    sums = np.random.default_rng(sum(pairs) if value is None else value).integers(0, 2**40, (3, 4))
    return PartialSum(tuple(teacher for pair in pairs for teacher in (2 * pair, 2 * pair + 1)), sums)


PARTS = [_partial((0,)), _partial((1, 2)), _partial((3,)), _partial((4, 5))]


def _total(parts):
    total = VoteTotal(3, 4)
    for part in parts:
        total.add(part)
    return total


@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[::5])
def test_any_order_gives_the_same_sums_and_manifest(order):
    total = _total([PARTS[i] for i in order])
    assert np.array_equal(total.sums, sum(part.sums for part in PARTS))
    assert total.sums.dtype == np.int64
    assert total.manifest == tuple(range(12))


def test_a_missing_part_shows_in_the_manifest_and_an_identical_repeat_is_counted_once():
    assert _total([PARTS[3], PARTS[0]]).manifest == (0, 1, 8, 9, 10, 11)
    assert VoteTotal(3, 4).manifest == ()
    once, twice = _total(PARTS), _total([*PARTS, _partial((1, 2)), PARTS[0]])
    assert np.array_equal(once.sums, twice.sums)
    assert once.manifest == twice.manifest
    # A differing repeat and a sum of another shape are refused.
    total = _total(PARTS)
    before = total.sums.copy()
    with pytest.raises(ReleaseError, match="twice and differently") as caught:
        total.add(_partial((3,), value=99))
    assert not any(str(number) in str(caught.value) for number in PARTS[2].sums.flatten())
    assert np.array_equal(total.sums, before)
    assert total.manifest == tuple(range(12))
    for shape in ((1, 4), (4,)):
        with pytest.raises(ReleaseError):
            VoteTotal(3, 4).add(PartialSum((0, 1), np.ones(shape, dtype=np.int64)))


@pytest.mark.parametrize(
    "teachers",
    [(0, 1, 6, 7), (11, 18), (20, 20)],
    ids=["known teachers grouped anew", "a known teacher in new company", "a teacher twice in one sum"],
)
def test_a_teacher_is_never_counted_twice(teachers):
    total = _total(PARTS)
    before = total.sums.copy()
    with pytest.raises(ReleaseError, match="in two partial sums"):
        total.add(PartialSum(teachers, np.ones((3, 4), dtype=np.int64)))
    assert np.array_equal(total.sums, before)
    assert total.manifest == tuple(range(12))


def test_a_total_is_a_summand_of_a_larger_one():
    lower, upper = _total(PARTS[:2]).partial, _total(PARTS[2:]).partial
    assert lower.teachers == (0, 1, 2, 3, 4, 5)
    whole = _total([upper, lower])
    assert np.array_equal(whole.sums, _total(PARTS).sums)
    assert whole.manifest == tuple(range(12))
    with pytest.raises(ReleaseError, match="in two partial sums"):
        whole.add(PARTS[1])
    # It changes and keeps no summand.
    part = _partial((0,))
    total, left, before = _total([part, PARTS[1]]), weakref.ref(part.sums), part.sums.copy()
    assert np.array_equal(before, _partial((0,)).sums)
    assert total.sums.any()
    del part
    gc.collect()
    assert left() is None


STATE = {"matrix": torch.arange(12.0).view(3, 2, 2), "filled": torch.tensor([True, False, True])}
STATE |= {"up": torch.ones(3, 4, 5).transpose(1, 2)}
TEACHERS = [6, 7, 9]


@pytest.fixture
def workspace(tmp_path):
    found = Workspace(tmp_path / "teachers", "recipe-digest")
    found.prepare()
    return found


def sources(workspace, *groups):
    return {teacher: workspace.source([*groups, str(teacher)]) for teacher in TEACHERS}


def written(workspace, *groups, plus=0.0):
    found = sources(workspace, *groups)
    workspace.write(found, {**STATE, "matrix": STATE["matrix"] + plus})
    return found


def forget():
    """What a fresh process knows."""
    workspace_module._known.cache_clear()


def test_what_was_written_is_finished_and_comes_back(workspace):
    assert workspace.missing(sources(workspace)) == TEACHERS
    known = written(workspace)
    for _ in range(2):
        assert workspace.missing(known) == []
        assert workspace.missing({8: "source"}) == [8]
        for order in (TEACHERS, [9, 6], [7]):
            found, rows = workspace.read(order), [TEACHERS.index(teacher) for teacher in order]
            assert found.keys() == STATE.keys()
            assert all(torch.equal(found[name], STATE[name][rows]) for name in STATE)
        forget()


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("damage", [8, -1, "cut short", "gone"])
def test_a_damaged_file_is_not_finished_and_not_read(workspace, damage, fresh):
    known, (path,) = written(workspace), workspace.root.glob("*.safetensors")
    workspace.read(TEACHERS)
    if fresh:
        forget()
    data = bytearray(path.read_bytes())
    if isinstance(damage, int):
        data[damage] ^= 1
    path.write_bytes(bytes(data[:-4] if damage == "cut short" else data))
    if damage == "gone":
        path.unlink()
    said = r"^(teacher 6 is not on disk|the file of teacher 6 is damaged): .*--resume\.$"
    with pytest.raises(ShardError, match=said):
        workspace.read(TEACHERS)
    assert workspace.missing(known) == TEACHERS
    written(workspace)
    assert workspace.missing(known) == []
    assert torch.equal(workspace.read(TEACHERS)["matrix"], STATE["matrix"])


def test_another_recipe_or_another_shard_is_not_finished(workspace):
    known = written(workspace, "a group")
    assert Workspace(workspace.root, "another recipe").missing(sources(workspace, "a group")) == []
    assert Workspace(workspace.root, "another recipe").source(["a"]) != workspace.source(["a"])
    assert workspace.missing(sources(workspace, "a group", "and one more")) == TEACHERS
    assert workspace.missing(known) == []


@pytest.mark.parametrize("fresh", [True, False])
def test_of_two_trainings_the_later_one_counts_whatever_the_names_of_files(workspace, fresh):
    for plus in range(1, 6):
        known = written(workspace, f"corpus {plus}", plus=plus)
        if fresh:
            forget()
        assert workspace.missing(known) == []
        assert torch.equal(workspace.read([7])["matrix"], STATE["matrix"][1:2] + plus)
    workspace.write({7: "anew"}, {name: tensor[:1] for name, tensor in STATE.items()})
    assert workspace.missing({**known, 7: "anew"}) == []
    assert workspace.read([6, 7])["matrix"][1].equal(STATE["matrix"][0])
    workspace.prepare()
    assert len(list(workspace.root.glob("*.safetensors"))) == 2, "files that no teacher is read from are gone"
    assert workspace.missing({**known, 7: "anew"}) == []


def test_a_write_cut_short_over_an_older_training_is_not_finished(workspace, monkeypatch):
    known = written(workspace)

    def killed(*_args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "add", killed)
        with pytest.raises(KeyboardInterrupt):
            written(workspace, "new input", plus=1)
    assert workspace.missing(sources(workspace, "new input")) == TEACHERS
    assert workspace.missing(known) == []
    (workspace.root / ".abc.safetensors.17").touch()
    workspace.prepare()
    assert [path.name for path in workspace.root.iterdir() if path.name.startswith(".")] == []
    assert torch.equal(workspace.read(TEACHERS)["matrix"], STATE["matrix"])


def test_everything_is_for_the_owner_only_and_holds_digests(workspace):
    written(workspace, "a private text")
    assert stat.S_IMODE(workspace.root.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in workspace.root.iterdir()} == {0o600}
    (table,) = workspace.root.glob("*.jsonl")
    (line,) = table.read_text().splitlines()
    assert set(json.loads(line)) == {"file", "sha256", "version", "teachers"}
    assert "private" not in line
    workspace.root.chmod(0o755)
    workspace.prepare()
    assert stat.S_IMODE(workspace.root.stat().st_mode) == 0o700, "an open folder is closed"
    with pytest.raises(ShardError, match=r"^teacher 8 is not on disk: run again with --resume\.$"):
        workspace.read([8])


class Bench:
    """Workers without actors: calls are numbers."""

    def __init__(self, monkeypatch, workers, pieces, steals=True):
        self.now = 100.0
        monkeypatch.setattr(handout_module.time, "monotonic", lambda: self.now)
        self.workers = [Worker(None, None) for _ in range(workers)]
        self.handout = Handout(range(pieces), steals)
        self._calls = itertools.count()

    def given(self):
        """Hand out; returns (worker, piece)."""
        turns = []
        for worker, piece in self.handout.turns(self.workers):
            self.handout.calls[next(self._calls)] = worker, piece
            turns.append((self.workers.index(worker), piece))
        return turns

    def first_done(self):
        """Hand out; the first worker is done a second later, and patience ends."""
        self.given()
        self.now += 1
        assert self.answer(0, 0) == (True, [])
        self.now += LEAST_PATIENCE_S

    def answer(self, worker, piece):
        """An answer; returns whether it is the first, and who was overtaken."""
        calls = self.handout.calls.items()
        call: Any = next(call for call, given in calls if given == (self.workers[worker], piece))
        _, _, is_first, overtaken = self.handout.answered(call)
        return is_first, [self.workers.index(owner) for owner in overtaken]


def test_nothing_is_stolen_before_its_time_or_twice(monkeypatch):
    bench = Bench(monkeypatch, 3, 3)
    assert bench.given() == [(0, 0), (1, 1), (2, 2)]
    bench.now += 1000
    assert bench.given() == [], "nobody knows yet how long a piece takes"
    assert bench.answer(0, 0) == (True, [])
    assert bench.given() == [], "as long as the longest piece"
    bench.now += 1001
    assert bench.given() == [(0, 1)]
    assert bench.given() == []
    assert bench.answer(2, 2) == (True, [])
    assert bench.given() == [], "there is no second thief"
    assert bench.handout.left == {1}


def test_who_is_overtaken_loses_its_place_and_who_is_not_keeps_it(monkeypatch):
    for winner, loser, overtaken in ((0, 1, [1]), (1, 0, [])):
        bench = Bench(monkeypatch, 2, 2)
        bench.first_done()
        assert bench.given() == [(0, 1)]
        assert bench.answer(winner, 1) == (True, overtaken)
        assert not bench.handout.left
        assert bench.answer(loser, 1) == (False, [])
    # What is kept in an actor is not stolen.
    bench = Bench(monkeypatch, 2, 2, steals=False)
    bench.first_done()
    bench.now += 1e6
    assert bench.given() == []
    assert not bench.handout.may_steal


def test_a_dead_thief_or_owner_leaves_the_piece_to_the_other(monkeypatch):
    for dead in (0, 1):
        bench = Bench(monkeypatch, 2, 2)
        bench.first_done()
        bench.given()
        bench.handout.lost(bench.workers[dead])
        assert bench.handout.left == {1}
        assert [piece for _, piece in bench.handout.calls.values()] == [1]
        bench.handout.lost(bench.workers[1 - dead])
        bench.workers = [Worker(None, None), Worker(None, None)]
        assert bench.given() == [(0, 1)], "nobody is at it any more"


@pytest.mark.parametrize(("count", "stack"), [(1, 50), (23, 5), (50, 50), (1000, 50), (999, 7)])
@pytest.mark.parametrize("actors", [1, 3, 400])
def test_pieces_hold_every_teacher_once(count, stack, actors):
    teachers = TeachersConfig(count=count, stack=stack)
    training, voting = (cut(teachers, actors) for cut in (training_pieces, voting_pieces))
    for pieces in (training, voting):
        assert [teacher for piece in pieces for teacher in piece] == list(range(count))
    assert all(len({teachers.part_of(teacher) for teacher in piece}) == 1 for piece in training)
    blocks = [block for piece in voting for block in blocks_of(piece)]
    assert blocks == blocks_of(range(count)), "the block of a teacher does not depend on the piece"
    assert {len(block) for block in blocks[:-1]} <= {VOTERS}
    assert len(training) >= min(4 * actors, count) / 2


ROOM = [(1, 0, 0, 8, 8), (0.5, 0, 0, 8, 16), (16, 0, 0, 8, 1), (1, 0, 5, 8, 5), (1, 1, 0, 8, 2), (1, 2, 0, 8, 1)]
ROOM += [(1, 0.4, 0, 8, 4)]  # two on each GPU: 0.8 of it
ROOM += [(1, 0.1, 0, 8, 8), (1, 0.1, 0, 64, 20), (1, 0.5, 7, 8, 7)]  # no more than there are CPUs
ROOM += [(1, 4, 0, 8, 1)]  # Ray waits for a node that has four


@pytest.mark.parametrize(("cpus", "gpus", "actors", "cluster_cpus", "room"), ROOM)
def test_the_number_of_actors_and_their_share(cpus, gpus, actors, cluster_cpus, room, monkeypatch):
    asked = ResourcesConfig.parse({"cpus_per_actor": cpus, "gpus_per_actor": gpus, "actors": actors})
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": cluster_cpus, "GPU": 2})
    assert places(asked) == room
    options = actor_options(asked)
    assert (options["num_cpus"], options["num_gpus"]) == (cpus, gpus)


def test_a_gpu_that_is_not_there_and_a_share_that_ray_cannot_give_are_refused(monkeypatch):
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 8.0})
    for actors in (0, 3):
        with pytest.raises(ClusterError, match=r"is 0\.25 and the cluster has no GPU: leave the key out"):
            places(ResourcesConfig(gpus_per_actor=0.25, actors=actors))
    for share in (1.5, -0.1, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="gpus_per_actor"):
            ResourcesConfig.parse({"gpus_per_actor": share})
