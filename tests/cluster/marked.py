"""A corpus in which every private thing carries a mark, the commands that meet it, and a search for the marks.

Ids, labels and names of files hold `MARK`; so do the rows that make a corpus unreadable. A text holds a mark that no
other text has: what all users say may be learnt, and then it stands in a release by right. Whatever a command leaves
behind is searched: what it printed, every file outside `private/`, the ledger, Ray's session folder, and what Ray's
dashboard and metrics showed at any moment.
"""

import hashlib
import json
import os
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from head_node import METRICS, Head
from node_loss import GENERATOR, SEQPATE
from small_jobs import run_command, sentence
from small_trees import pairs

from rayprivacy.core.console import repeating

MARK = "zqxjvk"
USERS, SENTENCES = 31, 4
LISTS = [f"/api/v0/{kind}?limit=10000&detail=1" for kind in ("tasks", "actors", "placement_groups")]
PAGES = (*LISTS, "/api/jobs/", "/logical/actors", "/events")
LOOK_SECONDS = 1.5

Row = dict[str, Any]
Done = subprocess.CompletedProcess[str]


def rows() -> list[Row]:
    return [_row(user, number) for user in range(USERS) for number in range(SENTENCES)]


def _row(user: int, number: int) -> Row:
    topic = f"{MARK}l{user}" if user % 5 == 0 else ("food", "pets")[number % 2]
    return {"who": f"{MARK}u{user}@home", "text": f"{text_mark(user, number)} {sentence(user, number)}", "topic": topic}


def newcomer() -> list[Row]:
    """One more user: many rows, some of them empty, blank, long or without a label."""
    texts = ["", "   ", None, f"{MARK}long " * 2000, f"{MARK}\x00zero", *(f"{MARK}n{n} hello" for n in range(200))]
    return [{"who": f"{MARK}newcomer", "text": text, "topic": None} for text in texts]


def text_mark(user: int, number: int) -> str:
    """Eight letters that this text alone holds; no figure and no digest looks like them."""
    digest = hashlib.sha256(f"{user} {number}".encode()).digest()[:6]
    return "qx" + "".join(chr(ord("a") + byte % 26) for byte in digest)


TEXT_MARKS = {text_mark(user, number) for user in range(USERS) for number in range(SENTENCES)}


def write_corpus(folder: Path, own: list[Row]) -> Path:
    """A directory of two JSONL files with marked names."""
    folder.mkdir()
    for part in range(2):
        lines = [json.dumps(row) for row in own if sum(row["who"].encode()) % 2 == part]
        (folder / f"{MARK}file-{part}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def broken_corpora(folder: Path) -> dict[str, Path]:
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

    def recipe(self, name: str, corpus: Path, account: str, **blocks: Any) -> str:
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

    def seqpate(self, corpus: Path, name: str = "seqpate.yaml", account: str = "votes") -> str:
        teachers = SEQPATE["teachers"] | {"count": 8, "stack": 4}
        resources = {"actors": 1, "cpus_per_actor": 0.5, "address": self.head.gcs}
        return self.recipe(name, corpus, account, **SEQPATE | {"teachers": teachers, "resources": resources})

    def generator(self, corpus: Path) -> str:
        training = {key: value for key, value in GENERATOR["training"].items() if key != "bands"}
        own = {"training": training, "generation": {"texts": 60, "max_tokens": 10}}
        own["resources"] = {"cpus": 1, "actors": 1, "address": self.head.gcs}
        return self.recipe("generator.yaml", corpus, "steps", **GENERATOR | own)

    def two_stage(self, corpus: Path) -> str:
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

    def space(self, recipe: str, name: str, **blocks: Any) -> str:
        (self.folder / "public.txt").write_text("hello how are you\nthe weather is nice\n")
        data = {
            "recipe": recipe,
            "search": {"training.clipping_norm": {"loguniform": [0.1, 10.0]}},
            "budget": {"account": name.partition(".")[0], "epsilon": 8.0, "delta": 1e-6},
            "metric": {"name": "public_perplexity", "text": "public.txt"},
        }
        (self.folder / name).write_text(yaml.safe_dump(data | blocks))
        return name

    def call(self, *words: str, patch: str = "") -> Done:
        """Run a command, as a user of this machine would; `patch` is executed first."""
        temporary = self.folder / "tmp"
        temporary.mkdir(exist_ok=True)
        own = {"COLUMNS": "200", "HOME": str(self.folder), "TMPDIR": str(temporary), **METRICS}
        own |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.head.token)}
        done = run_command(words, self.folder, patch, os.environ | own)
        self.said.append((words, done))
        return done

    def outside(self) -> Iterator[Path]:
        """Every file that is on no private side: not a corpus, nothing below `private/`."""
        for path in sorted(self.folder.rglob("*")):
            parts = path.relative_to(self.folder).parts
            if path.is_file() and parts[0] != "corpora" and "private" not in parts:
                yield path

    def shown(self) -> list[tuple[Any, ...]]:
        """What commands said and how they ended, without figures and names that differ from run to run."""
        found: list[tuple[Any, ...]] = []
        for words, done in self.said:
            texts = (masked(text.replace(self.folder.name, "")) for text in (done.stdout, done.stderr))
            found.append((words, done.returncode, *texts))
        return found


def masked(text: str) -> str:
    """A text without its numbers, digests and bars."""
    return re.sub("#+", "#", re.sub(r"[-+]?[0-9a-f]{8,}|[-+]?\d+(\.\d+)?(e[-+]?\d+)?|[▏▎▍▌▋▊▉█━╸╺]+", "#", text))


@dataclass
class Watch:
    """What Ray's dashboard and metrics showed: pages by their first line, and every line of the metrics."""

    head: Head
    pages: set[str] = field(default_factory=set)
    lines: set[str] = field(default_factory=set)

    def look(self) -> None:
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

    def _datasets(self) -> list[str]:
        """The pages with the datasets of each job that there was, from this process or from another."""
        with suppress(Exception):
            jobs = self.head.client()._do_request("GET", "/api/jobs/").json()
            return [f"/api/data/datasets/{job['job_id']}" for job in jobs if job["job_id"]]
        return []


@contextmanager
def watching(head: Head) -> Iterator[Watch]:
    watch = Watch(head)
    with repeating(LOOK_SECONDS, watch.look):
        yield watch
    watch.look()


def marked_places(world: World, watch: Watch) -> list[str]:
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


def is_marked(text: str) -> bool:
    """Whether a text holds the mark of all private things, or that of one text."""
    text = text.lower()
    return MARK in text or any(text[at.start() : at.start() + 8] in TEXT_MARKS for at in re.finditer("qx", text))


def _content(path: Path) -> str:
    """All bytes of a file as characters; those of a table also as they were before they were packed."""
    packed = path.read_bytes().decode("latin-1")
    return packed + str(pq.read_table(path).to_pylist()) if path.suffix == ".parquet" else packed
