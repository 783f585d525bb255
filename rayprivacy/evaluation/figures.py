"""Figures of an evaluation: a value, its interval over USERS, the row where it stands beside a reference; and the page.

Intervals come from resampling users, since texts of one user resemble each other: those of resampled texts are far too
narrow (a test shows it).
The percentile bootstrap of a cluster sample draws users with replacement, each with all their texts (Field and Welsh,
2007). It serves figures that are means of one number per text: then a replicate needs the sums per user only, and a
thousand of them are one product of matrices.

Figures that compare two whole distributions (MAUVE, Frechet distance, total variation, F1, shared words, distinct
n-grams) carry no interval: resampling repeats texts, and repeated texts change such a figure whatever the users are.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from rayprivacy.core.files import write_atomic, write_json

REPLICATES = 1000
LEVEL = 0.95
_BLOCK = 100
Better = Literal["higher", "lower", "near"]
Measured = dict[str, Any]  # figures as JSON values


@dataclass(frozen=True)
class Figure:
    """A measured value, with the ends of its 95% interval over users where it carries one."""

    value: float
    low: float | None = None
    high: float | None = None


def mean_figure(
    values: npt.ArrayLike, users: npt.NDArray[np.int64], seed: int, weights: npt.ArrayLike | None = None
) -> Figure:
    """The mean of one number per text, weighted if `weights` are given (so give numerators as values / weights), with
    its percentile interval over users; none below two users. The seed of the resampling is public.
    """
    weight = np.ones(len(users)) if weights is None else np.asarray(weights, float)
    totals = np.asarray(values, float) * weight
    codes = np.unique(users, return_inverse=True)[1]
    value = float(totals.sum() / weight.sum())
    above, below = (np.bincount(codes, each).astype(float) for each in (totals, weight))
    if len(above) < 2:
        return Figure(value)
    low, high = np.quantile(_replicates(above, below, seed), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Figure(value, float(low), float(high))


def _replicates(above: npt.NDArray[np.float64], below: npt.NDArray[np.float64], seed: int) -> npt.NDArray[np.float64]:
    users = len(above)
    draw = np.random.default_rng([seed, users])
    ratios = []
    for _ in range(REPLICATES // _BLOCK):  # in blocks, so that the counts of 5,000 users stay small
        counts = draw.multinomial(users, np.full(users, 1 / users), _BLOCK)
        ratios.append((counts @ above) / np.maximum(counts @ below, np.finfo(float).tiny))
    return np.concatenate(ratios)


@dataclass(frozen=True)
class FigureRow:
    """One figure of synthetic text and, as the best to hope for, of real text of other users, if there are any;
    `better` is higher, lower or near. `by_embedding` has the same for each embedding.
    """

    group: str
    name: str
    better: Better
    synthetic: Figure | None
    reference: Figure | None = None
    by_embedding: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def plain(self) -> Measured:
        """As JSON, without what it does not have."""
        found: Measured = {"group": self.group, "name": self.name, "better": self.better}
        for side, figure in (("synthetic", self.synthetic), ("reference", self.reference)):
            found[side] = None if figure is None else figure.value
            if figure is not None and figure.low is not None:
                found[f"{side}_interval"] = [figure.low, figure.high]
        if self.by_embedding:
            found["by_embedding"] = {name: dict(values) for name, values in self.by_embedding.items()}
        return found


def paired(
    group: str,
    better: Mapping[str, Better],
    synthetic: Mapping[str, Figure | float],
    reference: Mapping[str, Figure | float] | None,
) -> list[FigureRow]:
    """A row for each figure that `better` names, in its order."""
    return [
        FigureRow(group, name, wanted, _figure(synthetic.get(name)), _figure((reference or {}).get(name)))
        for name, wanted in better.items()
        if name in synthetic or name in (reference or {})
    ]


def _figure(value: Figure | float | None) -> Figure | None:
    return Figure(float(value)) if isinstance(value, int | float) else value


JSON_FILE, PAGE_FILE = "evaluation.json", "evaluation.md"
COLUMNS = ("figure", "synthetic", "real, other users", "better")
_BETTER = {"higher": "higher", "lower": "lower", "near": "near the real one"}
_TITLES = {
    "fidelity": "Fidelity: is it distributed like real text?",
    "words": "Words, topics and lengths",
    "trees": "Parse trees: do words and functions occur as in real text?",
    "memorisation": "Memorisation: does it repeat real text? (beside: held-out text)",
    "downstream": "A classifier trained on it (beside: trained on real text)",
}


CONTENT = "What it is about: share of texts with the ten commonest content words of real text, and the ten most missing"


def tables(found: Mapping[str, Any]) -> Iterator[tuple[str, list[tuple[str, str, str, str]]]]:
    """Title and cells of each group that has rows."""
    for group, title in _TITLES.items():
        cells = [
            (row["name"], _one_figure(row, "synthetic"), _one_figure(row, "reference"), _BETTER[row["better"]])
            for row in found["rows"]
            if row["group"] == group
        ]
        if cells:
            yield title, cells
    words = found.get("content_words", [])
    if words:
        yield CONTENT, [(w["word"], f"{w['synthetic']:.1%}", f"{w['reference']:.1%}", _BETTER["near"]) for w in words]


def markdown(found: Mapping[str, Any]) -> str:
    """The whole evaluation as Markdown."""
    lines = ["# Evaluation", "", f"Not releasable: {found['why']}.", ""]
    for name, sizes in found["inputs"].items():
        lines.append(f"- {name}: {sizes['texts']:,} texts of {sizes['users']:,} users")
    compared = found["compared"]
    lines.append(
        f"- compared: {compared['synthetic']:,} synthetic and {compared['reference']:,} other real texts, each with "
        f"{compared['real_target']:,} real texts"
    )
    lines += [f"- {note}" for note in found["notes"]]
    for title, cells in tables(found):
        lines += ["", f"## {title}", "", f"| {' | '.join(COLUMNS)} |", "|---|---:|---:|---|"]
        lines += [f"| {' | '.join(row)} |" for row in cells]
    level = found["settings"]["intervals"]["level"]
    lines += ["", f"Brackets are {level:.0%} intervals over users. Figures without brackets carry none."]
    lines.append(f"Fidelity is the mean over the embeddings {', '.join(found['settings']['embeddings'])}.")
    return "\n".join(lines) + "\n"


def write_evaluation(folder: Path, found: Mapping[str, Any]) -> None:
    """Write `evaluation.json` and `evaluation.md`, for their owner only: the figures are internal."""
    write_json(folder / JSON_FILE, found)
    write_atomic(folder / PAGE_FILE, markdown(found).encode())


def delete_evaluation(folder: Path) -> None:
    """Delete both files, if they are there."""
    for name in (JSON_FILE, PAGE_FILE):
        (folder / name).unlink(missing_ok=True)


def _one_figure(row: Mapping[str, Any], side: str) -> str:
    value, interval = row[side], row.get(f"{side}_interval")
    if value is None:
        return ""
    return f"{value:.4g}" if interval is None else f"{value:.4g} [{interval[0]:.4g}, {interval[1]:.4g}]"
