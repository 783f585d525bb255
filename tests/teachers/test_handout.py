"""What is stolen from whom, by a clock of the test's own; pieces that hold every teacher once; room for actors."""

import itertools
from typing import Any

import pytest
import ray

from rayprivacy.core.errors import ClusterError, ConfigError
from rayprivacy.teachers.head_kinds import VOTERS
from rayprivacy.teachers.settings import ResourcesConfig, TeachersConfig
from rayprivacy.teachers.spec import actor_options, blocks_of, places, training_pieces, voting_pieces
from rayprivacy.work import pool as handout_module
from rayprivacy.work.pool import LEAST_PATIENCE_S, Handout, Worker


class Bench:
    """Workers without actors: calls are numbers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, workers: int, pieces: int, steals: bool = True) -> None:
        self.now = 100.0
        monkeypatch.setattr(handout_module.time, "monotonic", lambda: self.now)
        self.workers = [Worker(None, None) for _ in range(workers)]
        self.handout = Handout(range(pieces), steals)
        self._calls = itertools.count()

    def given(self) -> list[tuple[int, int]]:
        """Hand out; returns (worker, piece)."""
        turns = []
        for worker, piece in self.handout.turns(self.workers):
            self.handout.calls[next(self._calls)] = worker, piece
            turns.append((self.workers.index(worker), piece))
        return turns

    def first_done(self) -> None:
        """Hand out; the first worker is done a second later, and patience ends."""
        self.given()
        self.now += 1
        assert self.answer(0, 0) == (True, [])
        self.now += LEAST_PATIENCE_S

    def answer(self, worker: int, piece: int) -> tuple[bool, list[int]]:
        """An answer; returns whether it is the first, and who was overtaken."""
        calls = self.handout.calls.items()
        call: Any = next(call for call, given in calls if given == (self.workers[worker], piece))
        _, _, is_first, overtaken = self.handout.answered(call)
        return is_first, [self.workers.index(owner) for owner in overtaken]


def test_nothing_is_stolen_before_its_time_or_twice(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_who_is_overtaken_loses_its_place_and_who_is_not_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for winner, loser, overtaken in ((0, 1, [1]), (1, 0, [])):
        bench = Bench(monkeypatch, 2, 2)
        bench.first_done()
        assert bench.given() == [(0, 1)]
        assert bench.answer(winner, 1) == (True, overtaken)
        assert not bench.handout.left
        assert bench.answer(loser, 1) == (False, [])


def test_a_dead_thief_or_owner_leaves_the_piece_to_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_what_is_kept_in_an_actor_is_not_stolen(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, 2, 2, steals=False)
    bench.first_done()
    bench.now += 1e6
    assert bench.given() == []
    assert not bench.handout.may_steal


@pytest.mark.parametrize(("count", "stack"), [(1, 50), (23, 5), (50, 50), (1000, 50), (999, 7)])
@pytest.mark.parametrize("actors", [1, 3, 400])
def test_pieces_hold_every_teacher_once(count: int, stack: int, actors: int) -> None:
    teachers = TeachersConfig(count=count, stack=stack)
    training, voting = (cut(teachers, actors) for cut in (training_pieces, voting_pieces))
    for pieces in (training, voting):
        assert [teacher for piece in pieces for teacher in piece] == list(range(count))
    assert all(len({teachers.part_of(teacher) for teacher in piece}) == 1 for piece in training)
    blocks = [block for piece in voting for block in blocks_of(piece)]
    assert blocks == blocks_of(range(count)), "the block of a teacher does not depend on the piece"
    assert {len(block) for block in blocks[:-1]} <= {VOTERS}
    assert len(training) >= min(4 * actors, count) / 2


@pytest.mark.parametrize(
    ("cpus", "gpus", "actors", "cluster_cpus", "room"),
    [
        (1, 0, 0, 8, 8),
        (0.5, 0, 0, 8, 16),
        (16, 0, 0, 8, 1),
        (1, 0, 5, 8, 5),
        (1, 1, 0, 8, 2),
        (1, 2, 0, 8, 1),
        (1, 0.4, 0, 8, 4),  # two on each GPU: 0.8 of it
        (1, 0.1, 0, 8, 8),  # as many as there are CPUs
        (1, 0.1, 0, 64, 20),
        (1, 0.5, 7, 8, 7),
        (1, 4, 0, 8, 1),  # Ray waits for a node that has four
    ],
)
def test_the_number_of_actors_and_their_share(
    cpus: float, gpus: float, actors: int, cluster_cpus: int, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ResourcesConfig.parse({"cpus_per_actor": cpus, "gpus_per_actor": gpus, "actors": actors})
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": cluster_cpus, "GPU": 2})
    assert places(asked) == room
    options = actor_options(asked)
    assert (options["num_cpus"], options["num_gpus"]) == (cpus, gpus)


def test_a_gpu_that_is_not_there_and_a_share_that_ray_cannot_give_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 8.0})
    for actors in (0, 3):
        with pytest.raises(
            ClusterError, match=r"gpus_per_actor is 0\.25 and the cluster has no GPU: leave the key out"
        ):
            places(ResourcesConfig(gpus_per_actor=0.25, actors=actors))
    for share in (1.5, -0.1, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="gpus_per_actor"):
            ResourcesConfig.parse({"gpus_per_actor": share})
