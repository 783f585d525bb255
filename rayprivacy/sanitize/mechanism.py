"""The mechanisms that replace words, and the keyed coins they draw with.

- `SanText` (Yue et al., 2021, algorithm 1): the law of a `Table`.
- `SanText` with `replaced` (SanText+, algorithm 2): a word that is not sensitive is released as it is with probability
  1 - p; sensitive words, and words that are not on the list, never are. The claim is about sensitive words alone.
- `RandomizedResponse`: a word is kept with a probability, else any other word comes out, all with the same chance. It
  is the honest competitor: it bounds all pairs of words by one epsilon and needs no vectors.

Each is one object with its parameters, its accounting event and its draw. A word is an id of the public vocabulary, one
more id standing for every other word. Outcomes are ids of words.

The privacy of a sanitised word rests on a draw that cannot be predicted and is seen once. If a retry, a resumed run
or another machine drew anew, a reader of both texts could average the noise away. So a draw is a function of (secret,
release, document, position, attempt) and of nothing else: two 64-bit numbers of an AES stream (`core.keys`) under a key
made of the secret and of what names the release: its account, the digest of its inputs, and its release id, which
together cover the corpus, the recipe and the mechanism. Another recipe or another corpus has other coins, and a charge
of its own: two draws from one coin would be worth more than two charges. Within a release every block of 16 bytes is
another word:

    64-bit tag of the document | 32-bit position in it | 32-bit attempt and purpose

Equal texts of two users have different tags, hence independent coins. Tags are keyed digests; that any two of n
documents share one has probability n^2 / 2^65.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from rayprivacy.accounting.events import MetricLocalDpEvent
from rayprivacy.core.keys import Key, words_of
from rayprivacy.core.private import digest_json
from rayprivacy.sanitize.table import Ids, Table
from rayprivacy.sanitize.vocabulary import Matrix

Tags = npt.NDArray[np.uint64]
Positions = npt.NDArray[np.uint32]
Words = npt.NDArray[np.uint64]
PURPOSES = WORD, KEEP, ENTITY = range(3)
_MOST_ATTEMPTS = 2**28
_ROWS = 256
_HALF = 32  # bits of the coin of a word that may be kept


class Coins:
    """The coins of one release, named by account, release id and input digest; prints as sealed, is not pickled."""

    __slots__ = ("_key", "_release", "_secret")

    def __init__(self, key: Key, *release: str) -> None:
        self._key, self._release = key, release
        self._secret = bytes.fromhex(key.digest("sanitize-coins", *release))

    def tag(self, *parts: str | int) -> int:
        """The 64-bit tag of a document, from what identifies it."""
        return self._key.integer("sanitize-document", *self._release, *parts) >> 192

    def words(self, purpose: int, tags: Tags, positions: Positions, attempt: int = 0) -> Words:
        """Two uniform 64-bit numbers for each word, [words, 2], of the documents' tags and the positions in them.

        Each of `PURPOSES` has numbers of its own, and so has each `attempt` after a draw was rejected.
        """
        assert attempt < _MOST_ATTEMPTS, "a draw is rejected with a probability below 2^-11"
        blocks = np.empty((len(tags), 2), dtype=">u8")
        blocks[:, 0] = tags
        blocks[:, 1] = positions.astype(np.uint64) << np.uint64(32)
        blocks[:, 1] |= np.uint64(attempt * len(PURPOSES) + purpose)
        return words_of(self._secret, blocks.tobytes())

    def __repr__(self) -> str:
        return "Coins(<sealed>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("Coins are never pickled: pass the path of the key file and make them where they are needed")


def below(coins: Coins, purpose: int, tags: Tags, positions: Positions, limits: Words) -> Words:
    """Uniform whole numbers in [0, limit) for each word, exactly: a draw beyond a whole multiple is rejected."""
    drawn = np.zeros(len(tags), dtype=np.uint64)
    # 2^64 mod limit, without leaving 64 bits: draws at or above 2^64 minus it are rejected.
    spare = (np.uint64(0) - limits) % limits
    open_, attempt = np.arange(len(tags)), 0
    while len(open_):
        found = coins.words(purpose, tags[open_], positions[open_], attempt)[:, 0]
        taken = found <= np.uint64(2**64 - 1) - spare[open_]
        drawn[open_[taken]] = found[taken] % limits[open_[taken]]
        open_, attempt = open_[~taken], attempt + 1
    return drawn


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
    """SanText, or SanText+ where the most frequent words are not sensitive."""

    table: Table  # the law; its outcomes are the sensitive words
    replaced: int | None = None  # 2^32 p, of 2^32, for a word that is not sensitive; None where all are sensitive

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
    """

    size: int  # k
    epsilon: float  # of a token, for any two words

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


def log_likelihoods(mechanism: Mechanism, outcomes: Ids) -> Matrix:
    """ln Pr[M(x) = y] of every word x of the vocabulary, [outcomes, words], which the public table tells an attacker.

    Given an outcome y, words are as likely as prior(x) Pr[M(x) = y] (Bayes). In SanText+ a common word that comes out
    is itself for sure, and a sensitive outcome may have been any word.
    """
    if isinstance(mechanism, RandomizedResponse):
        found = np.full((len(outcomes), mechanism.size), math.log((1 - mechanism.keep_rate) / (mechanism.size - 1)))
        found[np.arange(len(outcomes)), outcomes] = math.log(mechanism.keep_rate)
        return found
    assert isinstance(mechanism, SanText)
    table, words = mechanism.table, len(mechanism.table.vocabulary)
    found = table.distances(outcomes, 0, words)  # distances are symmetric
    found *= -table.epsilon / 2
    found -= table.log_normalisers[None, :words]
    if mechanism.replaced is not None:
        found[:, : table.first] -= mechanism.keep_cost  # a common word is drawn for with probability p
        common = np.flatnonzero(outcomes < table.first)
        found[common] = -np.inf
        found[common, outcomes[common]] = 0.0
    return found


def public_prior(words: int) -> Matrix:
    """ln of 1/rank (Zipf), over a list in the order of frequency, [words]."""
    prior = -np.log(np.arange(1, words + 1, dtype=np.float64))
    return np.asarray(prior - np.log(np.exp(prior).sum()))
