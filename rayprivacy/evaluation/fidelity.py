"""Fidelity, whether synthetic text is distributed like real text: figures of each embedding, and their average.

Precision, recall, density and coverage are means of one number per text, and carry intervals over the users of these
texts, given the texts of the other side. F1, the Frechet distance and MAUVE carry none (see `figures`).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rayprivacy.evaluation.distances import frechet, has_mauve, mauve
from rayprivacy.evaluation.figures import Better, Figure, Row, mean_figure
from rayprivacy.evaluation.neighbours import Balls, balls

_HIGHER: tuple[str, ...] = ("precision", "recall", "f1", "density", "coverage")
BETTER: Mapping[str, Better] = {**dict.fromkeys(_HIGHER, "higher"), "frechet": "lower", "mauve": "higher"}
Matrix = npt.NDArray[np.floating]
Users = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Fidelity:
    """What two sets of texts score in every embedding, and on average, with intervals where there are any."""

    by_embedding: Mapping[str, Mapping[str, float]]
    average: Mapping[str, Figure]


def fidelity(
    real: Mapping[str, Matrix],
    synthetic: Mapping[str, Matrix],
    users: tuple[Users, Users],
    neighbours: int = 5,
    seed: int = 0,
) -> Fidelity:
    """Compare the features of real and of synthetic texts by embedding; `users` are of the real and of the others."""
    found = {name: balls(real[name], synthetic[name], neighbours) for name in real}
    figures = {name: each.figures() | {"frechet": frechet(real[name], synthetic[name])} for name, each in found.items()}
    if has_mauve():
        for name, each in figures.items():
            each["mauve"] = mauve(real[name], synthetic[name], seed)
    known = next(iter(figures.values()))
    average = {key: Figure(float(np.mean([each[key] for each in figures.values()]))) for key in known}
    return Fidelity(figures, average | _means(list(found.values()), users, seed))


def _means(found: list[Balls], users: tuple[Users, Users], seed: int) -> dict[str, Figure]:
    """Averages over embeddings, text by text: a resampled user takes the numbers of all embeddings along."""
    real, synthetic = users
    return {
        "precision": mean_figure(np.mean([each.precise for each in found], axis=0), synthetic, seed),
        "recall": mean_figure(np.mean([each.recalled for each in found], axis=0), real, seed),
        "density": mean_figure(np.mean([each.dense for each in found], axis=0), synthetic, seed),
        "coverage": mean_figure(np.mean([each.covered for each in found], axis=0), real, seed),
    }


def fidelity_rows(synthetic: Fidelity, reference: Fidelity | None) -> list[Row]:
    """A row for each figure, with what each embedding says."""
    rows = []
    for name, better in BETTER.items():
        if name not in synthetic.average:
            continue
        embeddings = {
            each: {"synthetic": figures[name]}
            | ({"reference": reference.by_embedding[each][name]} if reference is not None else {})
            for each, figures in synthetic.by_embedding.items()
        }
        other = None if reference is None else reference.average[name]
        rows.append(Row("fidelity", name, better, synthetic.average[name], other, embeddings))
    return rows
