"""Marked rows go through every command, also failing and killed ones; the marks are found on the private side alone.

Ids, labels and names of files hold `MARK`; so do the rows that make a corpus unreadable. A text holds a mark that no
other text has: what all users say may be learnt, and then it stands in a release by right. Whatever a command leaves
behind is searched: what it printed, every file outside `private/`, the ledger, Ray's session folder, and what Ray's
dashboard and metrics showed at any moment.

How many rows there are is no secret inside the cluster, where Ray counts them; it is searched in all that is outside:
what commands and jobs printed, files that may leave, the ledger, and our own gauges, which alone Prometheus stores. And
a corpus with one user more is told from the one without by nothing that anybody outside sees.
"""

import hashlib
import json
import os
import re
import signal
import subprocess
import urllib.request
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from head_node import METRICS, Head
from node_loss import GENERATOR, SEQPATE
from small_jobs import ledger_lines, run_command, sentence
from small_trees import pairs

from rayprivacy.core.console import repeating
from rayprivacy.corpus.manifest import MANIFEST
from rayprivacy.ledger.store import Ledger
from rayprivacy.runs.directory import MEASURED

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(1800)]

MARK = "zqxjvk"
USERS, SENTENCES = 31, 4
LISTS = [f"/api/v0/{kind}?limit=10000&detail=1" for kind in ("tasks", "actors", "placement_groups")]
PAGES = (*LISTS, "/api/jobs/", "/logical/actors", "/events")
LOOK_SECONDS = 1.5
PROSE = {".md", ".json", ".log", ".yaml", ".txt", ".csv"}  # files that are read by people, or by programs of theirs
INTERNAL = {*MEASURED} - {"report-public.html"}  # figures of private text, which are marked as such
OURS = "ray_rayprivacy_"

Row = dict[str, Any]
Done = subprocess.CompletedProcess[str]


def rows():
    return [_row(user, number) for user in range(USERS) for number in range(SENTENCES)]


def _row(user, number):
    topic = f"{MARK}l{user}" if user % 5 == 0 else ("food", "pets")[number % 2]
    return {"who": f"{MARK}u{user}@home", "text": f"{text_mark(user, number)} {sentence(user, number)}", "topic": topic}


def newcomer():
    """One more user: many rows, some of them empty, blank, long or without a label."""
    texts = ["", "   ", None, f"{MARK}long " * 2000, f"{MARK}\x00zero", *(f"{MARK}n{n} hello" for n in range(200))]
    return [{"who": f"{MARK}newcomer", "text": text, "topic": None} for text in texts]


def text_mark(user, number):
    """Eight letters that this text alone holds; no figure and no digest looks like them."""
    digest = hashlib.sha256(f"{user} {number}".encode()).digest()[:6]
    return "qx" + "".join(chr(ord("a") + byte % 26) for byte in digest)


TEXT_MARKS = {text_mark(user, number) for user in range(USERS) for number in range(SENTENCES)}


def write_corpus(folder, own):
    """A directory of two JSONL files with marked names."""
    folder.mkdir()
    for part in range(2):
        lines = [json.dumps(row) for row in own if sum(row["who"].encode()) % 2 == part]
        (folder / f"{MARK}file-{part}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def broken_corpora(folder):
    """Corpora that cannot be read, by what is wrong with them."""
    good = [json.dumps(row) for row in rows()]
    texts: dict[str, str | bytes] = {
        "no header.csv": f"{MARK}u1,{MARK}t1 hello,{MARK}l1\n{MARK}u2,{MARK}t2 hello,{MARK}l2\n",
        "broken json.jsonl": "\n".join([*good, f'{{"who": "{MARK}u1", "text": "{MARK}t1']) + "\n",
        "a field too many.csv": f"who,text,topic\nu,hello,food\n{MARK}u1,{MARK}t1 hello,food,{MARK}more\n",
        "a list for a text.jsonl": "\n".join([*good, json.dumps({"who": f"{MARK}u", "text": [f"{MARK}t"]})]) + "\n",
        "other keys.jsonl": json.dumps({f"{MARK}column": f"{MARK}t1", "who": f"{MARK}u1"}) + "\n",
        "no user.jsonl": json.dumps({"who": None, "text": f"{MARK}t1 hello", "topic": "food"}) + "\n",
        "no parquet.parquet": f"PAR1{MARK}t1 hello",
        "no table.txt": f"{MARK}t1 hello",
        "not utf-8.csv": f"who,text,topic\n{MARK}u1,{MARK}t1 ".encode() + b"\xff\xfe\n",
    }
    found = {}
    for name, text in texts.items():
        found[name] = place = folder / name.replace(" ", "-").replace(".", "-")
        place.mkdir(exist_ok=True)
        (place / f"{MARK}{name.replace(' ', '-')}").write_bytes(text if isinstance(text, bytes) else text.encode())
    return found


@dataclass
class World:
    """One folder with a corpus, recipes and a ledger, and all that commands have said in it."""

    folder: Path
    head: Head
    base: Path
    said: list[tuple[tuple[str, ...], Done]] = field(default_factory=list)

    def recipe(self, name, corpus, account, **blocks):
        ledger = f"sqlite:///{self.folder}/ledger.db"
        data = {
            "corpus": {"source": str(corpus), "user": "who", "text": "text", "labels": ["topic"], "holdout": 0.2},
            "privacy": {"ledger": ledger, "key": str(self.folder / "secret.key"), "account": account, "epsilon": 3.0},
            "model": {"base": str(self.base), "dtype": "float32"},
            "evaluation": {"completions": 4, "nonprivate_steps": 5},
            "generation": {"texts": 8, "max_tokens": 10},
        }
        (self.folder / name).write_text(yaml.safe_dump({**data, **blocks}))
        return name

    def seqpate(self, corpus, name="seqpate.yaml", account="votes"):
        teachers = SEQPATE["teachers"] | {"count": 8, "stack": 4}
        resources = {"actors": 1, "cpus_per_actor": 0.5, "address": self.head.gcs}
        return self.recipe(name, corpus, account, **SEQPATE | {"teachers": teachers, "resources": resources})

    def generator(self, corpus):
        training = {key: value for key, value in GENERATOR["training"].items() if key != "bands"}
        own = {"training": training, "generation": {"texts": 60, "max_tokens": 10}}
        own["resources"] = {"cpus": 1, "actors": 1, "address": self.head.gcs}
        return self.recipe("generator.yaml", corpus, "steps", **GENERATOR | own)

    def two_stage(self, corpus):
        said, trees = zip(*pairs(2, 40), strict=True)
        pq.write_table(pa.table({"said": said, "lispress": trees}), self.folder / "pairs.parquet")
        return self.recipe(
            "two_stage.yaml",
            corpus,
            "trees",
            method="two_stage",
            parses={"max_tokens": 12},
            parser={"source": str(self.folder / "pairs.parquet"), "text": "said", "steps": 4, "max_tokens": 12},
            stages={"trees": {"steps": 2}, "utterances": {"steps": 2}},
            training={"sampling_rate": 0.4, "expected_batch": 10, "chunk": 2, "max_records": 2, "max_tokens": 12},
            resources={"cpus": 1, "actors": 1, "address": self.head.gcs},
        )

    def space(self, recipe, name, **blocks):
        (self.folder / "public.txt").write_text("hello how are you\nthe weather is nice\n")
        data = {
            "recipe": recipe,
            "search": {"training.clipping_norm": {"loguniform": [0.1, 10.0]}},
            "budget": {"account": name.partition(".")[0], "epsilon": 8.0, "delta": 1e-6},
            "metric": {"name": "public_perplexity", "text": "public.txt"},
        }
        (self.folder / name).write_text(yaml.safe_dump(data | blocks))
        return name

    def call(self, *words, patch=""):
        """Run a command, as a user of this machine would; `patch` is executed first."""
        temporary = self.folder / "tmp"
        temporary.mkdir(exist_ok=True)
        own = {"COLUMNS": "200", "HOME": str(self.folder), "TMPDIR": str(temporary), **METRICS}
        own |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.head.token)}
        done = run_command(words, self.folder, patch, os.environ | own)
        self.said.append((words, done))
        return done

    def outside(self):
        """Every file that is on no private side: not a corpus, nothing below `private/`."""
        for path in sorted(self.folder.rglob("*")):
            parts = path.relative_to(self.folder).parts
            if path.is_file() and parts[0] != "corpora" and "private" not in parts:
                yield path

    def counts(self):
        """How many rows the corpora here have: as they were written, and of each that was sharded what was kept."""
        found = {len(rows()), len([*rows(), *newcomer()])}
        for path in self.folder.rglob(f"private/**/{MANIFEST}"):
            made = json.loads(path.read_text())
            found.add(sum(entry["rows"] for entry in (*made["parts"], *made.get("more", []), made["holdout"])))
        return found

    def shown(self):
        """What commands said and how they ended, without figures and names that differ from run to run."""
        found: list[tuple[Any, ...]] = []
        for words, done in self.said:
            texts = (masked(text.replace(self.folder.name, "")) for text in (done.stdout, done.stderr))
            found.append((words, done.returncode, *texts))
        return found


def masked(text):
    """A text without its numbers, digests and bars."""
    return re.sub("#+", "#", re.sub(r"[-+]?[0-9a-f]{8,}|[-+]?\d+(\.\d+)?(e[-+]?\d+)?|[▏▎▍▌▋▊▉█━╸╺]+", "#", text))


@dataclass
class Watch:
    """What Ray's dashboard and metrics showed: pages by their first line, and every line of the metrics."""

    head: Head
    pages: set[str] = field(default_factory=set)
    lines: set[str] = field(default_factory=set)

    def look(self):
        """Look once; what does not answer shows nothing."""
        for page in (*PAGES, *self._datasets()):
            with suppress(Exception):
                answer = self.head.client()._do_request("GET", page)
                if answer.status_code == 200:
                    self.pages.add(f"{page}\n{answer.text}")
        with suppress(Exception):
            listed = json.loads((self.head.folder / "prom_metrics_service_discovery.json").read_text())
            for target in (target for group in listed for target in group["targets"]):
                with suppress(Exception), urllib.request.urlopen(f"http://{target}/metrics", timeout=5) as page:
                    self.lines.update(page.read().decode().splitlines())

    def _datasets(self):
        """The pages with the datasets of each job that there was, from this process or from another."""
        with suppress(Exception):
            jobs = self.head.client()._do_request("GET", "/api/jobs/").json()
            return [f"/api/data/datasets/{job['job_id']}" for job in jobs if job["job_id"]]
        return []


def marked_places(world, watch):
    """Where a mark is found that should not be there; a few words around it are in the test's own output alone."""
    found = []
    for words, done in world.said:
        found += [f"{' '.join(words)}: {name}" for name in ("stdout", "stderr") if is_marked(getattr(done, name))]
    for path in [*world.outside(), *(path for path in world.head.folder.rglob("*") if path.is_file())]:
        with suppress(FileNotFoundError):
            if is_marked(f"{path.name} {_content(path)}"):
                found.append(str(path))
    found += [page.partition("\n")[0] for page in tuple(watch.pages) if is_marked(page)]
    return found + [line for line in tuple(watch.lines) if is_marked(line)]


def counted_places(world, watch):
    """Where the number of rows stands, by itself, in what may leave: outputs, files, the ledger and our own gauges."""
    counts = "|".join(map(str, world.counts()))
    number = re.compile(rf"(?<![\w.:/#-])({counts})(\.0+)?(?![\w.:/-])")
    found = []
    for words, done in world.said:
        found += [f"{' '.join(words)}: {name}" for name in ("stdout", "stderr") if number.search(getattr(done, name))]
    found += [str(path) for path in world.outside() if _may_leave(path) and number.search(_prose(path))]
    if (world.folder / "ledger.db").exists():
        with closing(Ledger.open(f"sqlite:///{world.folder}/ledger.db")) as ledger:
            book = [entry for account in ledger.accounts() for entry in ledger.entries(account.name)]
        found += [f"entry {entry.seq} of {entry.account}" for entry in book if number.search(str(entry))]
    return found + [line for line in tuple(watch.lines) if OURS in line and number.search(line.rpartition(" ")[2])]


def _may_leave(path):
    """Whether a file is for people to read; others hold tokens by their numbers, or figures that are marked private."""
    return path.suffix in (*PROSE, ".html") and path.name not in INTERNAL and not {"model", "public"} & {*path.parts}


def _prose(path):
    """What a file says; of a page without the places of what it draws."""
    return re.sub("<[^>]*>", " ", path.read_text()) if path.suffix == ".html" else path.read_text()


def is_marked(text):
    """Whether a text holds the mark of all private things, or that of one text."""
    text = text.lower()
    return MARK in text or any(text[at.start() : at.start() + 8] in TEXT_MARKS for at in re.finditer("qx", text))


def _content(path):
    """All bytes of a file as characters; those of a table also as they were before they were packed."""
    packed = path.read_bytes().decode("latin-1")
    return packed + str(pq.read_table(path).to_pylist()) if path.suffix == ".parquet" else packed


DIES_DRAWING = """
from rayprivacy.release.votes import VoteMechanism
def draw(self, sums):
    os.kill(os.getpid(), signal.SIGKILL)
VoteMechanism.draw = draw
"""
# Ray exports metrics every few seconds where it is busy, and this step alone would take less.
LINGERS = """
import time
from rayprivacy.release.votes import VoteMechanism
REAL = VoteMechanism.draw
def draw(self, sums):
    time.sleep(8)
    return REAL(self, sums)
VoteMechanism.draw = draw
"""


@pytest.fixture(scope="module")
def watch(head):
    """Looks again and again, until the end."""
    found = Watch(head)
    with repeating(LOOK_SECONDS, found.look):
        yield found


def _world(folder, head, base, more):
    folder.mkdir()
    (folder / "corpora").mkdir()
    write_corpus(folder / "corpora" / "talk", [*rows(), *more])
    return World(folder, head, base)


def _killed_and_resumed(world):
    recipe = world.seqpate(world.folder / "corpora" / "talk")
    world.call("plan", recipe)
    killed = world.call("run", recipe, "--out", "out", patch=DIES_DRAWING)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    resumed = world.call("run", recipe, "--out", "out", "--resume", patch=LINGERS)
    assert resumed.returncode == 0, (resumed.stdout[-2000:], resumed.stderr[-2000:])
    _call(world, "report", "out", "--public")


def _everything_else(world):
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


def _unreadable(world, some):
    for name, corpus in list(broken_corpora(world.folder / "corpora").items())[some]:
        recipe = world.seqpate(corpus, f"{corpus.name}.yaml", account="broken")
        done = world.call("run", recipe, "--out", f"out-{corpus.name}")
        assert done.returncode == 2, (name, done.stderr)


def _call(world, *words):
    done = world.call(*words)
    assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-2000:])


@pytest.fixture(scope="module")
def world(tmp_path_factory, head, tiny_base, watch):
    """A killed run that was resumed, and the mistake that is made most."""
    world = _world(tmp_path_factory.mktemp("marks") / "world-1", head, tiny_base, newcomer())
    _killed_and_resumed(world)
    _unreadable(world, slice(1))
    return world


def test_the_search_finds_a_mark_wherever_it_lies(head, watch, tmp_path, tiny_base):
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


def test_the_search_finds_a_count_of_records(head, tmp_path, tiny_base):
    planted, count = World(tmp_path, head, tiny_base), len(rows())
    inside = {f'ray_data_output_rows{{dataset="a"}} {count}.0', f'ray_rayprivacy_progress{{what="b"}} {count + 1}.0'}
    _write_manifest(tmp_path / "out" / "private" / "shards", count)
    (tmp_path / "certificate.json").write_text(f'{{"digest": "0a{count}", "epsilon": 0.{count}, "seconds": {count}.5}}')
    assert counted_places(planted, Watch(head, lines=inside)) == []
    (tmp_path / "run.log").write_text(f"sharding: {count} rows")
    (tmp_path / "certificate.md").write_text(f"| rows | {count}.0 |")
    planted.said.append((("plan",), Done((), 0, "", f"({count})")))
    gauge = f'ray_rayprivacy_progress{{what="b"}} {count}.0'
    found = counted_places(planted, Watch(head, lines={*inside, gauge}))
    assert set(found) == {str(tmp_path / "run.log"), str(tmp_path / "certificate.md"), "plan: stderr", gauge}


def _write_manifest(folder, count):
    folder.mkdir(parents=True)
    (folder / MANIFEST).write_text(json.dumps({"parts": [{"rows": count - 10}], "holdout": {"rows": 10}}))


def test_no_mark_and_no_count_of_records_is_outside(world, watch):
    assert marked_places(world, watch) == []
    assert {"run.log", "certificate.json", "ledger.db", "report.html"} <= {path.name for path in world.outside()}
    assert any("account_epsilon_spent" in line for line in tuple(watch.lines)), "nobody looked at the metrics"
    assert any("LedgerService" in page for page in tuple(watch.pages)), "nobody looked at the dashboard"
    looked = {page.partition("\n")[0] for page in tuple(watch.pages) if page.startswith("/api/data/datasets/")}
    assert len(looked) > 1, "nobody looked at the datasets of the killed run and of the resumed one"
    assert len(world.counts()) > 1, "nothing was counted"
    assert counted_places(world, watch) == []
    _check_sentences(world, 1)


def test_the_run_that_was_killed_at_its_draw_paid_once(world):
    assert [state for *_, state in ledger_lines(world.folder, "votes")] == ["committed"]


@pytest.mark.exhaustive
def test_no_command_and_no_corpus_leaves_a_mark_outside(world, watch):
    _everything_else(world)
    _call(world, "run", world.two_stage(world.folder / "corpora" / "talk"), "--out", "trees")
    _unreadable(world, slice(1, None))
    assert marked_places(world, watch) == []
    assert counted_places(world, watch) == []
    _check_sentences(world, 9)


@pytest.mark.exhaustive
def test_one_user_more_is_seen_by_nobody(world, head, tiny_base, watch):
    """What commands say and how they end, which files they leave, and the book: equal but for figures and digests."""
    without = _world(world.folder.with_name("world-0"), head, tiny_base, [])
    _killed_and_resumed(without)
    count = len(without.said)
    assert without.shown() == world.shown()[:count]
    assert _files(without, "out") == _files(world, "out")
    assert _book(without, "votes") == _book(world, "votes")


def _files(world, folder):
    """Files outside of one run, those that are to be read by people with their figures masked."""
    root, found = world.folder / folder, {}
    for path in world.outside():
        if path.is_relative_to(root) and path.name not in MEASURED:
            text = path.read_text() if path.suffix in PROSE else ""
            found[masked(str(path.relative_to(root)))] = masked(text)
    return found


def _book(world, account):
    with closing(Ledger.open(f"sqlite:///{world.folder}/ledger.db")) as ledger:
        ledger.verify()
        entries = [entry for entry in ledger.entries(account) if entry.kind != "renew"]
    return [(entry.kind, entry.rung, entry.events, entry.balance) for entry in entries]


def _check_sentences(world, count):
    failed = [(words, done) for words, done in world.said if done.returncode == 2]
    assert len(failed) == count
    for words, done in failed:
        told = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("opened a new")]
        assert len(told) == 1, (words, told)
        assert told[0].startswith("rayprivacy: "), (words, told)
