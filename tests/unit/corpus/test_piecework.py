"""What is handed to Ray, seen by a stand-in that does it at once; tests/ray has the same with Ray itself."""

from types import SimpleNamespace
from typing import Any

from rayprivacy.core.errors import CorpusError
from rayprivacy.core.private import Seal
from rayprivacy.work import pieces as piecework
from rayprivacy.work.pieces import Bench, work_off


class _Orders:
    """A stand-in of Ray with four CPUs, and what it was told of each task."""

    def __init__(self):
        self.seen: list[Any] = []

    def cluster_resources(self):
        return {"CPU": 4.0}

    def remote(self, task):
        def start(bench, piece, number, tasks):
            self.seen.append((task.__name__, bench, piece.__name__, number, tasks))
            task(bench, piece, number, tasks)

        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=start))

    def wait(self, waiting, num_returns):
        return waiting[:num_returns], waiting[num_returns:]

    def get(self, task):
        return task


def _square(piece):
    return {"square": piece * piece}


def test_ray_is_told_the_same_of_every_corpus(tmp_path, monkeypatch):
    """It shows everybody how many tasks there were: into how many pieces a corpus falls follows its private size."""
    told = []
    for pieces in (1, 3, 40):
        orders, bench = _Orders(), Bench(tmp_path / "bench")
        monkeypatch.setattr(piecework, "ray", orders)
        bench.offer(pieces)
        work_off(bench, _square, "squaring", Seal(CorpusError, "Run again."))
        assert bench.reports() == [{"square": piece * piece} for piece in range(pieces)]
        told.append(orders.seen)
        bench.remove()
    assert len(told[0]) == 16
    assert told[0] == told[1] == told[2]
