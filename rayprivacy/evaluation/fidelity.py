"""Fidelity, whether synthetic text is distributed like real text: figures of each embedding, and their average.

Around every real text lies a ball that reaches to its k-th nearest real neighbour; the balls together stand for where
real text is. Precision is the share of synthetic texts in some ball, and recall the share of real texts in some ball
around a synthetic text (Kynkaanniemi et al., NeurIPS 2019). One outlier with a huge ball spoils both. Density counts in
how many balls a synthetic text lies, over k; coverage is the share of real balls that hold a synthetic text (Naeem et
al., ICML 2020). Balls are closed, as Kynkaanniemi et al. define them. For texts this matters: "ok" occurs many times,
its ball has radius 0, and a synthetic "ok" lies in it. These four are means of one number per text, and carry intervals
over the users of these texts, given the texts of the other side.

F1 and distances of whole distributions carry none (see `figures`): Frechet and MAUVE on embeddings, total variation and
Jensen-Shannon on shares. All four are 0 (MAUVE: 1) for equal distributions, and all are away from it for two finite
samples of the SAME distribution: read them beside the real-against-real reference of the same size, never alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import numpy.typing as npt
from scipy.spatial.distance import cdist

from rayprivacy.core.errors import ConfigError
from rayprivacy.evaluation.figures import Better, Figure, FigureRow, mean_figure

Matrix = npt.NDArray[np.floating]
Shares = npt.ArrayLike
_Numbers = npt.NDArray[np.float64]
_BLOCK = 512
_NEAREST_BLOCK = 1024


def gaussian_frechet(mean: Matrix, covariance: Matrix, other_mean: Matrix, other_covariance: Matrix) -> float:
    """|m1 - m2|^2 + tr(C1 + C2 - 2 (C1^1/2 C2 C1^1/2)^1/2) of two Gaussians (Dowson and Landau, 1982)."""
    values, vectors = np.linalg.eigh(covariance)
    root = (vectors * np.sqrt(np.clip(values, 0, None))) @ vectors.T
    cross = np.sqrt(np.clip(np.linalg.eigvalsh(root @ other_covariance @ root), 0, None)).sum()
    apart = float(((mean - other_mean) ** 2).sum())
    return max(apart + float(np.trace(covariance) + np.trace(other_covariance) - 2 * cross), 0.0)


def frechet(real: Matrix, synthetic: Matrix) -> float:
    """Frechet distance of Gaussians that fit two sets of features, each of two texts or more (Heusel et al., 2017)."""
    if min(len(real), len(synthetic)) < 2:
        raise ConfigError(f"the Frechet distance of {min(len(real), len(synthetic))} texts is undefined: give two.")
    sides = [np.asarray(side, float) for side in (real, synthetic)]
    (mean, covariance), (other, spread) = [(each.mean(axis=0), np.atleast_2d(np.cov(each.T))) for each in sides]
    return gaussian_frechet(mean, covariance, other, spread)


def has_mauve() -> bool:
    """Whether mauve-text is here: an extra of its own, because its licence is the GPL."""
    return find_spec("mauve") is not None


def mauve(real: Matrix, synthetic: Matrix, seed: int) -> float:
    """MAUVE of two sets of features, 0 to 1, higher is nearer (Pillutla et al., NeurIPS 2021). A bucket takes 20 texts
    of the smaller side, not 10 (unstable for short texts): compare figures of this project only.
    """
    from mauve import compute_mauve  # imports faiss, torch and transformers

    if not np.ptp(np.concatenate([real, synthetic]), axis=0).any():
        return 1.0  # all texts are one text: nothing to cluster
    buckets = max(2, min(len(real), len(synthetic)) // 20)
    return float(compute_mauve(p_features=real, q_features=synthetic, num_buckets=buckets, seed=seed).mauve)


def total_variation(left: Shares, right: Shares) -> float:
    """Half the sum of absolute differences of two histograms, each taken as shares: 0 equal, 1 disjoint."""
    p, q = _shares(left), _shares(right)
    return float(np.abs(p - q).sum() / 2)


def jensen_shannon(left: Shares, right: Shares) -> float:
    """Jensen-Shannon divergence of two histograms in bits: 0 equal, 1 disjoint (Lin, 1991)."""
    p, q = _shares(left), _shares(right)
    middle = (p + q) / 2
    return max(float((_relative(p, middle) + _relative(q, middle)) / 2), 0.0)


def _shares(counts: Shares) -> npt.NDArray[np.float64]:
    values = np.asarray(counts, float)
    return np.asarray(values / max(values.sum(), np.finfo(float).tiny), float)


def _relative(p: npt.NDArray[np.float64], q: npt.NDArray[np.float64]) -> float:
    some = p > 0
    return float((p[some] * np.log2(p[some] / q[some])).sum())


@dataclass(frozen=True)
class Balls:
    """By synthetic text, whether a real ball holds it (`precise`) and how many, over k (`dense`); by real text, whether
    a synthetic ball holds it (`recalled`), or its ball a synthetic text (`covered`). Their means are the figures.
    """

    precise: _Numbers
    dense: _Numbers
    recalled: _Numbers
    covered: _Numbers

    def figures(self) -> dict[str, float]:
        """Precision, recall, their harmonic mean, density and coverage."""
        precision, recall = float(self.precise.mean()), float(self.recalled.mean())
        return {
            "precision": precision,
            "recall": recall,
            "f1": 2 * precision * recall / (precision + recall) if precision + recall else 0.0,
            "density": float(self.dense.mean()),
            "coverage": float(self.covered.mean()),
        }


def balls(real: Matrix, synthetic: Matrix, neighbours: int) -> Balls:
    """Look up the `neighbours` nearest ones, itself not counted, by Euclidean distance; each side has more texts."""
    least = min(len(real), len(synthetic))
    if neighbours >= least:
        raise ConfigError(f"neighbours is {neighbours}, and one side has {least} texts: choose fewer neighbours.")
    radii, reach = reaches(real, neighbours), reaches(synthetic, neighbours)
    held = np.zeros(len(synthetic))
    recalled, covered = np.zeros(len(real)), np.zeros(len(real))
    for start in range(0, len(real), _BLOCK):
        part = slice(start, start + _BLOCK)
        distances = cdist(real[part], synthetic)
        inside = distances <= radii[part, None]
        held += inside.sum(axis=0)
        covered[part] = inside.any(axis=1)
        recalled[part] = (distances <= reach[None, :]).any(axis=1)
    return Balls((held > 0).astype(float), held / neighbours, recalled, covered)


def reaches(features: Matrix, neighbours: int) -> npt.NDArray[np.float64]:
    """How far it is from each text to its `neighbours`-th nearest one, itself not counted."""
    found = []
    for start in range(0, len(features), _BLOCK):
        distances = cdist(features[start : start + _BLOCK], features)
        found.append(np.partition(distances, neighbours, axis=1)[:, neighbours])  # place 0 is the text itself
    return np.concatenate(found)


def nearest_distances(texts: Matrix, real: Matrix) -> npt.NDArray[np.float64]:
    """Cosine distance of each text to its nearest real text, 0 to 2; features have length 1, or 0 (distance 1)."""
    found = [
        1 - (texts[start : start + _NEAREST_BLOCK] @ real.T).max(axis=1)
        for start in range(0, len(texts), _NEAREST_BLOCK)
    ]
    # Rounding leaves 1e-8 of a zero, of either sign: a copy must be at distance 0, or "nearer" is a matter of luck.
    return np.asarray(np.concatenate(found).round(6).clip(0, 2), float)


BETTER: Mapping[str, Better] = {
    **dict.fromkeys(("precision", "recall", "f1", "density", "coverage", "mauve"), "higher"),
    "frechet": "lower",
}
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
    parts = {"precision": ("precise", synthetic), "recall": ("recalled", real)}
    parts |= {"density": ("dense", synthetic), "coverage": ("covered", real)}
    return {
        name: mean_figure(np.mean([getattr(each, part) for each in found], axis=0), owners, seed)
        for name, (part, owners) in parts.items()
    }


def fidelity_rows(synthetic: Fidelity, reference: Fidelity | None) -> list[FigureRow]:
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
        rows.append(FigureRow("fidelity", name, better, synthetic.average[name], other, embeddings))
    return rows
