import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

WORDS = """the cat sat on my mat and you like soup with bread today so we go home now""".split()  # noqa: SIM905
USERS, SENTENCES = 30, 4


def sentence(user: int, number: int) -> str:
    return " ".join(WORDS[(user * 7 + number * 3 + place * (user % 5 + 1)) % len(WORDS)] for place in range(9))


@dataclass(frozen=True)
class Job:
    """A small recipe on the tiny model, and the command line to run it."""

    folder: Path
    recipe: Path

    def command(self, verb: str, *args: str) -> list[str]:
        return [sys.executable, "-m", "rayprivacy.cli", verb, str(self.recipe), *args]

    def run(self, out: str, *args: str) -> subprocess.CompletedProcess[str]:
        return self.call(self.command("run", "--out", str(self.folder / out), *args))

    def killed(self, out: str, patch: str, *args: str) -> subprocess.CompletedProcess[str]:
        """Run with `patch` executed first: it makes the process kill itself at a chosen instruction."""
        argv = ["rayprivacy", "run", str(self.recipe), "--out", str(self.folder / out), *args]
        code = f"import os, signal, sys\nsys.argv = {argv!r}\n{patch}\nfrom rayprivacy.cli import main\nmain()\n"
        return self.call([sys.executable, "-c", code])

    def call(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        # Output goes to files: what Ray leaves behind for a moment after SIGKILL would hold a pipe open.
        streams = [self.folder / "stdout", self.folder / "stderr"]
        with streams[0].open("w") as out, streams[1].open("w") as err:
            environment = os.environ | {"COLUMNS": "200"}
            process = subprocess.Popen(
                command, stdout=out, stderr=err, cwd=self.folder, env=environment, start_new_session=True
            )
            try:
                code = process.wait(timeout=600)  # the test's own timeout comes first
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        return subprocess.CompletedProcess(command, code, *(stream.read_text() for stream in streams))

    def certificate(self, out: str) -> dict[str, Any]:
        return dict(json.loads((self.folder / out / "certificate.json").read_text()))


@pytest.fixture
def job(tmp_path: Path, tiny_base: Path) -> Job:
    """30 users with 4 sentences each, 12 teachers in stacks of 4, 40 queries."""
    return _small_job(tmp_path, tiny_base)


@pytest.fixture(scope="module")
def shared_job(tmp_path_factory: pytest.TempPathFactory, tiny_base: Path) -> Job:
    """The same, for all tests of a file: a run costs a quarter of a minute."""
    return _small_job(tmp_path_factory.mktemp("job"), tiny_base)


def _small_job(folder: Path, base: Path) -> Job:
    rows = [(f"user-{u}", sentence(u, n)) for u in range(USERS) for n in range(SENTENCES)]
    table = pa.table({"who": [user for user, _ in rows], "said": [text for _, text in rows]})
    pq.write_table(table, folder / "talk.parquet")
    recipe = {
        "corpus": {"source": str(folder / "talk.parquet"), "user": "who", "text": "said", "holdout": 0.2},
        "privacy": {
            "ledger": f"sqlite:///{folder}/ledger.db",
            "key": str(folder / "secret.key"),
            "account": "talk",
        },
        "model": {"base": str(base), "dtype": "float32"},
        "pseudo": {"texts": 24, "max_tokens": 12},
        "teachers": {"count": 12, "stack": 4, "rank": 16, "shortlist": 128, "row_tokens": 64, "max_steps": 3},
        "votes": {"queries": 40, "top_k": 10},
        "student": {"rank_in": 8, "rank_out": 8, "steps": 5, "warm_steps": 5},
        "generation": {"texts": 8, "max_tokens": 10},
        "evaluation": {"completions": 4, "nonprivate_steps": 5},
        "resources": {"actors": 1, "cpus_per_actor": 0.5},  # each actor imports torch
    }
    path = folder / "talk.yaml"
    path.write_text(yaml.safe_dump(recipe))
    return Job(folder, path)


@pytest.fixture
def generator(job: Job) -> Job:
    """DP-SGD on the same users: 6 steps in chunks of 2, with two label values of three."""
    table = pq.read_table(job.folder / "talk.parquet")
    topics = pa.array([("food", "pets", "home")[n % 3] for n in range(len(table))])
    pq.write_table(table.append_column("topic", topics), job.folder / "talk.parquet")
    recipe = yaml.safe_load(job.recipe.read_text())
    for block in ("pseudo", "teachers", "votes", "student", "resources"):
        del recipe[block]
    recipe["method"] = "generator"
    recipe["corpus"]["labels"] = ["topic"]
    recipe["codes"] = {"values": {"topic": ["food", "pets"]}}
    recipe["training"] = {
        "sampling_rate": 0.4,
        "expected_batch": 10,
        "steps": 6,
        "chunk": 2,
        "max_records": 2,
        "max_tokens": 12,
    }
    recipe["generation"] = {"texts": 12, "max_tokens": 10}
    recipe["resources"] = {"cpus": 1, "actors": 1}
    job.recipe.write_text(yaml.safe_dump(recipe))
    return job
