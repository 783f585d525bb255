"""One small run of every method with all randomness known: what it releases, charges and certifies, as one JSON file.

    python -m tests.support.pins BEFORE.json                              # at one commit
    python -m tests.support.pins AFTER.json --compare BEFORE.json         # at another, on the same machine

The second prints what differs and exits with 1 if anything does; `--methods toy,seqpate` runs fewer. The keys are
fixed, the ledger's clock stands still when an account is opened (its first entry names the streams of noise), and the
noise of the gate, which has no seed, is replaced by one that has. What varies by itself is left out.
"""

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

# It is run from the root of a checkout, and so are Ray's workers.
os.environ.update(OMP_NUM_THREADS="1", PYTHONPATH=os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")]))
sys.path.extend(map(os.path.abspath, ("tests", "tests/support")))

import numpy as np
import pyarrow.parquet as pq
import torch
from conftest import PUBLIC_SENTENCES
from every_method import small_corpus, smallest_recipe
from safetensors.torch import load_file
from small_tagger import save_tiny_bert, save_tiny_llama
from toy_bench import QUIET

import rayprivacy as rp
from rayprivacy.ledger import opening
from rayprivacy.release import noise

# Always the same one: where a base model lies is part of the name of a release.
FOLDER = Path(tempfile.gettempdir()) / "rayprivacy-pins"
METHODS = (
    "toy",
    "seqpate",
    "generator",
    "two_stage",
    "edp_sgd",
    "domain_private",
    "santext",
    "question_answering",
    "knowledge",
    "profile",
)
USERS = [f"user-{number}" for number in range(12)]
NOT_RELEASED = ("private", "metrics.json", "report.html", "plots", "run.log", "audit", "certificate.md", "ledger_head")
VARYING = ("ledger_head", "versions")  # of a certificate
BY_TIME = ("renew", "takeover")  # entries of the ledger


class _Still(datetime):
    @classmethod
    def now(cls, tz: Any = UTC) -> "_Still":
        return cls(2026, 1, 1, tzinfo=tz)


@contextmanager
def known_randomness() -> Iterator[None]:
    dice = np.random.default_rng(7)

    def drawn(family: Any) -> Any:
        return lambda signal, scale: signal + np.rint(family(0, scale, signal.shape)).astype(np.int64)

    with (
        patch.object(opening, "datetime", _Still),
        patch.object(noise, "add_discrete_gaussian", drawn(dice.normal)),
        patch.object(noise, "add_discrete_laplace", drawn(dice.laplace)),
    ):
        yield


def pinned(method: str) -> dict[str, Any]:
    """What a run of a method releases, charges and certifies, with tiny models."""
    small_corpus(FOLDER, USERS)
    recipe = smallest_recipe(method, FOLDER, FOLDER / "llama", FOLDER / "bert", method)
    with known_randomness():
        out = rp.run(recipe, FOLDER / method, console=QUIET).path
    certificate = json.loads((out / "certificate.json").read_text())
    files = [path for path in sorted(out.rglob("*")) if path.relative_to(out).parts[0] not in NOT_RELEASED]
    with rp.Ledger.open(recipe.privacy.ledger) as ledger:
        book = [entry for account in ledger.accounts() for entry in ledger.entries(account.name)]
    charges = [
        [each.kind, each.account, each.release_id, each.rung, each.input_digest, each.events, each.cost, each.balance]
        for each in book
        if each.kind not in BY_TIME
    ]
    return {
        "certificate": {key: value for key, value in certificate.items() if key not in VARYING},
        "charges": charges,
        "files": {str(path.relative_to(out)): _content(path) for path in files if path.is_file()},
    }


def _content(path: Path) -> str:
    """Digest of what a file holds, whatever the versions of the libraries that wrote it."""
    if path.name == "certificate.json":
        return "above"
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        data = repr((str(table.schema.remove_metadata()), table.to_pylist())).encode()
    elif path.suffix == ".safetensors":
        data = repr(sorted((name, _of_tensor(tensor)) for name, tensor in load_file(path).items())).encode()
    else:
        data = path.read_bytes()
    return hashlib.sha256(data).hexdigest()


def _of_tensor(tensor: Any) -> tuple[Any, ...]:
    content = tensor.contiguous().view(torch.uint8).numpy().tobytes()
    return str(tensor.dtype), tuple(tensor.shape), hashlib.sha256(content).hexdigest()


def differences(before: Any, after: Any, where: str = "") -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() | after.keys()):
            yield from differences(before.get(key), after.get(key), f"{where}/{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for place, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from differences(old, new, f"{where}/{place}")
    elif before != after:
        yield f"{where}: {before!r} -> {after!r}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--compare", type=Path)
    parser.add_argument("--methods", default=",".join(METHODS))
    given = parser.parse_args()
    methods, found = given.methods.split(","), {}
    before = json.loads(given.compare.read_text()) if given.compare else None
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    os.environ["XDG_CACHE_HOME"] = str(FOLDER / "cache")  # no calibration of another commit is served
    save_tiny_llama(FOLDER / "llama", PUBLIC_SENTENCES)
    save_tiny_bert(FOLDER / "bert", PUBLIC_SENTENCES)
    for method in methods:
        found[method] = json.loads(json.dumps(pinned(method)))
        print(f"{method}: {len(found[method]['charges'])} entries, {len(found[method]['files'])} files", flush=True)
    given.out.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    if before is None:
        return 0
    different = list(differences({name: before.get(name) for name in methods}, found))
    print("\n".join(different) or f"nothing differs in {', '.join(methods)}")
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main())
