"""The table of questions, and the files that other tools read: SQuAD, BEIR, ragas, pairs for sentence-transformers.

`questions.parquet` has every question, in the schema that `datasets` has of SQuAD, with columns behind it. The other
files have those that are kept.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rayprivacy.core.errors import RayPrivacyError
from rayprivacy.core.files import SHARED, Json, write_atomic
from rayprivacy.questions.answers import holds
from rayprivacy.questions.clozes import Passage
from rayprivacy.questions.lexical import Bm25
from rayprivacy.questions.settings import Format

ORIGIN = b"rayprivacy.origin"  # the key of a file's metadata that says what it was made of
TEST_SHARE = 0.1
_NEGATIVES = 10  # of the best passages, among which one without the answer is looked for
_ANSWERS = pa.struct([("text", pa.list_(pa.string())), ("answer_start", pa.list_(pa.int32()))])
ASKED = pa.schema(  # as a block of texts is asked
    [
        ("document", pa.int64()),
        ("passage", pa.string()),  # its id in the BEIR corpus
        ("title", pa.string()),
        ("context", pa.string()),
        ("question", pa.string()),
        ("answers", _ANSWERS),
        ("answer_kind", pa.string()),  # `span`: a piece of its evidence; `evidence`: all of it
        ("evidence", pa.string()),
        ("evidence_start", pa.int32()),
        ("phrase", pa.string()),
        ("type", pa.string()),  # the kind of entity that answers; null where none does
    ]
)
FOUND = pa.schema(  # what is known of each question; null where it was not looked at
    [
        ("likelihood", pa.float64()),  # mean log-probability of a token
        ("roundtrip", pa.bool_()),  # whether a reader finds the evidence again
        ("attribution", pa.string()),  # the judge's label
        ("p_attributable", pa.float64()),
        ("value", pa.float64()),  # a mean rank, from 0 to 1
        ("kept", pa.bool_()),
    ]
)
_SQUAD = ("id", "title", "context", "question", "answers")


def finished(asked: pa.Table, found: Mapping[str, Any], seed: int, origin: str) -> pa.Table:
    """The questions of all blocks as they are written: with ids, with what is `found` of them, by columns of FOUND.

    `split` is drawn by document, nine to one, so that no passage and no overlap of two is in both.
    """
    check_offsets(asked)
    documents = asked["document"].to_numpy()
    known = np.unique(documents)
    tested = np.random.default_rng([seed, len(known)]).permutation(known)[: round(TEST_SHARE * len(known))]
    columns = {
        "id": pa.array([f"q{number}" for number in range(len(asked))]),
        **{name: asked[name] for name in ASKED.names if name != "document"},
        "split": pa.array(np.where(np.isin(documents, tested), "test", "train")),
    }
    for field in FOUND:
        column = found.get(field.name)
        columns[field.name] = pa.nulls(len(asked), field.type) if column is None else pa.array(column, field.type)
    names = [*_SQUAD, *(name for name in columns if name not in _SQUAD)]
    return pa.table({name: columns[name] for name in names}, metadata={ORIGIN: origin.encode()})


def check_offsets(asked: pa.Table) -> None:
    """Require that every answer and every evidence stand where they are said to stand."""
    for row in asked.select(["context", "answers", "evidence", "evidence_start"]).to_pylist():
        answers = zip(row["answers"]["answer_start"], row["answers"]["text"], strict=True)
        for start, text in [*answers, (row["evidence_start"], row["evidence"])]:
            if not row["context"].startswith(text, start):
                raise RayPrivacyError("an answer is not where its passage is said to have it: report it.")


def write_formats(folder: Path, questions: pa.Table, passages: Sequence[Passage], formats: Iterable[Format]) -> None:
    """Write the kept questions in some formats."""
    origin = questions.schema.metadata[ORIGIN].decode()
    kept = [row for row in questions.to_pylist() if row["kept"]]
    for each in formats:
        for name, data in WRITERS[each](kept, passages, origin):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_atomic(folder / name, data.encode(), SHARED)


Files = Iterator[tuple[str, str]]  # names and contents


def squad(kept: Sequence[Json], passages: Sequence[Passage], origin: str) -> Files:
    """SQuAD 1.1: articles by title, in them passages with their questions."""
    articles: dict[str, dict[str, list[Json]]] = {}
    for row in kept:
        found = row["answers"]
        answers = [
            {"text": text, "answer_start": start}
            for text, start in zip(found["text"], found["answer_start"], strict=True)
        ]
        asked = articles.setdefault(row["title"], {}).setdefault(row["context"], [])
        asked.append({"id": row["id"], "question": row["question"], "answers": answers})
    data = [
        {"title": title, "paragraphs": [{"context": context, "qas": qas} for context, qas in contexts.items()]}
        for title, contexts in articles.items()
    ]
    yield "squad.json", json.dumps({"version": "1.1", "origin": origin, "data": data}, ensure_ascii=False) + "\n"


def beir(kept: Sequence[Json], passages: Sequence[Passage], origin: str) -> Files:
    """BEIR: every passage, the questions, and which passage is right for which, by split."""
    said = {"origin": origin}
    corpus = ({"_id": each.id, "title": each.title, "text": each.text, "metadata": said} for each in passages)
    yield "beir/corpus.jsonl", _lines(corpus)
    yield "beir/queries.jsonl", _lines({"_id": row["id"], "text": row["question"], "metadata": said} for row in kept)
    for split in ("train", "test"):
        judged = [f"{row['id']}\t{row['passage']}\t1\n" for row in kept if row["split"] == split]
        yield f"beir/qrels/{split}.tsv", "".join(["query-id\tcorpus-id\tscore\n", *judged])


def ragas(kept: Sequence[Json], passages: Sequence[Passage], origin: str) -> Files:
    """Samples of ragas: a question, its answer, and the passage that holds it."""
    rows = (
        {
            "user_input": row["question"],
            "reference": row["answers"]["text"][0],
            "reference_contexts": [row["context"]],
        }
        for row in kept
    )
    yield "ragas.jsonl", _lines(rows)


def pairs(kept: Sequence[Json], passages: Sequence[Passage], origin: str) -> Files:
    """Triplets of the training split: a question, its passage, and a passage that BM25 likes and that lacks the answer.

    A question for which BM25 finds no such passage is left out.
    """
    index = Bm25(passage.text for passage in passages)
    triplets = []
    for row in kept:
        best = index.ranked(row["question"])[:_NEGATIVES] if row["split"] == "train" else []
        apart = (passages[place].text for place in best if not holds(passages[place].text, row["answers"]["text"][0]))
        if negative := next(apart, None):
            triplets.append({"anchor": row["question"], "positive": row["context"], "negative": negative})
    yield "pairs.jsonl", _lines(triplets)


def _lines(rows: Iterable[Json]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


WRITERS: Mapping[Format, Callable[[Sequence[Json], Sequence[Passage], str], Files]] = {
    "squad": squad,
    "beir": beir,
    "ragas": ragas,
    "pairs": pairs,
}
