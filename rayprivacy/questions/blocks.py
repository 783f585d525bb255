"""What actors do with blocks of questions: answer them, say how likely they were, judge their answers.

A block is a row group of a file. What comes of it depends on nothing but it, the settings and models that are saved.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from rayprivacy.auditing.scoring import ModelLoss
from rayprivacy.core.files import Json
from rayprivacy.models.asked import asked
from rayprivacy.models.backbone import load_backbone
from rayprivacy.models.settings import ModelConfig
from rayprivacy.questions.asker import ASK
from rayprivacy.questions.attribution import LABELS, Claim
from rayprivacy.questions.entities import Entity, finder
from rayprivacy.questions.judge import Judge
from rayprivacy.questions.settings import AskerConfig
from rayprivacy.questions.table import ASKED
from rayprivacy.questions.typed import typed_answer

ROWS = 64  # of a block
SPAN, WHOLE = "span", "evidence"  # kinds of answers
LIKELIHOOD = pa.schema([("likelihood", pa.float64())])
JUDGED = pa.schema([("attribution", pa.string()), ("p_attributable", pa.float64())])


@dataclass(frozen=True)
class Answering:
    """A file of questions, and what finds entities."""

    path: Path
    entities: Literal["auto", "spacy", "rules"]


class Answerer:
    """Answers questions from their evidence: by what is of the kind that is asked for, or else by all of it."""

    def __init__(self, job: Answering) -> None:
        self._path, self._find = job.path, finder(job.entities)

    def __call__(self, number: int, group: int) -> pa.Table:
        """The questions of a row group with answers."""
        rows = _rows(self._path, group)
        texts = [*dict.fromkeys(row["evidence"] for row in rows)]
        known = dict(zip(texts, self._find(texts), strict=True))
        return pa.Table.from_pylist([row | answered(row, known[row["evidence"]]) for row in rows], ASKED)


def answered(row: Json, found: Sequence[Entity]) -> Json:
    """The answer to a question, given the entities of its evidence."""
    start, evidence = row["evidence_start"], row["evidence"]
    entity = typed_answer(row["question"], evidence, found)
    text, at = (evidence[entity.start : entity.end], start + entity.start) if entity else (evidence, start)
    return {
        "answers": {"text": [text], "answer_start": [at]},
        "answer_kind": SPAN if entity else WHOLE,
        "type": entity.kind if entity else None,
    }


@dataclass(frozen=True)
class Asked:
    """A file of questions, and the saved model that asked them."""

    path: Path
    model: Path
    settings: AskerConfig


class Likelihood:
    """Says how likely questions were for the model that asked them, behind their phrases."""

    def __init__(self, job: Asked) -> None:
        torch.set_num_threads(1)  # the order of floating-point sums must not depend on the machine's cores
        self._job = job

    @cached_property
    def _loss(self) -> ModelLoss:
        return ModelLoss(load_backbone(ModelConfig(base=str(self._job.model))), self._job.settings.question_tokens)

    def __call__(self, number: int, group: int) -> pa.Table:
        """The mean log-probability of a token of each question of a row group."""
        rows, documents, most = _rows(self._job.path, group), self._loss.backbone, self._job.settings.max_tokens
        prompts = [asked(ASK, row["evidence"], documents, most, row["phrase"]) for row in rows]
        rests = [row["question"].removeprefix(row["phrase"]) for row in rows]
        return pa.table([pa.array(-self._loss.per_token(rests, prompts))], LIKELIHOOD)


@dataclass(frozen=True)
class Judging:
    """A file of questions with answers, and a saved judge."""

    path: Path
    judge: Path


class Judgement:
    """Says whether passages support the answers to questions about them."""

    def __init__(self, job: Judging) -> None:
        torch.set_num_threads(1)
        self._path, self._judge = job.path, Judge.load(job.judge)

    def __call__(self, number: int, group: int) -> pa.Table:
        """The likeliest label of each question of a row group, and the probability that its answer is supported."""
        rows = _rows(self._path, group)
        claims = [Claim(row["question"], row["answers"]["text"][0], row["context"]) for row in rows]
        found = self._judge.probabilities(claims)
        labels = [LABELS[place] for place in found.argmax(axis=1)]
        return pa.table([pa.array(labels), pa.array(found[:, LABELS.index("attributable")])], JUDGED)


def _rows(path: Path, group: int) -> list[Json]:
    rows: list[Json] = pq.ParquetFile(path).read_row_group(group).to_pylist()
    return rows
