"""Europarl as a private corpus: some speakers are marked public and give prompts, the others are to be protected.

    python benchmarks/europarl.py --data europarl_by_speaker.parquet --out runs/europarl

writes `private.parquet` (columns author_id, text) and `prompts.txt`, the first four words of what the public speakers
said: what jobs/seqpate/europarl.yaml and the benchmarks read.
"""

import argparse
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

PUBLIC_SHARE, PREFIX_WORDS, PROMPTS = 0.1, 4, 4000


def prepare(data: Path, out: Path, seed: int = 2026) -> None:
    """Split the speakers once and for all: a tenth of them is public.

    Args:
        data: Parquet with the columns author_id and text.
        out: folder for the two files; what is there already is kept.
        seed: of the split.
    """
    if (out / "prompts.txt").exists():
        return
    out.mkdir(parents=True, exist_ok=True)
    table = pq.read_table(data, columns=["author_id", "text"])
    speakers = sorted(set(table["author_id"].to_pylist()))
    draw = random.Random(seed)
    public = pa.array(draw.sample(speakers, round(PUBLIC_SHARE * len(speakers))))
    is_public = pc.is_in(table["author_id"].cast(public.type), value_set=public)
    pq.write_table(table.filter(pc.invert(is_public)).replace_schema_metadata(None), out / "private.parquet")
    said = [text.split() for text in table.filter(is_public)["text"].to_pylist()]
    prefixes = sorted({" ".join(words[:PREFIX_WORDS]) for words in said if len(words) > PREFIX_WORDS})
    (out / "prompts.txt").write_text("\n".join(draw.sample(prefixes, min(PROMPTS, len(prefixes)))) + "\n", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/europarl"))
    arguments = parser.parse_args()
    prepare(arguments.data, arguments.out)
    print(f"{arguments.out}: {pq.read_metadata(arguments.out / 'private.parquet').num_rows} private sentences")


if __name__ == "__main__":
    main()
