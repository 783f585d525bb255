"""SQuAD's questions as a private corpus, public pairs and annotations, without a text in two of them.

    python benchmarks/squad.py --data DIR --out runs/squad

`DIR` holds `squad_xquad_en.parquet` (1,190 questions with answers, of 48 articles), `wikitext2_raw_valid_test.parquet`
and `squad_nqg_sentence_question.parquet` (sentences with questions: what its authors call `test` are articles of
SQuAD's training part, and their `dev` the 48 articles of before). Written are

- `private.parquet`: windows of five sentences of `dev`, each a document of its own author. `asked` is a JSON list of
  the questions about it, each with its sentence as the answer. Whatever is in XQuAD too is left out.
- `pairs.parquet`: sentences and questions of `test`, public;
- `annotations.parquet` and `heldout.parquet`: XQuAD by halves of its titles, in the form of SQuAD;
- `public.parquet`: windows of `test`, and paragraphs of WikiText of at least 30 words.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rayprivacy.core.files import Json
from rayprivacy.questions.passages import plain, shared, windows

SENTENCES = 5  # of a window
WORDS = 30  # of a paragraph of WikiText, at least
SOURCE, TARGET = "test", "dev"  # of questions, as their file calls them


@dataclass(frozen=True)
class Splits:
    """The rows of each file that is written, by its name."""

    private: list[Json]
    pairs: list[Json]
    annotations: list[Json]
    heldout: list[Json]
    public: list[Json]


def splits(data: Path) -> Splits:
    """All splits, of the three files in a folder."""
    annotated = _rows(data, "squad_xquad_en")
    source, target = source_and_target(data)
    wiki = [row["text"] for row in _rows(data, "wikitext2_raw_valid_test")]
    titles = sorted({row["title"] for row in annotated})
    ours = set(titles[::2])
    return Splits(
        private=_documents(target),
        pairs=source,
        annotations=[squad_row(row) for row in annotated if row["title"] in ours],
        heldout=[squad_row(row) for row in annotated if row["title"] not in ours],
        public=[{"passage": text} for text in passages(source)]
        + [{"passage": text} for text in wiki if len(text.split()) >= WORDS],
    )


def source_and_target(data: Path) -> tuple[list[Json], list[Json]]:
    """Rows of sentence and question: those to learn asking from, and those of XQuAD's articles that XQuAD lacks."""
    annotated, rows = _rows(data, "squad_xquad_en"), _rows(data, "squad_nqg_sentence_question")
    source, target = (
        [{"sentence": row["sentence"], "question": row["question"]} for row in rows if row["split"] == part]
        for part in (SOURCE, TARGET)
    )
    known = {plain(row["question"]) for row in annotated}
    contexts = dict.fromkeys(row["context"] for row in annotated)
    in_context = shared([row["sentence"] for row in target], contexts)
    left = [
        row
        for row, is_shared in zip(target, in_context, strict=True)
        if not is_shared and plain(row["question"]) not in known
    ]
    return source, left


def sentence_windows(rows: Sequence[Json]) -> list[Sequence[str]]:
    """Windows of consecutive sentences, each sentence once."""
    return windows([*dict.fromkeys(row["sentence"] for row in rows)], SENTENCES)


def passages(rows: Sequence[Json]) -> list[str]:
    """The same as texts."""
    return [" ".join(window) for window in sentence_windows(rows)]


def _documents(rows: Sequence[Json]) -> list[Json]:
    asked = defaultdict(list)
    for row in rows:
        asked[row["sentence"]].append({"question": row["question"], "answer": row["sentence"]})
    return [
        {
            "document": f"document {number}",
            "passage": " ".join(window),
            "asked": json.dumps([each for sentence in window for each in asked[sentence]]),
        }
        for number, window in enumerate(sentence_windows(rows))
    ]


def squad_row(row: Json) -> Json:
    """A row of XQuAD as `datasets` has SQuAD."""
    answers = {"text": [row["answer"]], "answer_start": [row["answer_start"]]}
    return {name: row[name] for name in ("id", "title", "context", "question")} | {"answers": answers}


def _rows(data: Path, name: str) -> list[Json]:
    rows: list[Json] = pq.read_table(data / f"{name}.parquet").to_pylist()
    return rows


def prepare(data: Path, out: Path) -> None:
    """Write all splits."""
    found = splits(data)
    out.mkdir(parents=True, exist_ok=True)
    for each in fields(found):
        pq.write_table(
            pa.Table.from_pylist(getattr(found, each.name)), out / f"{each.name}.parquet", compression="zstd"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    prepare(arguments.data, arguments.out)
