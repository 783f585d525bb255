"""Small recipes on a cluster of two nodes, and drivers in processes of their own that lose nodes while they run."""

import json
import os
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import recipes
from ray.cluster_utils import Cluster
from small_jobs import job_of, sentence
from zygote import Forked, fork

from rayprivacy.ledger.charges import Charge
from rayprivacy.ledger.store import Ledger
from rayprivacy.methods.registry import load_recipe, method_of
from rayprivacy.runs.account import open_account

SCRIPT = Path(__file__).with_name("watched_driver.py")
PATIENCE = 600.0
T = TypeVar("T")
SEQPATE: dict[str, Any] = recipes.SEQPATE | {
    "teachers": recipes.SEQPATE["teachers"] | {"count": 40, "stack": 7},  # 6 parts
    "evaluation": recipes.EVALUATION,
    "resources": {"actors": 2, "cpus_per_actor": 2},  # one on each node; 3 pieces of a vote
}
GENERATOR: dict[str, Any] = recipes.GENERATOR | {
    "training": recipes.TRAINING | {"bands": 2},  # noise that has to be made again
    "resources": {"workers": 3, "cpus": 1, "actors": 1},  # at least one on each node
}


def wait_for(found: Callable[[], T], what: str, within: float = PATIENCE) -> T:
    until = time.monotonic() + within
    while not (answer := found()):
        assert time.monotonic() < until, f"waited {within:.0f} s for {what}"
        time.sleep(0.1)
    return answer


class Nodes:
    """A head, where drivers live, and one more node, with the same number of (fake) CPUs each."""

    def __init__(self, cpus: int = 2, largest_message: int = 100) -> None:
        # What is larger goes to the object store of its node, and is lost with it; a dead node is noticed soon.
        config = {"max_direct_call_object_size": largest_message}
        config |= {"health_check_period_ms": 500, "health_check_failure_threshold": 6}
        self._cpus = cpus
        head = {"num_cpus": cpus, "include_dashboard": False, "_system_config": config}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._other: Any = None
        self.address = str(self._cluster.address)

    def other(self) -> str:
        """The id of the node beside the head, which joins if there is none."""
        if self._other is None:
            self._other = self._cluster.add_node(num_cpus=self._cpus)
        return str(self._other.node_id)

    def lose(self) -> None:
        """Kill every process of the node beside the head, if there is one; workers outlive their raylet a little."""
        if self._other is None:
            return
        (raylet,) = self._other.all_processes["raylet"]
        workers = psutil.Process(raylet.process.pid).children(recursive=True)
        self._cluster.remove_node(self._other, allow_graceful=False)
        self._other = None
        for worker in workers:
            with suppress(psutil.Error):
                worker.kill()

    def shutdown(self) -> None:
        self._cluster.shutdown()


@dataclass(frozen=True)
class Job:
    """A recipe, and a book with an open account: copies of it are the same account, for one run each."""

    folder: Path
    recipe: Path
    address: str

    @staticmethod
    def make(folder: Path, base: Path, address: str, blocks: dict[str, Any]) -> "Job":
        """30 users with 4 sentences each, in 8 files, so that every node has some to read."""
        pairs, topics = [(user, number) for user in range(30) for number in range(4)], ("food", "pets", "home")
        rows = [{"who": f"user-{u}", "said": sentence(u, n), "topic": topics[(u + n) % 3]} for u, n in pairs]
        (folder / "talk").mkdir()
        for file in range(8):
            pq.write_table(pa.Table.from_pylist(rows[file * 15 : file * 15 + 15]), folder / "talk" / f"{file}.parquet")
        labels = {"labels": ["topic"]} if "codes" in blocks else {}
        path = job_of(folder, base, **blocks, corpus={"source": str(folder / "talk"), **labels}).recipe
        settings = load_recipe(path, ())
        open_account(settings, method_of(settings).planned(settings)).close()
        return Job(folder, path, address)

    def start(self, out: str, *args: str, orders: dict[str, str] | None = None, **environment: str) -> "Driver":
        """Start a run as a process of its own, with its own copy of the book if it has none yet.

        `orders` says at which point work stops on which node; an empty one is named later.
        """
        book = self.folder / f"{out}.db"
        if not book.exists():
            with closing(sqlite3.connect(self.folder / "ledger.db")) as blank, closing(sqlite3.connect(book)) as copy:
                blank.backup(copy)
        points = self.folder / f"{out}.points"
        points.mkdir(exist_ok=True)
        for point, node in (orders or {}).items():
            _order(points, point, node)
        overrides = [f"resources.address={self.address}", f"privacy.ledger={_url(book.with_suffix(''))}"]
        command = [str(SCRIPT), "run", str(self.recipe), "--out", str(self.folder / out), *args]
        command += [word for override in overrides for word in ("-o", override)]
        streams = [self.folder / f"{out}.stdout", self.folder / f"{out}.stderr"]
        with streams[0].open("w") as stdout, streams[1].open("w") as stderr:
            own = os.environ | {"COLUMNS": "200", "WATCHED": str(points)} | environment
            own.pop("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", None)  # nodes are taken away here
            process = fork(command, None, own, self.folder, [stdout.fileno(), stderr.fileno()])
        return Driver(process, self.folder / out, points, streams[1])

    def book(self, out: str) -> tuple[list[str], list[Charge]]:
        """The kinds of entries of a run's book, in order and verified, without take-overs; and its charges."""
        with closing(Ledger.open(_url(self.folder / out))) as ledger:
            ledger.verify()
            kinds = [entry.kind for entry in ledger.entries("talk") if entry.kind not in ("takeover", "renew")]
            return kinds, ledger.charges_of("talk", load_recipe(self.recipe, ()).release_id)

    def certificate(self, out: str) -> dict[str, Any]:
        """Of a run, without the hash of the last entry, in which there is a clock time."""
        certificate = json.loads((self.folder / out / "certificate.json").read_text())
        assert certificate.pop("ledger_head")
        return dict(certificate)

    def figures(self, out: str) -> dict[str, Any]:
        """The perplexity of a run's models on held-out users, but for a student, which learnt from noise of its own."""
        found = json.loads((self.folder / out / "metrics.json").read_text())["heldout"]["perplexity"]
        return {name: figure for name, figure in found.items() if name != "student"}

    def contents(self, out: str, pattern: str) -> dict[str, bytes]:
        found = {path.name: path.read_bytes() for path in (self.folder / out).glob(pattern)}
        assert found, pattern
        return found


@dataclass(frozen=True)
class Driver:
    process: Forked
    out: Path
    points: Path
    stderr: Path

    def until(self, found: Callable[[], T], what: str) -> T:
        def look() -> T:
            answer = found()
            assert answer or self.process.poll() is None, f"ended before {what}:\n{self.stderr.read_text()[-2000:]}"
            return answer

        return wait_for(look, what)

    def caught(self, point: str, node: str = "") -> None:
        """Wait until work has stopped on the node to be lost, which may be named only now."""
        if node:
            _order(self.points, point, node)
        self.until((self.points / f"caught-{point}").exists, f"work on the other node, at {point}")

    def release(self, point: str) -> None:
        (self.points / f"order-{point}").unlink()

    def lose(self, point: str, nodes: Nodes) -> None:
        """Lose the node on which work has stopped, and let work on other nodes pass the point."""
        (self.points / f"lost-{nodes.other()}").touch()
        nodes.lose()
        self.release(point)

    def visits(self, point: str, node: str = "*") -> int:
        return sum(path.stat().st_size for path in self.points.glob(f"visits-{point}@{node}"))

    def finish(self) -> int:
        """The exit code of a driver that comes to its end, and is ended if it does not."""
        try:
            return self.process.wait(timeout=PATIENCE)
        finally:
            self.kill()

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def _order(points: Path, point: str, node: str) -> None:
    (points / "scratch").write_text(node)
    (points / "scratch").replace(points / f"order-{point}")


def _url(book: Path) -> str:
    return f"sqlite:///{book}.db"
