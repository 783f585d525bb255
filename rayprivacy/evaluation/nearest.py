"""How near is each text to its nearest real one in an embedding: cosine distance, 0 for the same point, at most 2."""

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.floating]
_BLOCK = 1024


def nearest_distances(texts: Matrix, real: Matrix) -> npt.NDArray[np.float64]:
    """Cosine distance of each text to its nearest real text.

    Args:
        texts: features of length 1 (or 0, which is at distance 1 from everything), [texts, dimensions].
        real: features of the real texts.
    """
    found = [1 - (texts[start : start + _BLOCK] @ real.T).max(axis=1) for start in range(0, len(texts), _BLOCK)]
    # Rounding leaves 1e-8 of a zero, of either sign: a copy must be at distance 0, or "nearer" is a matter of luck.
    return np.asarray(np.concatenate(found).round(6).clip(0, 2), float)
