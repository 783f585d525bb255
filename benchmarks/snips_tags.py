"""SNIPS requests as a private corpus with intents and word labels, for a tagger.

    python benchmarks/snips_tags.py --data DIR --out runs/snips_tags

`DIR` holds `snips_intents_slots.parquet`. Written is `private.parquet`: the training requests with `text` (words with
blanks between), `intent`, `slots` (`O`, `B-slot` and `I-slot` with blanks between) and `request`, a name of its own.
The file says nothing of people, so each request stands for one. What an assistant may be asked for is public, as its
documentation is: the lists of jobs/edp_sgd/snips.yaml.
"""

import argparse
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def rows_of(data: Path) -> list[dict[str, str]]:
    """All requests: `split`, `request` (a name), `text`, `intent` and `slots`."""
    found = pq.read_table(data / "snips_intents_slots.parquet").to_pylist()
    return [
        {
            "split": row["split"],
            "request": f"request {number}",
            "text": " ".join(row["tokens"]),
            "intent": row["intent"],
            "slots": " ".join(row["bio"]),
        }
        for number, row in enumerate(found)
    ]


def prepare(data: Path, out: Path) -> Path:
    """Write the corpus once and for all; what is there already is kept."""
    path = out / "private.parquet"
    if not path.exists():
        out.mkdir(parents=True, exist_ok=True)
        rows = [row for row in rows_of(data) if row.pop("split") == "train"]
        pq.write_table(pa.Table.from_pylist(rows), path)
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/snips_tags"))
    given = parser.parse_args()
    prepare(given.data, given.out)
