"""Internal evaluation on held-out users: whether what was made finds what people really asked about.

Each figure reads private text and is outside the certificate: `releasable: false`. Readers know words and vectors of
public pairs and released passages alone; the index of BM25 over held-out texts, which is a table of private text, is in
memory while it is used, and nowhere else.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.files import Json
from rayprivacy.evaluation.figures import Figure, mean_figure
from rayprivacy.methods.question_answering.recipe import QuestionAnsweringRecipe
from rayprivacy.models.backbone import Backbone
from rayprivacy.questions.choosing import EPOCHS, Sets
from rayprivacy.questions.evidence_reader import beginning, scores, trained
from rayprivacy.questions.public import public_pairs, row_of, rows_of_pairs
from rayprivacy.runs import heldout
from rayprivacy.runs.directory import QUESTIONS, Run
from rayprivacy.runs.method import Table
from rayprivacy.runs.questions_folder import TABLE
from rayprivacy.runs.sealing import sealed

BEST = (1, 5, 20)  # texts that are looked at, of those that BM25 ranks
_SEED, _PAIRS = 0, "public pairs"
_NONE = {"releasable": False, "why": "no held-out user has a question: nothing was measured"}


class Real(NamedTuple):
    """A question that somebody asked about a held-out text, and its answer there."""

    question: str
    answer: str
    text: int  # number of the text
    passage: str
    user: str


@sealed("reading the questions of held-out users")
def real_questions(run: Run[QuestionAnsweringRecipe]) -> list[Real]:
    """The questions of held-out users; none where the recipe names no column of them.

    Raises:
        ConfigError: a cell of that column is something else. It is not quoted.
    """
    column = run.recipe.questions.heldout if run.recipe.questions else None
    if column is None:
        return []
    return [
        Real(question, answer, number, row["text"], str(row["user"]))
        for number, row in enumerate(heldout.heldout_rows(run))
        for question, answer in _asked(row[column], column)
    ]


def _asked(cell: str | None, column: str) -> list[tuple[str, str]]:
    with suppress(ValueError, TypeError, LookupError):
        found = [(each["question"], each["answer"]) for each in json.loads(cell or "[]")]
        if all(isinstance(part, str) for pair in found for part in pair):
            return found
    raise ConfigError(
        f"questions.heldout is '{column}', and a cell of that column is no JSON list of objects with 'question' and"
        " 'answer': write it so, or leave the key out."
    )


@sealed("the evaluation on questions of held-out users")
def question_metrics(run: Run[QuestionAnsweringRecipe], backbone: Backbone) -> Mapping[str, Any]:
    """How often evidence is found by readers that learnt from more and more, and the right text by BM25."""
    asked = real_questions(run)
    if not asked:
        return _NONE
    return {
        "releasable": False,
        "why": heldout.WHY,
        "questions": len(asked),
        "evidence": {name: _plain(figure) for name, figure in _evidence(run, backbone, asked).items()},
        "retrieval": {name: _plain(figure) for name, figure in _retrieval(run, asked).items()},
    }


def _evidence(run: Run[QuestionAnsweringRecipe], backbone: Backbone, asked: Sequence[Real]) -> dict[str, Figure]:
    """How often the sentence of the answer is taken for the one that is asked about."""
    config, made = run.recipe.questions, pq.read_table(run.root / QUESTIONS / TABLE)
    pairs = rows_of_pairs(public_pairs(config.pairs)) if config and config.pairs else []
    written = [row_of(row["question"], row["context"], row["evidence_start"]) for row in made.to_pylist()]
    found = [(each, each.passage.find(each.answer)) for each in asked]  # a text may have been cut
    held = [row_of(each.question, each.passage, start, each.user) for each, start in found if start >= 0]
    if not held:
        return {}
    sets, dice = Sets.of(backbone, pairs, written, held), np.random.default_rng(_SEED)
    start = trained(beginning(sets.written.questions.shape[1]), sets.source, dice, EPOCHS)
    besides = f"{_PAIRS} and " if pairs else ""
    readers = {_PAIRS: start} if pairs else {}
    readers[f"{besides}all questions"] = trained(start, sets.written, dice)
    readers[f"{besides}kept questions"] = trained(start, sets.written[made["kept"].to_numpy()], dice)
    liked = {name: scores(theta[None], sets.annotated)[0] for name, theta in readers.items()}
    liked = {"words in common": np.where(sets.annotated.real, sets.annotated.overlaps, -1.0)} | liked
    right = {name: each.argmax(axis=-1) == sets.annotated.evidence for name, each in liked.items()}
    return {name: mean_figure(each, sets.groups, _SEED) for name, each in right.items()}


def _retrieval(run: Run[QuestionAnsweringRecipe], asked: Sequence[Real]) -> dict[str, Figure]:
    """How often the text that a question is about is among the best of BM25, of all texts of held-out users."""
    from rayprivacy.questions.lexical import Bm25  # of the extra `questions`

    index = Bm25(row["text"] for row in heldout.heldout_rows(run))
    ranks = [index.ranked(each.question)[: max(BEST)] for each in asked]
    users = np.unique([each.user for each in asked], return_inverse=True)[1]
    return {
        f"among the best {most} of {index.size}": mean_figure(
            [each.text in rank[:most] for each, rank in zip(asked, ranks, strict=True)], users, _SEED
        )
        for most in BEST
        if most <= index.size
    }


def _plain(figure: Figure) -> Json:
    interval = None if figure.low is None or figure.high is None else [round(figure.low, 4), round(figure.high, 4)]
    return {"value": round(figure.value, 4), "interval": interval}


def tables(measured: Mapping[str, Any]) -> list[Table]:
    """The figures as tables, which are internal."""
    columns = ("what", "share", "95% interval over users")
    titles = {
        "evidence": "Evidence of held-out users' questions, found by a reader that learnt from",
        "retrieval": "Texts of held-out users' questions, found by BM25",
    }
    return [
        Table(title, columns, [_cells(*each) for each in measured[name].items()], internal=True)
        for name, title in titles.items()
        if measured.get(name)
    ]


def _cells(name: str, figure: Json) -> tuple[str, str, str]:
    ends = [f"{end:.3f}" for end in figure["interval"] or ()]
    return name, f"{figure['value']:.3f}", " to ".join(ends)
