"""Cuts texts so that their lengths follow given shares, at the ends of sentences. Public.

A sampled text goes on until the model ends it or a limit is reached, and a model of public text ends late. Any
beginning of a text that ends with a sentence is a text, too. For each text one beginning is drawn, or the whole, with
chances by raking (Deming and Stephan, 1940): each text weighs the same, and the expected lengths follow the shares as
far as there are sentences that end there. Before the raking a beginning weighs a quarter of the whole text, so that
texts whose lengths are right already mostly stay as they are.
"""

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rayprivacy.matching.shape import lengths

_END = re.compile(r"[.!?\u2026\u3002\uff01\uff1f]+[\"'\u201d\u2019)\]*]*(?=\s)|(?=\n)")
_OF_BEGINNING = 0.25
_TURNS = 50
_TINY = 1e-300


def beginnings(text: str) -> list[str]:
    """The beginnings of a text that end with a sentence or a line, and last the whole text.

    >>> beginnings("Yes! I do. And you")
    ['Yes!', 'Yes! I do.', 'Yes! I do. And you']
    """
    ends = (text[: place.end()].strip() for place in _END.finditer(text))
    return list(dict.fromkeys([*filter(None, ends), text]))


def cut(texts: Sequence[str], shares: npt.NDArray[np.float64], seed: int) -> list[str]:
    """One beginning, or the whole, of each text.

    Args:
        texts: the texts.
        shares: the wanted share of each length, as `shape.lengths` numbers them.
        seed: public.
    """
    choices = [beginnings(text) for text in texts]
    counts = np.array([len(each) for each in choices])
    owners = np.repeat(np.arange(len(texts)), counts)
    flat = [beginning for each in choices for beginning in each]
    bins = lengths(flat)
    weights = np.full(len(flat), _OF_BEGINNING)
    last = np.cumsum(counts) - 1
    weights[last] = 1.0
    for _ in range(_TURNS):
        held = np.bincount(bins, weights, minlength=len(shares))
        weights *= (len(texts) * shares / np.maximum(held, _TINY))[bins]
        weights = np.maximum(weights, _TINY)  # a text all of whose lengths nobody wants is kept, and weighs little
        weights /= np.bincount(owners, weights)[owners]
    draws = np.random.default_rng(seed).random(len(texts))
    ends = np.cumsum(weights)  # text i holds the stretch from i to i + 1
    taken = np.clip(np.searchsorted(ends, np.arange(len(texts)) + draws, side="right"), last - counts + 1, last)
    return [flat[place] for place in taken]
