"""MultiDoGO's turns as a private corpus of conversations, with a public part, for jobs/domain_private/dialog.yaml.

    python benchmarks/dialogs.py --data multidogo_turn.parquet --out runs/dialogs

Of three services, airline, media and insurance, the training conversations become `private.parquet`, a row for each
turn of a customer. The conversations of the dev split are DECLARED PUBLIC: `public.parquet` trains the classifiers that
hide or judge text. `test.parquet` has those of the test split, for prompts and perplexity.
"""

import argparse
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

DOMAINS = ("airline", "media", "insurance")
PARTS = {"train": "private", "dev": "public", "test": "test"}
COLUMNS = ["conversation_id", "turn", "utterance", "slot_labels", "domain"]


def prepare(data: Path, out: Path) -> None:
    """Write the three parts; what is there already is kept."""
    if all((out / f"{name}.parquet").exists() for name in PARTS.values()):
        return
    out.mkdir(parents=True, exist_ok=True)
    turns = pq.read_table(data)
    turns = turns.filter(pc.is_in(turns["domain"].cast(pa.string()), pa.array(DOMAINS)))
    for split, name in PARTS.items():
        part = turns.filter(pc.equal(turns["split"].cast(pa.string()), split)).select(COLUMNS)
        pq.write_table(part, out / f"{name}.parquet", compression="zstd")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path, required=True, help="multidogo_turn.parquet")
    options.add_argument("--out", type=Path, default=Path("runs/dialogs"))
    given = options.parse_args()
    prepare(given.data, given.out)
