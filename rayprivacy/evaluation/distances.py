"""Distances of whole distributions: Frechet and MAUVE on embeddings, total variation and Jensen-Shannon on shares.

All four are 0 (MAUVE: 1) for equal distributions, and all are away from it for two finite samples of the SAME
distribution: read them beside the real-against-real reference of the same size, never alone.
"""

from importlib.util import find_spec

import numpy as np
import numpy.typing as npt

from rayprivacy.core.errors import ConfigError

Matrix = npt.NDArray[np.floating]
Shares = npt.ArrayLike
_TEXTS_PER_BUCKET = 20


def gaussian_frechet(mean: Matrix, covariance: Matrix, other_mean: Matrix, other_covariance: Matrix) -> float:
    """The Frechet (2-Wasserstein) distance of two Gaussians, squared (Dowson and Landau, 1982).

    |m1 - m2|^2 + tr(C1 + C2 - 2 (C1^1/2 C2 C1^1/2)^1/2), from eigenvalues: C1^1/2 C2 C1^1/2 is symmetric, so that no
    complex root of a non-symmetric product has to be thrown away.

    >>> gaussian_frechet(np.zeros(1), np.array([[4.0]]), np.ones(1), np.array([[9.0]]))
    2.0
    """
    values, vectors = np.linalg.eigh(covariance)
    root = (vectors * np.sqrt(np.clip(values, 0, None))) @ vectors.T
    cross = np.sqrt(np.clip(np.linalg.eigvalsh(root @ other_covariance @ root), 0, None)).sum()
    apart = float(((mean - other_mean) ** 2).sum())
    return max(apart + float(np.trace(covariance) + np.trace(other_covariance) - 2 * cross), 0.0)


def frechet(real: Matrix, synthetic: Matrix) -> float:
    """Frechet distance of the Gaussians that fit two sets of features (Heusel et al., NeurIPS 2017).

    Raises:
        ConfigError: a side has fewer than two texts.
    """
    if min(len(real), len(synthetic)) < 2:
        raise ConfigError(f"the Frechet distance of {min(len(real), len(synthetic))} texts is undefined: give two.")
    sides = [np.asarray(side, float) for side in (real, synthetic)]
    (mean, covariance), (other, spread) = [(each.mean(axis=0), np.atleast_2d(np.cov(each.T))) for each in sides]
    return gaussian_frechet(mean, covariance, other, spread)


def has_mauve() -> bool:
    """Whether mauve-text is here: an extra of its own, because its licence is the GPL."""
    return find_spec("mauve") is not None


def mauve(real: Matrix, synthetic: Matrix, seed: int) -> float:
    """MAUVE of two sets of features, 0 to 1, higher is nearer (Pillutla et al., NeurIPS 2021), by mauve-text.

    There is one bucket for 20 texts of the smaller side, where the paper has one for 10: fewer make k-means of short
    texts unstable (faiss asks for 39 points a bucket). So compare with figures of this project only.
    """
    from mauve import compute_mauve  # imports faiss, torch and transformers

    if not np.ptp(np.concatenate([real, synthetic]), axis=0).any():
        return 1.0  # all texts are one text: nothing to cluster
    buckets = max(2, min(len(real), len(synthetic)) // _TEXTS_PER_BUCKET)
    return float(compute_mauve(p_features=real, q_features=synthetic, num_buckets=buckets, seed=seed).mauve)


def total_variation(left: Shares, right: Shares) -> float:
    """Half the sum of absolute differences of two histograms, each taken as shares: 0 equal, 1 disjoint.

    >>> total_variation([1, 1], [2, 0])
    0.5
    """
    p, q = _shares(left), _shares(right)
    return float(np.abs(p - q).sum() / 2)


def jensen_shannon(left: Shares, right: Shares) -> float:
    """Jensen-Shannon divergence of two histograms in bits: 0 equal, 1 disjoint (Lin, 1991).

    >>> jensen_shannon([1, 0], [0, 3])
    1.0
    """
    p, q = _shares(left), _shares(right)
    middle = (p + q) / 2
    return max(float((_relative(p, middle) + _relative(q, middle)) / 2), 0.0)


def _shares(counts: Shares) -> npt.NDArray[np.float64]:
    values = np.asarray(counts, float)
    return np.asarray(values / max(values.sum(), np.finfo(float).tiny), float)


def _relative(p: npt.NDArray[np.float64], q: npt.NDArray[np.float64]) -> float:
    some = p > 0
    return float((p[some] * np.log2(p[some] / q[some])).sum())
