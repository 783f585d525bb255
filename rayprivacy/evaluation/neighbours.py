"""Nearest neighbours of texts in an embedding: is synthetic text where real text is, and does it get everywhere?

Around every real text lies a ball that reaches to its k-th nearest real neighbour; the balls together stand for where
real text is. Precision is the share of synthetic texts in some ball, and recall the share of real texts in some ball
around a synthetic text (Kynkaanniemi et al., NeurIPS 2019). One outlier with a huge ball spoils both. Density counts in
how many balls a synthetic text lies, over k; coverage is the share of real balls that hold a synthetic text (Naeem et
al., ICML 2020).

Balls are closed, as Kynkaanniemi et al. define them. For texts this matters: "ok" occurs many times, its ball has
radius 0, and a synthetic "ok" lies in it.

`nearest_distances` says how near each text is to its nearest real one: the figure behind copied meaning (see
`memorisation`).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.spatial.distance import cdist

from rayprivacy.core.errors import ConfigError

Matrix = npt.NDArray[np.floating]
_BLOCK = 512
_NEAREST_BLOCK = 1024


@dataclass(frozen=True)
class Balls:
    """What nearest neighbours say about each text; the figures are means of these.

    Attributes:
        precise: for each synthetic text, whether a real ball holds it.
        dense: for each synthetic text, how many real balls hold it, over k.
        recalled: for each real text, whether a synthetic ball holds it.
        covered: for each real text, whether its ball holds a synthetic text.
    """

    precise: npt.NDArray[np.float64]
    dense: npt.NDArray[np.float64]
    recalled: npt.NDArray[np.float64]
    covered: npt.NDArray[np.float64]

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
    """Look up the neighbours, with Euclidean distances.

    Args:
        real: features of real texts, [texts, dimensions].
        synthetic: features of synthetic texts.
        neighbours: k; the ball of a text reaches to its k-th nearest neighbour, itself not counted.

    Raises:
        ConfigError: a side has no more than k texts.
    """
    least = min(len(real), len(synthetic))
    if neighbours >= least:
        raise ConfigError(f"neighbours is {neighbours}, and one side has {least} texts: choose fewer neighbours.")
    radii, reach = _radii(real, neighbours), _radii(synthetic, neighbours)
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


def _radii(features: Matrix, neighbours: int) -> npt.NDArray[np.float64]:
    found = []
    for start in range(0, len(features), _BLOCK):
        distances = cdist(features[start : start + _BLOCK], features)
        found.append(np.partition(distances, neighbours, axis=1)[:, neighbours])  # place 0 is the text itself
    return np.concatenate(found)


def nearest_distances(texts: Matrix, real: Matrix) -> npt.NDArray[np.float64]:
    """Cosine distance of each text to its nearest real text: 0 for the same point, at most 2.

    Args:
        texts: features of length 1 (or 0, which is at distance 1 from everything), [texts, dimensions].
        real: features of the real texts.
    """
    found = [
        1 - (texts[start : start + _NEAREST_BLOCK] @ real.T).max(axis=1)
        for start in range(0, len(texts), _NEAREST_BLOCK)
    ]
    # Rounding leaves 1e-8 of a zero, of either sign: a copy must be at distance 0, or "nearer" is a matter of luck.
    return np.asarray(np.concatenate(found).round(6).clip(0, 2), float)
