"""Which questions are kept: one selection of each kind, and the one of them that serves a reader best."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from rayprivacy.core.errors import RayPrivacyError
from rayprivacy.questions.overlap import words
from rayprivacy.questions.settings import KeepConfig

Mask = npt.NDArray[np.bool_]
ATTRIBUTABLE = "attributable"
SCORED = ("likelihood", "classifier", "ranking", "value")
SHARES = (0.4, 0.6, 0.8)  # of values, that are tried


def top(scores: npt.NDArray[np.floating], share: float) -> Mask:
    """The highest share of scores, at least one; of equal ones the earlier row."""
    kept = np.zeros(len(scores), dtype=bool)
    kept[np.argsort(-scores, kind="stable")[: max(1, round(share * len(scores)))]] = True
    return kept


def distinct(questions: Sequence[str]) -> Mask:
    """The first of those that are the same words."""
    first: dict[tuple[str, ...], int] = {}
    for row, question in enumerate(questions):
        first.setdefault(tuple(words(question)), row)
    kept = np.zeros(len(questions), dtype=bool)
    kept[[*first.values()]] = True
    return kept


def may_be_kept(questions: Sequence[str], labels: Sequence[str] | None, keep: KeepConfig) -> Mask:
    """Which questions may be kept: those that the judge supports, and of them the first of those that are alike.

    Args:
        questions: as they were asked.
        labels: the judge's, if there is one.
        keep: what is left out.

    Raises:
        RayPrivacyError: it is none of them.
    """
    found = np.ones(len(questions), dtype=bool)
    if keep.attributable and labels is not None:
        found = np.array([label == ATTRIBUTABLE for label in labels])
    if keep.distinct:
        rows = np.flatnonzero(found)
        found[rows] = distinct([questions[int(row)] for row in rows])
    if not found.any():
        raise RayPrivacyError(
            f"no question is kept: of {len(questions)} the judge finds none attributable: set"
            " questions.keep.attributable to false, or give other annotations."
        )
    return found


def selection(by: str, columns: Mapping[str, npt.NDArray[np.generic]], share: float, dice: np.random.Generator) -> Mask:
    """The selection of a kind.

    Args:
        by: none, random, roundtrip, likelihood, classifier, ranking or value.
        columns: what is known of each question: whether the reader finds its evidence again (`roundtrip`), and scores.
        share: that is kept of those that are ranked or drawn.
        dice: for what is drawn.
    """
    size = len(next(iter(columns.values())))
    if by == "none":
        return np.ones(size, dtype=bool)
    if by == "random":
        return top(dice.random(size), share)
    if by == "roundtrip":
        return columns["roundtrip"].astype(bool)
    return top(columns[by].astype(np.float64), share)


def candidates(
    columns: Mapping[str, npt.NDArray[np.generic]], share: float, dice: np.random.Generator
) -> dict[str, Mask]:
    """What `measured` chooses from: every kind that there are columns for, values at several shares."""
    kinds = ["none", "random", *(name for name in ("roundtrip", *SCORED[:-1]) if name in columns)]
    found = {by: selection(by, columns, share, dice) for by in kinds}
    if "value" in columns:
        found |= {f"value {kept:.0%}": selection("value", columns, kept, dice) for kept in SHARES}
    return {name: kept for name, kept in found.items() if kept.any()}


def measured(found: Mapping[str, Mask], served: Callable[[Mask], float]) -> tuple[str, dict[str, float]]:
    """The selection that serves best, with what each one does; of equal ones the first.

    Args:
        found: selections by name.
        served: how well a reader does that was trained on one, on annotations that no value was learnt from.
    """
    figures = {name: served(kept) for name, kept in found.items()}
    return max(figures, key=figures.__getitem__), figures
