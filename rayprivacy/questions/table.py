"""The table of questions, and the files that other tools read: SQuAD, BEIR, ragas, pairs for sentence-transformers.

`questions.parquet` has every question, in the schema that `datasets` has of SQuAD, with columns behind it. The other
files have those that are kept.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rayprivacy.core.errors import RayPrivacyError
from rayprivacy.core.files import SHARED, Json, write_atomic
from rayprivacy.questions.answers import holds
from rayprivacy.questions.clozes import Passage
from rayprivacy.questions.lexical import Bm25
from rayprivacy.questions.settings import Format

ORIGIN = b"rayprivacy.origin"  # the key of a file's metadata that says what it was made of
TEST_SHARE = 0.1
_AT_ONCE = 1024  # rows
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
    for row in _rows(asked.select(["context", "answers", "evidence", "evidence_start"])):
        answers = zip(row["answers"]["answer_start"], row["answers"]["text"], strict=True)
        for start, text in [*answers, (row["evidence_start"], row["evidence"])]:
            if not row["context"].startswith(text, start):
                raise RayPrivacyError("an answer is not where its passage is said to have it: report it.")


def _rows(table: pa.Table) -> Iterator[Json]:
    """The rows, of which a few are Python objects at a time: these are many times as large as the table."""
    for batch in table.to_batches(_AT_ONCE):
        yield from batch.to_pylist()


def write_formats(folder: Path, questions: pa.Table, passages: Sequence[Passage], formats: Iterable[Format]) -> None:
    """Write the kept questions in some formats, each file line by line."""
    origin, kept = questions.schema.metadata[ORIGIN].decode(), questions.filter(questions["kept"])
    for each in formats:
        for name, pieces in WRITERS[each](kept, passages, origin):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_atomic(folder / name, map(str.encode, pieces), SHARED)


Files = Iterator[tuple[str, Iterable[str]]]  # names, and contents piece by piece


def squad(kept: pa.Table, passages: Sequence[Passage], origin: str) -> Files:
    """SQuAD 1.1: articles by title, in them passages with their questions."""
    articles: dict[str, dict[str, list[Json]]] = {}
    for row in _rows(kept.select(_SQUAD)):
        found = row["answers"]
        answers = [
            {"text": text, "answer_start": start}
            for text, start in zip(found["text"], found["answer_start"], strict=True)
        ]
        asked = articles.setdefault(row["title"], {}).setdefault(row["context"], [])
        asked.append({"id": row["id"], "question": row["question"], "answers": answers})
    yield "squad.json", _articles(articles, origin)


def _articles(articles: Mapping[str, Mapping[str, list[Json]]], origin: str) -> Iterator[str]:
    yield _json({"version": "1.1", "origin": origin, "data": []}).removesuffix("]}")
    for number, (title, contexts) in enumerate(articles.items()):
        paragraphs = [{"context": context, "qas": qas} for context, qas in contexts.items()]
        yield ", " * bool(number) + _json({"title": title, "paragraphs": paragraphs})
    yield "]}\n"


def beir(kept: pa.Table, passages: Sequence[Passage], origin: str) -> Files:
    """BEIR: every passage, the questions, and which passage is right for which, by split."""
    said, asked = {"origin": origin}, kept.select(["id", "question"])
    corpus = ({"_id": each.id, "title": each.title, "text": each.text, "metadata": said} for each in passages)
    queries = ({"_id": row["id"], "text": row["question"], "metadata": said} for row in _rows(asked))
    yield "beir/corpus.jsonl", _lines(corpus)
    yield "beir/queries.jsonl", _lines(queries)
    for split in ("train", "test"):
        right = _rows(kept.filter(pc.equal(kept["split"], split)).select(["id", "passage"]))
        judged = (f"{row['id']}\t{row['passage']}\t1\n" for row in right)
        yield f"beir/qrels/{split}.tsv", chain(["query-id\tcorpus-id\tscore\n"], judged)


def ragas(kept: pa.Table, passages: Sequence[Passage], origin: str) -> Files:
    """Samples of ragas: a question, its answer, and the passage that holds it."""
    rows = (
        {
            "user_input": row["question"],
            "reference": row["answers"]["text"][0],
            "reference_contexts": [row["context"]],
        }
        for row in _rows(kept.select(_SQUAD))
    )
    yield "ragas.jsonl", _lines(rows)


def pairs(kept: pa.Table, passages: Sequence[Passage], origin: str) -> Files:
    """Triplets of the training split: a question, its passage, and a passage that BM25 likes and that lacks the answer.

    A question for which BM25 finds no such passage is left out.
    """
    index = Bm25(passage.text for passage in passages)

    def triplets() -> Iterator[Json]:
        for row in _rows(kept.filter(pc.equal(kept["split"], "train")).select(_SQUAD)):
            best, answer = index.ranked(row["question"])[:_NEGATIVES], row["answers"]["text"][0]
            apart = (passages[place].text for place in best if not holds(passages[place].text, answer))
            if negative := next(apart, None):
                yield {"anchor": row["question"], "positive": row["context"], "negative": negative}

    yield "pairs.jsonl", _lines(triplets())


def _lines(rows: Iterable[Json]) -> Iterator[str]:
    return (_json(row) + "\n" for row in rows)


def _json(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)


WRITERS: Mapping[Format, Callable[[pa.Table, Sequence[Passage], str], Files]] = {
    "squad": squad,
    "beir": beir,
    "ragas": ragas,
    "pairs": pairs,
}
