"""The choice of questions: what an evidence reader finds again, what questions are worth, and which are kept.

The reader learns from public pairs, and then from annotations. Of both and of the written questions it reads sentences
as static vectors of a public model, so that all of this takes seconds. Of annotations that a selection is `measured`
on, no value is learnt: three fifths of their passages give rewards, and the others judge.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rayprivacy.core.files import Json
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.spelling import ids_of
from rayprivacy.questions.estimator import as_classes, as_ranking, contrasted, features, misplaced
from rayprivacy.questions.evidence_reader import (
    Array,
    QuestionSet,
    SentenceVectors,
    accuracies,
    beginning,
    scores,
    trained,
)
from rayprivacy.questions.keep import Mask, candidates, measured, selection
from rayprivacy.questions.overlap import Idf, words
from rayprivacy.questions.public import MEASURED, Pair, Row, learnt_from, require_contrast, row_of
from rayprivacy.questions.settings import QuestionsConfig
from rayprivacy.questions.value import Feedback, Learning, ranks, values

EPOCHS, ORDERS = 3, 3  # of training, and orders of it over which a reader that judges is averaged
REWARDING = 0.6  # of the annotated passages
Columns = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Sets:
    """All that is known, as arrays: public pairs, what was written, and annotations with their groups."""

    source: QuestionSet
    written: QuestionSet
    annotated: QuestionSet
    groups: npt.NDArray[np.int64]

    @staticmethod
    def about(
        asked: pa.Table, backbone: Backbone, pairs: Sequence[Pair], annotated: Sequence[Json], seed: int
    ) -> "Sets":
        """What is known where questions were asked; a tenth of the pairs is set apart where nothing is annotated."""
        source, others = learnt_from(pairs, annotated, seed)
        written = [
            row_of(row["question"], row["context"], row["evidence_start"])
            for row in asked.select(["question", "context", "evidence_start"]).to_pylist()
        ]
        return Sets.of(backbone, source, written, others)

    @staticmethod
    def of(backbone: Backbone, source: Sequence[Row], written: Sequence[Row], annotated: Sequence[Row]) -> "Sets":
        """The arrays of rows; idf and vectors are learnt from the sentences of public pairs and of what is asked about.

        Everything is read in lower case, as public pairs often are.
        """
        texts = dict.fromkeys(sentence for row in (*source, *written) for sentence in row.sentences)
        table = backbone.model.get_input_embeddings().weight.detach().float().numpy()

        def spelt(texts: Sequence[str]) -> list[list[int]]:
            return ids_of(backbone.tokenizer, [text.lower() for text in texts])

        vectors, idf = SentenceVectors.of(table, spelt([*texts])), Idf.of(map(words, texts))

        def arrays(rows: Sequence[Row]) -> QuestionSet:
            return QuestionSet.of([row[:3] for row in rows], lambda texts: vectors(spelt(texts)), idf)

        groups = np.unique([row.group for row in annotated], return_inverse=True)[1]
        return Sets(arrays(source), arrays(written), arrays(annotated), groups)


@dataclass(frozen=True)
class Chosen:
    """Which questions are kept, by which selection, what is known of each, and what selections came to, if measured."""

    kept: Mask
    by: str
    columns: Columns
    figures: dict[str, float]


@dataclass(frozen=True)
class Judged:
    """What a selection does for readers, on annotations from which neither it nor they have learnt.

    Attributes:
        kept: how many questions are.
        found: of each annotation that judges, the share of readers that find its evidence.
        groups: of these annotations, whose passages are alike.
    """

    kept: int
    found: npt.NDArray[np.float64]
    groups: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Choosing:
    """The choice among the written questions that are `eligible`; the others are read, and never kept."""

    sets: Sets
    eligible: Mask
    settings: QuestionsConfig
    likelihood: npt.NDArray[np.float64] | None
    actors: int

    @cached_property
    def start(self) -> Array:
        """The reader that has learnt from public pairs alone."""
        return trained(beginning(self.sets.source.questions.shape[1]), self.sets.source, self._dice(1), EPOCHS)

    def __call__(self) -> Chosen:
        """The questions that the settings keep."""
        annotated = self.sets.annotated
        by: str = self.settings.keep.by
        judging = self._judging() if by == MEASURED else np.zeros(len(annotated), dtype=bool)
        columns, learning = self._columns(annotated[~judging])
        if learning is not None:
            columns["value"] = self._of_all(values(learning, self.settings.seed, self.actors))
        figures: dict[str, float] = {}
        if by == MEASURED:
            found = candidates(self._own(columns), self.settings.keep.share, self._dice(3))
            by, figures = measured(found, lambda kept: self._served(kept, judging))
            chosen = found[by]
        else:
            chosen = self._selected(columns)
        kept = np.zeros(len(self.eligible), dtype=bool)
        kept[np.flatnonzero(self.eligible)[chosen]] = True
        return Chosen(kept, by, columns, figures)

    def judged(self) -> Iterator[Judged]:
        """What the selection does for readers after each estimator of values, or once where it needs no values.

        It is not `measured`, since that one is chosen by the annotations that judge.
        """
        judging, learnt = self._judging(), []
        columns, learning = self._columns(self.sets.annotated[~judging])
        for number in range(self.settings.value.estimators if learning else 1):
            if learning:
                learnt.append(ranks(learning(number, self.settings.seed)))
                columns["value"] = self._of_all(np.mean(learnt, axis=0))
            chosen, judges = self._selected(columns), self.sets.annotated[judging]
            found = scores(self._readers(chosen, judging), judges).argmax(axis=-1) == judges.evidence
            yield Judged(int(chosen.sum()), found.mean(axis=0), self.sets.groups[judging])

    def _selected(self, columns: Columns) -> Mask:
        return selection(self.settings.keep.by, self._own(columns), self.settings.keep.share, self._dice(3))

    def _own(self, columns: Columns) -> Columns:
        return {name: column[self.eligible] for name, column in columns.items()}

    def _of_all(self, worth: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """The values of the eligible questions as a column of all."""
        found = np.full(len(self.eligible), np.nan)
        found[self.eligible] = worth
        return found

    def _columns(self, annotated: QuestionSet) -> tuple[Columns, Learning | None]:
        """What is known of each question by some annotations, and, where values are asked for, what they are learnt
        from, which leaves out questions that are not eligible.
        """
        by, written, dice = self.settings.keep.by, self.sets.written, self._dice(2)
        reader = trained(self.start, annotated, dice, EPOCHS)
        found: Columns = {"roundtrip": scores(reader[None], written)[0].argmax(axis=-1) == written.evidence}
        if self.likelihood is not None:
            found["likelihood"] = self.likelihood
        seen = features(written, reader)
        good, bad = features(annotated, reader), features(misplaced(annotated, dice), reader)
        require_contrast(by, len(bad) > 0)  # those of a search that do not judge can be other ones than all
        for name, loss in (("classifier", as_classes), ("ranking", as_ranking)):
            if by in (name, MEASURED) and len(bad):
                found[name] = contrasted(good, bad, loss, dice)(seen)
        if by not in ("value", MEASURED):
            return found, None
        feedback = Feedback(self.start, written[self.eligible], annotated, self.settings.value)
        return found, Learning(feedback, seen[self.eligible])

    def _judging(self) -> Mask:
        """Which annotations judge: those of two fifths of the passages."""
        groups = self.sets.groups if self.sets.groups.max() else np.arange(len(self.sets.groups))
        order = self._dice(4).permutation(groups.max() + 1)
        return np.isin(groups, order[min(round(REWARDING * len(order)), len(order) - 1) :])

    def _served(self, kept: Mask, judging: Mask) -> float:
        """How often readers find the evidence of judging annotations that learnt from a selection and the others."""
        return float(accuracies(self._readers(kept, judging), self.sets.annotated[judging]).mean())

    def _readers(self, kept: Mask, judging: Mask) -> Array:
        """Readers that have learnt from a selection, and from the annotations that do not judge."""
        written, annotated = self.sets.written[self.eligible][kept], self.sets.annotated
        readers = []
        for order in range(ORDERS):
            dice = self._dice(5 + order)
            readers.append(trained(trained(self.start, written, dice), annotated[~judging], dice))
        return np.stack(readers)

    def _dice(self, purpose: int) -> np.random.Generator:
        return np.random.default_rng([self.settings.seed, purpose])


def unread(eligible: Mask, settings: QuestionsConfig) -> Chosen:
    """What is kept where there is no reader: all of the eligible ones, or a share of them."""
    keep, dice = settings.keep, np.random.default_rng([settings.seed, 3])
    kept = eligible.copy()
    kept[eligible] = selection(keep.by, {"eligible": eligible[eligible]}, keep.share, dice)
    return Chosen(kept, keep.by, {}, {})
