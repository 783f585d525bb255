"""SMCalFlow's validation turns as a private corpus: some dialogues are marked public, the others are to be protected.

    python benchmarks/smcalflow.py --data DIR --out runs/smcalflow

`DIR` holds `smcalflow_v2_valid.parquet` and `smcalflow_functions.json`. Written are `private.parquet` and
`public.parquet` (nine tenths and one tenth of the training dialogues), `dev.parquet`, and `functions.txt`, the names of
the interface's functions, which are public as its documentation is; how often they occur is not read. Beside text and
tree a row has a `domain`, one of eleven that a public rule reads off its tree, and a tree of somebody else, `shuffled`.
"""

import argparse
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rayprivacy.structures.trees import functions, parse

PUBLIC_SHARE = 0.1
DOMAINS = (  # the first whose word begins a function of the tree
    ("create event", ("CreateCommitEventWrapper", "CreatePreflightEventWrapper")),
    ("update event", ("UpdateCommitEventWrapper", "UpdatePreflightEventWrapper")),
    ("delete event", ("DeleteCommitEventWrapper", "DeletePreflightEventWrapper")),
    ("weather", ("Weather",)),
    ("place", ("Place", "FindPlace", "LocationKeyphrase")),
    ("attendees", ("Attendee", "FindManager", "FindReports", "FindTeam")),
    ("find event", ("FindEvent", "QueryEvent", "EventOnDate")),
    ("confirm", ("ConfirmAndReturn", "DoNotConfirm")),
    ("fence", ("Fence",)),
    ("pleasantry", ("Pleasantry",)),
)
OTHER = "other request"


def domain_of(tree: str) -> str:
    """The domain of a tree, by its functions alone."""
    found = functions(parse(tree))
    return next((name for name, words in DOMAINS if any(each.startswith(words) for each in found)), OTHER)


def has(tree: str, beginning: str) -> bool:
    """Whether a tree has a function whose name begins so."""
    return any(name.startswith(beginning) for name in functions(parse(tree)))


def prepare(data: Path, out: Path, seed: int = 2026) -> None:
    """Split the training dialogues once and for all; what is there already is kept."""
    if (out / "functions.txt").exists():
        return
    out.mkdir(parents=True, exist_ok=True)
    rows = [row for row in pq.read_table(data / "smcalflow_v2_valid.parquet").to_pylist() if not row["skip"]]
    train = [row for row in rows if row["split"] == "train"]
    dialogues, dice = sorted({row["dialogue_id"] for row in train}), random.Random(seed)
    public = set(dice.sample(dialogues, round(PUBLIC_SHARE * len(dialogues))))
    _write([row for row in train if row["dialogue_id"] not in public], out / "private.parquet", dice)
    _write([row for row in train if row["dialogue_id"] in public], out / "public.parquet", dice)
    _write([row for row in rows if row["split"] == "dev"], out / "dev.parquet", dice)
    listed = json.loads((data / "smcalflow_functions.json").read_text())["functions"]
    (out / "functions.txt").write_text("\n".join(sorted(name for name, _ in listed)) + "\n", "utf-8")


def _write(rows: list[dict[str, Any]], path: Path, dice: random.Random) -> None:
    trees = [str(row["lispress"]) for row in rows]
    columns = {
        "dialogue_id": [row["dialogue_id"] for row in rows],
        "user_utterance": [row["user_utterance"] for row in rows],
        "lispress": trees,
        "domain": [domain_of(tree) for tree in trees],
        "shuffled": dice.sample(trees, len(trees)),
    }
    pq.write_table(pa.table(columns), path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/smcalflow"))
    given = parser.parse_args()
    prepare(given.data, given.out)
