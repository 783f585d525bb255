"""SNIPS requests as a private corpus whose structures are JSON: an intent, and slots with words of the request.

    python benchmarks/snips.py --data DIR --out runs/snips

`DIR` holds `snips_intents_slots.parquet`. Written are `private.parquet` and `public.parquet` (nine tenths and one tenth
of the training requests) and `dev.parquet` (the validation requests). A row has `text`, its `structure` as JSON, and
`request`, a name of its own: the file says nothing of people, so each request stands for one. What may be asked for,
jobs/two_stage/snips.schema.json, is public, as an assistant's documentation is, and was written down before.
"""

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

PUBLIC_SHARE = 0.1
PARTS = ("private", "public", "dev")
SCHEMA = Path(__file__).parents[1] / "jobs" / "two_stage" / "snips.schema.json"


def structure_of(intent: str, tokens: Sequence[str], tags: Sequence[str]) -> str:
    """The structure of a request as JSON, with its slots in the order of the alphabet.

    >>> structure_of("PlayMusic", ["play", "two", "of", "us"], ["O", "B-track", "I-track", "I-track"])
    '{"intent": "PlayMusic", "slots": {"track": "two of us"}}'
    """
    spans: dict[str, list[list[str]]] = defaultdict(list)
    for token, tag in zip(tokens, tags, strict=True):
        begins, _, slot = tag.partition("-")
        if begins == "B":
            spans[slot].append([token])
        elif begins == "I" and spans[slot]:
            spans[slot][-1].append(token)
    slots = {slot: ", ".join(map(" ".join, words)) for slot, words in sorted(spans.items()) if words}
    return json.dumps({"intent": intent, "slots": slots}, ensure_ascii=False)


def prepare(data: Path, out: Path, seed: int = 2026) -> None:
    """Split the requests once and for all; what is there already is kept."""
    if (out / "dev.parquet").exists():
        return
    out.mkdir(parents=True, exist_ok=True)
    found = pq.read_table(data / "snips_intents_slots.parquet").to_pylist()
    rows = [row | {"request": f"request {number}"} for number, row in enumerate(found)]
    train = [row for row in rows if row["split"] == "train"]
    public = set(random.Random(seed).sample(range(len(train)), round(PUBLIC_SHARE * len(train))))
    parts = (
        [row for place, row in enumerate(train) if place not in public],
        [row for place, row in enumerate(train) if place in public],
        [row for row in rows if row["split"] == "valid"],
    )
    for name, part in zip(PARTS, parts, strict=True):
        _write(part, out / f"{name}.parquet")


def _write(rows: list[dict[str, Any]], path: Path) -> None:
    columns = {
        "request": [row["request"] for row in rows],
        "text": [row["text"] for row in rows],
        "structure": [structure_of(row["intent"], row["tokens"], row["bio"]) for row in rows],
    }
    pq.write_table(pa.table(columns), path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/snips"))
    given = parser.parse_args()
    prepare(given.data, given.out)
