"""Small recipes on the tiny model, with the command line to run them: in this process, or in one that may be killed."""

import hashlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from commands import command
from zygote import fork_command

from rayprivacy.ledger.store import Ledger

WORDS = "the cat sat on my mat and you like soup with bread today so we go home now".split()  # noqa: SIM905
USERS, SENTENCES = 30, 4


def sentence(user: int, number: int) -> str:
    return " ".join(WORDS[(user * 7 + number * 3 + place * (user % 5 + 1)) % len(WORDS)] for place in range(9))


def write_talk(path: Path, name: str = "user") -> None:
    """A corpus: all sentences of all users, in the columns `who` and `said`."""
    rows = [{"who": f"{name}-{u}", "said": sentence(u, n)} for u in range(USERS) for n in range(SENTENCES)]
    pq.write_table(pa.Table.from_pylist(rows), path)


def known_key(folder: Path) -> str:
    """Make the key file of a small corpus, always with the same key, and return its path.

    One in 800 random keys holds out none of 30 users, which audits refuse.
    """
    path = folder / "secret.key"
    path.write_bytes(hashlib.sha256(b"some users are held out").digest())
    path.chmod(0o600)
    return str(path)


def small_privacy(folder: Path, ledger: str = "ledger") -> dict[str, Any]:
    return {"ledger": f"sqlite:///{folder}/{ledger}.db", "key": known_key(folder), "account": "talk"}


def small_corpus_block(folder: Path) -> dict[str, Any]:
    return {"source": str(folder / "talk.parquet"), "user": "who", "text": "said", "holdout": 0.2}


def ledger_lines(folder: Path, account: str = "talk") -> list[tuple[str, int, str]]:
    """Release, rung and state of every charge of an account in the ledger of a folder, which is verified."""
    if not (folder / "ledger.db").exists():
        return []
    with Ledger.open(f"sqlite:///{folder}/ledger.db") as ledger:
        ledger.verify()
        known = account in {each.name for each in ledger.accounts()}
        return [(line.release_id, line.rung, line.state) for line in (ledger.lines(account) if known else ())]


def joining() -> list[str]:
    import ray

    return ["-o", f"resources.address={ray.get_runtime_context().gcs_address}"]


def on_this_ray() -> str:
    """Source for a command that has no address: it joins this Ray, which lives on as a cluster does."""
    import ray

    return f"import ray\nray.init(address={ray.get_runtime_context().gcs_address!r}, log_to_driver=False)\n"


def run_command(
    words: Sequence[str], cwd: Path, patch: str = "", env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """`rayprivacy` in a process of its own, which is ended with all that it started."""
    process = fork_command(words, cwd, patch, env or os.environ | {"COLUMNS": "200"})
    try:
        code = process.wait(timeout=600)  # the test's own timeout comes first
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(words, code, *((cwd / name).read_text() for name in ("stdout", "stderr")))


@dataclass(frozen=True)
class Job:
    """A small recipe on the tiny model, and the command line to run it."""

    folder: Path
    recipe: Path

    @classmethod
    def of(cls, folder: Path, recipe: dict[str, Any]) -> "Job":
        path = folder / "talk.yaml"
        path.write_text(yaml.safe_dump(recipe))
        return cls(folder, path)

    def run(self, out: str, *args: str) -> subprocess.CompletedProcess[str]:
        """`rayprivacy run`, in this process and on its Ray."""
        return self.call(*self._run(out, *args))

    def killed(self, out: str, patch: str, *args: str, alone: bool = False) -> subprocess.CompletedProcess[str]:
        """The same in a process of its own, with `patch` executed first: it kills where it says.

        Ray lives on, as it does on a cluster, unless the process shall start one for itself `alone`.
        """
        words = [*self._run(out, *args), *([] if alone else joining())]
        return run_command(words, self.folder, patch)

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        return command(words, self.folder)

    def _run(self, out: str, *args: str) -> list[str]:
        place = out if "://" in out else str(self.folder / out)
        return ["run", str(self.recipe), "--out", place, *args]

    def certificate(self, out: str) -> dict[str, Any]:
        return dict(json.loads((self.folder / out / "certificate.json").read_text()))

    def metrics(self, out: str) -> dict[str, Any]:
        return dict(json.loads((self.folder / out / "metrics.json").read_text()))

    def kinds(self, account: str = "talk") -> list[str]:
        """What the verified ledger has of an account, but for leases that others took over or that were renewed;
        nothing of an account that is not open yet."""
        with Ledger.open(f"sqlite:///{self.folder}/ledger.db") as ledger:
            ledger.verify()
            if account not in [each.name for each in ledger.accounts()]:
                return []
            return [entry.kind for entry in ledger.entries(account) if entry.kind not in ("takeover", "renew")]


def job_of(folder: Path, base: Path, **blocks: Any) -> Job:
    """A job on the corpus `talk.parquet` of a folder, with ledger and key there; blocks add keys to the usual ones."""
    usual: dict[str, dict[str, Any]] = {
        "corpus": small_corpus_block(folder),
        "privacy": small_privacy(folder),
        "model": {"base": str(base), "dtype": "float32"},
    }
    more = {name: usual.get(name, {}) | block if isinstance(block, dict) else block for name, block in blocks.items()}
    return Job.of(folder, json.loads(json.dumps(usual | more)))


def write_profile(path: Path, *words: str, tokens_of: str = "smollm2-135m", **numbers: Any) -> str:
    """What plans and runs read of a profile that released these words."""
    names = ("users", "max_records_per_user", "max_tokens")
    suggested = {name: numbers.get(name, [40, [30, 50]]) for name in names}
    content = {
        "release_id": "profile-0123456789abcdef",
        "tokens_of": tokens_of,
        "suggested": {name: {"value": value, "interval": ends} for name, (value, ends) in suggested.items()},
        "words": [{"word": word, "users": {"value": 30, "interval": [20, 40]}} for word in words],
    }
    path.write_text(json.dumps(content))
    return str(path)
