"""The mechanisms that replace words: each is one object with its parameters, its accounting event and its draw.

- `SanText` (Yue et al., 2021, algorithm 1): the law of a `Table`.
- `SanText` with `keep` (SanText+, algorithm 2): a word that is not sensitive is released as it is with probability
  1 - p; sensitive words, and words that are not on the list, never are. The claim is about sensitive words alone.
- `RandomizedResponse`: a word is kept with a probability, else any other word comes out, all with the same chance. It
  is the honest competitor: it bounds all pairs of words by one epsilon and needs no vectors.

A word is an id of the public vocabulary, one more id standing for every other word. Outcomes are ids of words.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Protocol

import numpy as np

from rayprivacy.accounting.metric import MetricLocalDpEvent
from rayprivacy.core.artifacts import digest_json
from rayprivacy.sanitize.coins import KEEP, WORD, Coins, Positions, Tags, below
from rayprivacy.sanitize.table import Ids, Table

_ROWS = 256
_HALF = 32  # bits of the coin of a word that may be kept


class Mechanism(Protocol):
    """Replaces words."""

    @property
    def token_epsilon(self) -> float:
        """Bound of the log-ratio of the chances of an outcome between any two protected words."""
        ...

    def event(self, tokens: int) -> MetricLocalDpEvent:
        """The charge for a number of words."""
        ...

    def draw(self, ids: Ids, tags: Tags, positions: Positions, coins: Coins) -> Ids:
        """An outcome for every word, [words]; tags and positions are those of `Coins.words`."""
        ...


@dataclass(frozen=True, eq=False)
class SanText:
    """SanText, or SanText+ where the most frequent words are not sensitive.

    Attributes:
        table: the law; its outcomes are the sensitive words.
        replaced: 2^32 p, how often of 2^32 a word that is not sensitive is replaced; None where all are sensitive.
    """

    table: Table
    replaced: int | None = None

    @property
    def token_epsilon(self) -> float:
        """The exact bound of the table; in SanText+ with ln(1/p)."""
        return self.table.token_bound + self.keep_cost

    @property
    def keep_cost(self) -> float:
        """ln(1/p), rounded up; 0 where every word is sensitive."""
        return 0.0 if self.replaced is None else math.nextafter(-math.log(self.replaced / 2**_HALF), math.inf)

    @cached_property
    def sensitive(self) -> str:
        """Digest of the public list of sensitive words; empty where all are."""
        return "" if self.replaced is None else digest_json(list(self.table.vocabulary.words[self.table.first :]))

    def event(self, tokens: int) -> MetricLocalDpEvent:
        """The charge: epsilon times the distance at which the bound would be reached, rounded up, for each word."""
        epsilon = self.table.epsilon
        reach = math.nextafter(self.table.token_bound / epsilon, math.inf)
        return MetricLocalDpEvent(epsilon, reach, tokens, self.keep_cost, self.sensitive)

    def draw(self, ids: Ids, tags: Tags, positions: Positions, coins: Coins) -> Ids:
        """An outcome for every word, [words]."""
        if self.replaced is None:
            return self._outcomes(ids, tags, positions, coins)
        coin = coins.words(KEEP, tags, positions)[:, 0] >> np.uint64(64 - _HALF)
        drawn = np.flatnonzero((ids >= self.table.first) | (coin < self.replaced))
        found = ids.copy()
        found[drawn] = self._outcomes(ids[drawn], tags[drawn], positions[drawn], coins)
        return found

    def _outcomes(self, ids: Ids, tags: Tags, positions: Positions, coins: Coins) -> Ids:
        """Words of one source after the other, so that each row of the table is made once."""
        order = np.argsort(ids, kind="stable").astype(np.int32)
        words, counted = np.unique(ids, return_counts=True)
        ends = np.cumsum(counted)
        starts = ends - counted
        found = np.empty(len(ids), dtype=ids.dtype)
        for at in range(0, len(words), _ROWS):
            rows = np.cumsum(self.table.weights(words[at : at + _ROWS]), axis=1)
            places = order[starts[at] : ends[min(at + _ROWS, len(words)) - 1]]
            counts = ends[at : at + _ROWS] - starts[at : at + _ROWS]
            totals = np.repeat(rows[:, -1].astype(np.uint64), counts)
            numbers = below(coins, WORD, tags[places], positions[places], totals).astype(np.int64)
            for row, mine in zip(rows, np.split(np.arange(len(places)), np.cumsum(counts)[:-1]), strict=True):
                found[places[mine]] = np.searchsorted(row, numbers[mine], side="right")
        found += self.table.first
        return found


@dataclass(frozen=True)
class RandomizedResponse:
    """k-ary randomised response (Kairouz et al., 2016) over words or values with ids from 0.

    A word is kept with probability K / (K + k - 1), K = e^epsilon, so of two words none has an outcome more than K
    times as likely. An unknown word, whose id is k, is drawn uniformly: 1/k lies between the chances of every outcome.

    Attributes:
        size: k, how many words there are.
        epsilon: of a token, for any two words.
    """

    size: int
    epsilon: float

    @property
    def token_epsilon(self) -> float:
        """Epsilon; the chance of keeping a word is rounded down, so it is no more."""
        return self.epsilon

    @property
    def keep_rate(self) -> float:
        """The chance that a word comes out as itself."""
        return 1 - self._replaced / 2**64

    def event(self, tokens: int) -> MetricLocalDpEvent:
        """The charge for a number of words: any two of them are at distance 1."""
        return MetricLocalDpEvent(self.epsilon, 1.0, tokens)

    def draw(self, ids: Ids, tags: Tags, positions: Positions, coins: Coins) -> Ids:
        """An outcome for every word, [words]."""
        replaced = coins.words(KEEP, tags, positions)[:, 0] < np.uint64(min(self._replaced, 2**64 - 1))
        limits = np.where(ids < self.size, self.size - 1, self.size).astype(np.uint64)
        drawn = below(coins, WORD, tags, positions, limits).astype(np.int64)
        drawn += drawn >= ids  # any word but itself
        return np.where(replaced | (ids >= self.size), drawn, ids)

    @property
    def _replaced(self) -> int:
        """2^64 times the chance that a word is replaced, rounded up."""
        others = self.size - 1
        return math.ceil(Fraction(2**64 * others) / (others + Fraction(math.exp(min(self.epsilon, 700.0)))))


def randomized_response_epsilon(keep: float, words: int) -> float:
    """The epsilon of randomised response over a number of words that keeps a word with this chance.

    >>> round(randomized_response_epsilon(0.22, 30_000), 2)
    9.04
    """
    return max(0.0, math.log(keep * (words - 1) / (1 - keep))) if keep < 1 else math.inf
