"""What SanText is compared with in its paper: words drawn uniformly, and noise added to vectors (FBDD)."""

import numpy as np

_ROWS = 512


def random_words(ids: np.ndarray, size: int, dice: np.random.Generator) -> np.ndarray:
    """Every word replaced by any other."""
    return dice.integers(0, size, len(ids)).astype(ids.dtype)


def fbdd(vectors: np.ndarray, ids: np.ndarray, epsilon: float, dice: np.random.Generator) -> np.ndarray:
    """Feyisetan et al. (WSDM 2020): a vector gets noise of density exp(-epsilon |z|), and becomes the nearest word.

    The direction is uniform and the length Gamma with shape `width` and scale 1/epsilon. An unknown word has the mean
    vector.
    """
    words = vectors[:-1].astype(np.float32)
    halves = (words**2).sum(1) / 2
    width, found = words.shape[1], np.empty_like(ids)
    for start in range(0, len(ids), _ROWS):
        mine = vectors[ids[start : start + _ROWS]]
        direction = dice.normal(size=mine.shape)
        direction /= np.linalg.norm(direction, axis=1, keepdims=True)
        noisy = mine + direction * dice.gamma(width, 1 / epsilon, size=(len(mine), 1))
        found[start : start + _ROWS] = (noisy.astype(np.float32) @ words.T - halves).argmax(1)
    return found
