"""Exposure of a planted secret: its rank among the candidates, and whether it was written out.

Exposure (Carlini et al., USENIX Security 2019) is log2 |R| - log2 rank, where R are the candidates and rank is the
place of the planted one when they are ordered by the model's loss. A model that never saw the secret ranks it
uniformly: its exposure is about 1.44 bits on average. It reaches log2 |R| (13.3 bits for 10,000) when the secret comes
first.
Rank and exposure are no bounds on epsilon: they rest on one draw of the training.

>>> losses = np.array([3.0, 1.0, 2.0, 4.0])
>>> rank(losses, 2), exposure(losses, 2)
(2.0, 1.0)
"""

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from rayprivacy.auditing.secrets import Secret, squeezed

Losses = Callable[[Sequence[str]], npt.NDArray[np.float64]]


def rank(losses: npt.NDArray[np.float64], planted: int) -> float:
    """The place of the planted candidate, 1 being the least loss; equal losses share the middle of their places."""
    own = losses[planted]
    return float(1 + (losses < own).sum() + (np.count_nonzero(losses == own) - 1) / 2)


def exposure(losses: npt.NDArray[np.float64], planted: int) -> float:
    """Bits by which the rank of the planted candidate falls short of the number of candidates."""
    return math.log2(len(losses)) - math.log2(rank(losses, planted))


def ranks(scorer: Losses, among: Sequence[Secret], planted: Sequence[int]) -> list[float]:
    """The ranks of several planted secrets of one kind.

    Each is compared with the candidates that were not planted, and not with the other planted ones: a secret that 100
    users share would push one that a single user holds to rank 2.

    Args:
        scorer: the model's loss on each text.
        among: all candidates of the kind.
        planted: the places of the planted ones.
    """
    losses = scorer([secret.sentence for secret in among])
    others = np.delete(losses, np.asarray(planted))
    return [rank(np.append(others, losses[place]), len(others)) for place in planted]


def leaked(secrets: Sequence[Secret], texts: Iterable[str]) -> list[bool]:
    """Whether each secret, or its identifying part, stands in some text; case, spaces and punctuation do not count."""
    found = [False] * len(secrets)
    for text in map(squeezed, texts):
        found = [was or secret.is_in(text) for was, secret in zip(found, secrets, strict=True)]
    return found
