"""Marked rows go through every command, also failing and killed ones; the marks are found on the private side alone.

And a corpus with one user more is told from the one without by nothing that anybody outside sees.
"""

import re
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from head_node import Head
from marked import (
    MARK,
    Watch,
    World,
    broken_corpora,
    marked_places,
    masked,
    newcomer,
    rows,
    text_mark,
    watching,
    write_corpus,
)

from rayprivacy.ledger.store import Ledger
from rayprivacy.runs.directory import MEASURED

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(1800)]

DIES_DRAWING = """
from rayprivacy.release.votes import VoteMechanism
def draw(self, sums):
    os.kill(os.getpid(), signal.SIGKILL)
VoteMechanism.draw = draw
"""
# Ray counts how often this test asks for datasets, and how often it asks after jobs itself: that follows the clock.
BY_TIME = ("_StatsActor.get_datasets", "JobSupervisor.ping")
# Ray exports metrics every second here, and this step alone would take less.
LINGERS = """
import time
from rayprivacy.release.votes import VoteMechanism
REAL = VoteMechanism.draw
def draw(self, sums):
    time.sleep(2)
    return REAL(self, sums)
VoteMechanism.draw = draw
"""


@pytest.fixture(scope="module")
def watch(head: Head) -> Iterator[Watch]:
    with watching(head) as found:
        yield found


def _world(folder: Path, head: Head, base: Path, more: list[dict[str, Any]]) -> World:
    folder.mkdir()
    (folder / "corpora").mkdir()
    write_corpus(folder / "corpora" / "talk", [*rows(), *more])
    return World(folder, head, base)


def _killed_and_resumed(world: World) -> None:
    recipe = world.seqpate(world.folder / "corpora" / "talk")
    world.call("plan", recipe)
    killed = world.call("run", recipe, "--out", "out", patch=DIES_DRAWING)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    resumed = world.call("run", recipe, "--out", "out", "--resume", patch=LINGERS)
    assert resumed.returncode == 0, (resumed.stdout[-2000:], resumed.stderr[-2000:])
    _call(world, "report", "out", "--public")


def _everything_else(world: World) -> None:
    """The other method, attacks, searches, jobs, and what is left of a run when it is cleaned."""
    talk = world.folder / "corpora" / "talk"
    generator = world.generator(talk)
    _call(world, "audit", "out", "--users", "8")
    _call(world, "run", generator, "--out", "steps")
    _call(world, "audit", "steps", "--users", "8")
    files = ("--real", str(talk), "--synthetic", "steps/synthetic.parquet", "--user", "who")
    _call(world, "evaluate", *files, "--out", "evaluation")
    _call(world, "tune", world.space(generator, "pay.yaml", trials=2), "--out", "paid")
    select = {"charging": "select", "searcher": "random", "select": {"mean": 2.0}}
    _call(world, "tune", world.space(generator, "select.yaml", **select), "--out", "selected")
    submitted = world.seqpate(talk, "job.yaml", account="job")
    where = ("--address", world.head.address, "--token-file", str(world.head.token))
    _call(world, "submit", submitted, *where, "--out", str(world.folder / "job"), "--wait")
    ledger = f"sqlite:///{world.folder}/ledger.db"
    _call(world, "ledger", "verify", "--ledger", ledger)
    _call(world, "ledger", "export", "--ledger", ledger, "--out", "exported")
    _call(world, "clean", "out")


def _unreadable(world: World, some: slice) -> None:
    for name, corpus in list(broken_corpora(world.folder / "corpora").items())[some]:
        recipe = world.seqpate(corpus, f"{corpus.name}.yaml", account="broken")
        done = world.call("run", recipe, "--out", f"out-{corpus.name}")
        assert done.returncode == 2, (name, done.stderr)


def _call(world: World, *words: str) -> None:
    done = world.call(*words)
    assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-2000:])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, head: Head, tiny_base: Path, watch: Watch) -> World:
    """A killed run that was resumed, and the mistake that is made most."""
    world = _world(tmp_path_factory.mktemp("marks") / "world-1", head, tiny_base, newcomer())
    _killed_and_resumed(world)
    _unreadable(world, slice(1))
    return world


def test_the_search_finds_a_mark_wherever_it_lies(head: Head, watch: Watch, tmp_path: Path, tiny_base: Path) -> None:
    planted = World(tmp_path, head, tiny_base)
    assert marked_places(planted, Watch(head)) == []
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "rows").write_text(MARK)
    assert marked_places(planted, Watch(head)) == []
    (tmp_path / "metrics.json").write_text(MARK.upper())
    pq.write_table(pa.table({"text": ["hello", f"and {text_mark(3, 1)}"]}), tmp_path / "synthetic.parquet")
    planted.call("plan", f"{MARK}.yaml")
    shown = Watch(head, pages={f"/api/jobs/\n{MARK}"}, lines={f'ray_data_rows{{operator="{MARK}"}} 413'})
    log = head.folder / "planted.log"
    log.write_text(f"a worker said {MARK}")
    found = marked_places(planted, shown)
    log.unlink()
    expected = {f"plan {MARK}.yaml: stderr", "/api/jobs/", *shown.lines}
    assert set(found) == expected | {
        str(place) for place in (tmp_path / "metrics.json", tmp_path / "synthetic.parquet", tmp_path / "stderr", log)
    }


def test_the_search_finds_a_count_of_records(head: Head) -> None:
    count = len([*rows(), *newcomer()])
    _check_counts(Watch(head, lines={f'ray_tasks{{Name="_task"}} {count - 1}.0'}))
    with pytest.raises(AssertionError):
        _check_counts(Watch(head, lines={f'ray_tasks{{Name="_task"}} {count + 2}.0'}))


def test_no_mark_and_no_count_of_records_is_outside(world: World, watch: Watch) -> None:
    assert marked_places(world, watch) == []
    assert {"run.log", "certificate.json", "ledger.db", "report.html"} <= {path.name for path in world.outside()}
    assert any("account_epsilon_spent" in line for line in tuple(watch.lines)), "nobody looked at the metrics"
    assert any("LedgerService" in page for page in tuple(watch.pages)), "nobody looked at the dashboard"
    looked = {page.partition("\n")[0] for page in tuple(watch.pages) if page.startswith("/api/data/datasets/")}
    assert len(looked) > 1, "nobody looked at the datasets of the killed run and of the resumed one"
    _check_counts(watch)
    _check_sentences(world, 1)


@pytest.mark.exhaustive
def test_no_command_and_no_corpus_leaves_a_mark_outside(world: World, watch: Watch) -> None:
    _everything_else(world)
    _call(world, "run", world.two_stage(world.folder / "corpora" / "talk"), "--out", "trees")
    _unreadable(world, slice(1, None))
    assert marked_places(world, watch) == []
    _check_counts(watch)
    _check_sentences(world, 9)


@pytest.mark.exhaustive
def test_one_user_more_is_seen_by_nobody(world: World, head: Head, tiny_base: Path, watch: Watch) -> None:
    """What commands say and how they end, which files they leave, and the book: equal but for figures and digests."""
    without = _world(world.folder.with_name("world-0"), head, tiny_base, [])
    _killed_and_resumed(without)
    count = len(without.said)
    assert without.shown() == world.shown()[:count]
    assert _files(without, "out") == _files(world, "out")
    assert _book(without, "votes") == _book(world, "votes")


def _files(world: World, folder: str) -> dict[str, str]:
    """Files outside of one run, those that are to be read by people with their figures masked."""
    root, prose, found = world.folder / folder, {".md", ".json", ".log", ".yaml"}, {}
    for path in world.outside():
        if path.is_relative_to(root) and path.name not in MEASURED:
            text = path.read_text() if path.suffix in prose else ""
            found[masked(str(path.relative_to(root)))] = masked(text)
    return found


def _book(world: World, account: str) -> list[tuple[str, int, str, str]]:
    with closing(Ledger.open(f"sqlite:///{world.folder}/ledger.db")) as ledger:
        ledger.verify()
        entries = [entry for entry in ledger.entries(account) if entry.kind != "renew"]
    return [(entry.kind, entry.rung, entry.events, entry.balance) for entry in entries]


def _check_sentences(world: World, count: int) -> None:
    failed = [(words, done) for words, done in world.said if done.returncode == 2]
    assert len(failed) == count
    for words, done in failed:
        told = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("opened a new")]
        assert len(told) == 1, (words, told)
        assert told[0].startswith("rayprivacy: "), (words, told)


def _check_counts(watch: Watch) -> None:
    """The number of rows, and a few more for what Ray puts beside them."""
    count = len([*rows(), *newcomer()])
    shown = [line for line in tuple(watch.lines) if line.startswith(("ray_data", "ray_tasks"))]
    own = [line for line in shown if not any(f'Name="{name}"' in line for name in BY_TIME)]
    assert own, "nothing was seen of Ray's tasks"
    figures = {f"{count + more:.1f}" for more in range(9)}
    assert [line for line in own if line.rpartition(" ")[2] in figures] == []
    assert not [page for page in tuple(watch.pages) if re.search(rf'"total_rows": ?{count}\b', page)]
