"""MultiDoGO's turns as a private corpus of conversations with intents and word labels, for jobs/edp_sgd/multidogo.yaml.

    python benchmarks/dialog_tags.py --data multidogo_turn.parquet --out runs/dialog_tags

Of three services, airline, media and insurance, `private.parquet` has the training conversations, `public.parquet`
those of the dev split, which are DECLARED PUBLIC, and `test.parquet` those of the test split. A row is a turn of a
customer. A conversation stands for its customer, and is protected with all of its turns. Word labels are those of the
corpus, which has no marks, with `B-` where a run of equal labels begins and `I-` within it.
"""

import argparse
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from dialogs import DOMAINS, PARTS


def bio(labels: Sequence[str]) -> list[str]:
    """Labels of the words of a turn, with marks.

    >>> bio(["O", "name", "name", "ssn", "name"])
    ['O', 'B-name', 'I-name', 'B-ssn', 'B-name']
    """
    return list(_marked(["O", *labels]))


def _marked(labels: Sequence[str]) -> Iterator[str]:
    for before, label in pairwise(labels):
        yield label if label == "O" else f"{'I' if label == before else 'B'}-{label}"


def rows_of(data: Path, split: str) -> list[dict[str, Any]]:
    """The turns of a split: `conversation`, `text`, `intent` and `slots`."""
    turns = pq.read_table(data)
    of_services = pc.is_in(turns["domain"].cast(pa.string()), pa.array(DOMAINS))
    chosen = pc.and_(of_services, pc.equal(turns["split"].cast(pa.string()), split))
    return [
        {
            "conversation": turn["conversation_id"],
            "text": turn["utterance"],
            "intent": turn["intent"],
            "slots": " ".join(bio(turn["slot_labels"].split())),
        }
        for turn in turns.filter(chosen).to_pylist()
    ]


def prepare(data: Path, out: Path) -> None:
    """Write the three parts; what is there already is kept."""
    out.mkdir(parents=True, exist_ok=True)
    for split, name in PARTS.items():
        path = out / f"{name}.parquet"
        if not path.exists():
            pq.write_table(pa.Table.from_pylist(rows_of(data, split)), path, compression="zstd")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path, required=True, help="multidogo_turn.parquet")
    options.add_argument("--out", type=Path, default=Path("runs/dialog_tags"))
    given = options.parse_args()
    prepare(given.data, given.out)
