"""What is learnt from: public pairs of evidence and question, and public annotations, questions with answers.

Both become rows of an evidence reader: a question, the sentences of its passage, and which of them is asked about.
Pairs have no passages: five of their evidences in a row stand for one. This file knows neither torch nor Ray.
"""

import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq

from rayprivacy.core.errors import ConfigError, CorpusError, renamed
from rayprivacy.core.files import Json
from rayprivacy.core.uris import shown
from rayprivacy.corpus.public import public_table
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.corpus.sources import filesystem_of, locate
from rayprivacy.questions.passages import sentences, windows
from rayprivacy.questions.settings import PairsConfig

LEAST_PAIRS, LEAST_MEASURED = 10, 5
MEASURED, CONTRASTS = "measured", ("classifier", "ranking")  # selections
ANNOTATIONS = "questions.value.annotations"
Pair = tuple[str, str]  # an evidence, and a question about it
_KEYS = {"source": "questions.pairs.source", "text": "questions.pairs.evidence", "labels": "questions.pairs.question"}
_SQUAD = ("context", "question", "answers")
_WINDOW = 5  # evidences
_HELD = 10  # of so many passages one is held out, where there are no annotations


class Row(NamedTuple):
    """A question among the sentences of its passage; questions of one group are easy or hard together."""

    question: str
    sentences: Sequence[str]
    evidence: int
    group: str


def public_pairs(config: PairsConfig) -> list[Pair]:
    """Evidence and question of the rows that have both."""
    corpus = CorpusConfig(source=config.source, text=config.evidence, user=None, labels=(config.question,))
    columns = [column.to_pylist() for column in public_table(corpus, _KEYS)]
    pairs = [(evidence, question) for evidence, question in zip(*columns, strict=True) if evidence and question]
    if len(pairs) < LEAST_PAIRS:
        raise ConfigError(
            f"questions.pairs.source has {len(pairs)} rows with evidence and question: give at least {LEAST_PAIRS}."
        )
    return pairs


def rows_of_pairs(pairs: Sequence[Pair]) -> list[Row]:
    """Each question among five evidences that follow each other."""
    passages = windows([*dict.fromkeys(evidence for evidence, _ in pairs)], _WINDOW)
    place = {
        evidence: (window, number, f"{at}")
        for at, window in enumerate(passages)
        for number, evidence in enumerate(window)
    }
    found = []
    for evidence, question in pairs:
        window, number, group = place[evidence]
        found.append(Row(question, window, number, group))
    return found


def held_out(rows: Sequence[Row], seed: int) -> tuple[list[Row], list[Row]]:
    """Rows without a tenth of their passages, and those of that tenth."""
    groups = [*dict.fromkeys(row.group for row in rows)]
    order = np.random.default_rng([seed, len(groups)]).permutation(len(groups))
    held = {groups[place] for place in order[: max(1, len(groups) // _HELD)]}
    return [row for row in rows if row.group not in held], [row for row in rows if row.group in held]


def learnt_from(pairs: Sequence[Pair], annotated: Sequence[Json], seed: int) -> tuple[list[Row], list[Row]]:
    """Rows that readers learn from, and those that a selection learns from: annotations, or a tenth of the pairs."""
    rows = rows_of_pairs(pairs)
    return (rows, rows_of_annotations(annotated)) if annotated else held_out(rows, seed)


def check_selection(by: str, source: Sequence[Row], learnt: Sequence[Row]) -> None:
    """Refuse a selection that what it learns from, beside what readers learn from, cannot teach or judge."""
    if not source:
        raise ConfigError(
            f"questions.pairs are about {_WINDOW} sentences at most, of which none are left to learn from where a tenth"
            f" of the pairs takes the place of {ANNOTATIONS}: name these, or give pairs about more sentences."
        )
    require_contrast(by, any(len(row.sentences) > 1 for row in learnt))
    if by == MEASURED and len(learnt) < LEAST_MEASURED:
        raise ConfigError(
            f"questions.keep.by is '{by}', and {len(learnt)} of the questions.pairs, a tenth, would say which selection"
            f" is best: name {ANNOTATIONS}, or pairs of which a tenth are {LEAST_MEASURED} or more, or choose another."
        )


def require_contrast(by: str, found: bool) -> None:
    """Refuse a selection that learns from other sentences of annotated passages, where none was found."""
    if by in CONTRASTS and not found:
        raise ConfigError(
            f"questions.keep.by is '{by}', which learns from other sentences of annotated passages, and these have"
            " one each: annotate longer ones, or choose another."
        )


def annotations(source: str) -> list[Json]:
    """Public questions with answers, as `datasets` has SQuAD; an error names the number of a row, and no text."""
    found = _squad_rows(source)
    for number, row in enumerate(found):
        if not _is_right(row):
            raise ConfigError(
                f"row {number} of {ANNOTATIONS} has no answer where it says, or no question: write `answers` with"
                " `text` and `answer_start`, so that the passage has each text at its place, or drop the row."
            )
    if len(found) < LEAST_PAIRS:
        raise ConfigError(f"{ANNOTATIONS} has {len(found)} rows: give at least {LEAST_PAIRS}.")
    return found


def rows_of_annotations(annotated: Sequence[Json]) -> list[Row]:
    """Each question among the sentences of its passage; the evidence is where its first answer begins."""
    return [
        row_of(row["question"], row["context"], row["answers"]["answer_start"][0], row.get("title"))
        for row in annotated
    ]


def row_of(question: str, passage: str, start: int, group: str | None = None) -> Row:
    """A question about the sentence of a passage that has a place; its group is by default the passage."""
    spans = sentences(passage)
    evidence = max((number for number, (begins, _) in enumerate(spans) if begins <= start), default=0)
    return Row(question, [passage[begins:ends] for begins, ends in spans], evidence, group or passage)


def _squad_rows(source: str) -> list[Json]:
    where = f"{ANNOTATIONS} is '{shown(source)}'"
    with renamed({"corpus.source": ANNOTATIONS}, CorpusError):
        files, (filesystem, _) = locate(CorpusConfig(source=source, user=None)), filesystem_of(source)
    if files.kind == "csv":
        raise ConfigError(f"{where}, and a CSV file has no lists of answers: give Parquet or JSONL.")
    rows: list[Json] = []
    for path in files.paths:
        try:
            with filesystem.open_input_file(path) as stream:
                rows += pq.read_table(stream).to_pylist() if files.kind == "parquet" else _lines(stream.read())
        except (OSError, ValueError) as error:  # of public text, which may be told
            raise ConfigError(f"{where}, which cannot be read ({type(error).__name__}): write it again.") from None
    for name in _SQUAD:
        if rows and name not in rows[0]:
            raise ConfigError(f"{where}, which has no column '{name}' beside {', '.join(rows[0])}: name it so.")
    return rows


def _lines(data: bytes) -> list[Json]:
    return [json.loads(line) for line in data.decode("utf-8-sig").split("\n") if line.strip()]


def _is_right(row: Json) -> bool:
    """Whether the passage of a row has all its answers, at least one, where they are said to be."""
    try:
        answers = [*zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True)]
        return bool(row["question"] and answers) and all(
            text and row["context"].startswith(text, start) and start >= 0 for text, start in answers
        )
    except (TypeError, KeyError, AttributeError, ValueError):
        return False
