"""Europarl as a private corpus: some speakers are marked public and give text, the others are to be protected.

    python benchmarks/europarl.py --data europarl_by_speaker.parquet --out runs/europarl

writes `private.parquet` (columns author_id, text), `public.parquet`, what the public speakers said, `prompts.txt`, the
first four words of that, and `phrases.txt`, names of two words from the private text: what jobs/seqpate/europarl.yaml
and the benchmarks read. `--sentences 5` keeps so many sentences of each speaker.
"""

import argparse
import random
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

EARLIER = [  # what jobs/seqpate/europarl.yaml had before its base read text of its own, as most tables of it were made
    "pretrain=null", "corpus.max_records_per_user=150", "pseudo.temperature=0.8", "pseudo.top_k=40",
    "student.warm_steps=200",
]  # fmt: skip
PUBLIC_SHARE, PREFIX_WORDS, PROMPTS, PHRASES, OCCURRENCES = 0.1, 4, 4000, 200, 60
NAME = re.compile(r"(?<=\w )[A-Z][a-z]{2,} [A-Z][a-z]{3,}")


def prepare(data: Path, out: Path, sentences: int = 150, seed: int = 2026) -> None:
    """Split the speakers once and for all: a tenth of them is public.

    Args:
        data: Parquet with the columns author_id and text.
        out: folder for the files; what is there already is kept.
        sentences: of each speaker, at most.
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
    private = _first(table.filter(pc.invert(is_public)).replace_schema_metadata(None), sentences)
    pq.write_table(private, out / "private.parquet")
    names = Counter(name for text in private["text"].to_pylist() for name in set(NAME.findall(text)))
    rare = _disjoint(name for name, times in names.most_common() if times <= OCCURRENCES)
    (out / "phrases.txt").write_text("\n".join(rare[:PHRASES]) + "\n", "utf-8")
    pq.write_table(_first(table.filter(is_public).replace_schema_metadata(None), sentences), out / "public.parquet")
    said = [text.split() for text in table.filter(is_public)["text"].to_pylist()]
    prefixes = sorted({" ".join(words[:PREFIX_WORDS]) for words in said if len(words) > PREFIX_WORDS})
    (out / "prompts.txt").write_text("\n".join(draw.sample(prefixes, min(PROMPTS, len(prefixes)))) + "\n", "utf-8")


def _disjoint(names: Iterable[str]) -> list[str]:
    """Names of which no two share a word: phrases must not overlap in a text."""
    kept, used = [], set()
    for name in names:
        words = set(name.casefold().split())
        if not words & used:
            kept.append(name)
            used |= words
    return kept


def _first(table: pa.Table, sentences: int) -> pa.Table:
    seen: Counter[str] = Counter()
    keep = []
    for speaker in table["author_id"].to_pylist():
        seen[speaker] += 1
        keep.append(seen[speaker] <= sentences)
    return table.filter(pa.array(keep))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/europarl"))
    parser.add_argument("--sentences", type=int, default=150)
    arguments = parser.parse_args()
    prepare(arguments.data, arguments.out, arguments.sentences)
    print(f"{arguments.out}: {pq.read_metadata(arguments.out / 'private.parquet').num_rows} private sentences")


if __name__ == "__main__":
    main()
