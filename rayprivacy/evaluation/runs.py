"""Copied passages: for each synthetic text, the longest run of words that also stands in one real text.

Runs of length n + 1 extend runs of length n. So all places where a run of the present length starts are kept, for both
corpora together; those whose run occurs in one corpus only are dropped, and the rest is extended by a word. What is
left at n = 8 are the shared 8-grams; when nothing is left, every longest run is known. The work is the number of places
that survive, and most are gone after five words; nobody has to choose between speed and finding a copied page. All real
texts are searched, not a sample: a copy of a text that was not drawn is a copy too.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rayprivacy.evaluation.vocabulary import normal_words

GRAM = 8
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Runs:
    """What each text shares with the real ones.

    Attributes:
        words: words of each text.
        longest: length of its longest shared run, in words.
        grams: how many of its runs of `GRAM` words are shared.
    """

    words: Ints
    longest: Ints
    grams: Ints

    @property
    def copied(self) -> npt.NDArray[np.bool_]:
        """Whether all of a text stands in a real one, as the whole of it or as a part."""
        return np.asarray((self.longest == self.words) & (self.words > 0))

    @property
    def long_enough(self) -> npt.NDArray[np.bool_]:
        """Whether a text has a run of `GRAM` words at all; shorter ones cannot show a copy, they are small talk."""
        return self.words >= GRAM

    @property
    def gram_share(self) -> npt.NDArray[np.float64]:
        """The shared runs of `GRAM` words over all of the text's; 0 for a shorter text."""
        return np.asarray(self.grams / np.maximum(self.words - GRAM + 1, 1), float)


def shared_runs(texts: list[str], real: list[str]) -> Runs:
    """Find the longest shared run of every text.

    >>> found = shared_runs(["I like green tea a lot"], ["do you LIKE green tea?"])
    >>> found.longest.tolist(), found.words.tolist()
    ([3], [6])
    """
    ids, owner = _numbered(texts + real)
    words = np.bincount(owner, minlength=len(texts) + len(real))[: len(texts)]
    longest, grams = np.zeros(len(texts), np.int64), np.zeros(len(texts), np.int64)
    starts, run, length = np.arange(len(ids)), ids, 1
    while len(starts):
        starts, run = _in_both(starts, run, owner[starts] < len(texts))
        ours = owner[starts][owner[starts] < len(texts)]
        longest[ours] = length
        if length == GRAM:
            np.add.at(grams, ours, 1)
        starts, run = _extended(starts, run, length, ids, owner)
        length += 1
    return Runs(words, longest, grams)


def _numbered(texts: list[str]) -> tuple[Ints, Ints]:
    """All words in a row as numbers, and the text that each belongs to."""
    known: dict[str, int] = {}
    ids: list[int] = []
    lengths = []
    for text in texts:
        words = normal_words(text)
        ids += [known.setdefault(word, len(known)) for word in words]
        lengths.append(len(words))
    return np.array(ids, np.int64), np.repeat(np.arange(len(texts)), np.array(lengths, np.int64))


def _in_both(starts: Ints, run: Ints, ours: npt.NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """The places whose run occurs on both sides, with their runs numbered anew."""
    _, run = np.unique(run, return_inverse=True)
    count = int(run.max(initial=-1)) + 1
    both = (np.bincount(run[ours], minlength=count) > 0) & (np.bincount(run[~ours], minlength=count) > 0)
    return starts[both[run]], run[both[run]]


def _extended(starts: Ints, run: Ints, length: int, ids: Ints, owner: Ints) -> tuple[Ints, Ints]:
    """One word more, where the text goes on."""
    last = np.minimum(starts + length, len(ids) - 1)
    goes_on = (starts + length < len(ids)) & (owner[last] == owner[starts])
    starts, run = starts[goes_on], run[goes_on]
    return starts, run * (int(ids.max(initial=0)) + 1) + ids[starts + length]
