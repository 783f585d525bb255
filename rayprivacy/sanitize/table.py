"""The public table of SanText: distances, the law of every word's outcome, and the exact bound of a token.

Yue et al. (2021), algorithm 1 and equation 2.1: a word x becomes y with probability

    Pr[M(x) = y] = exp(-(eps/2) d(x, y)) / Z(x),      Z(x) = sum over y' of exp(-(eps/2) d(x, y'))

over a set of outcomes: all words, or in SanText+ the sensitive ones. d is the Euclidean distance of vectors, or the
smaller of that and a cap, which is a distance too (the triangle inequality holds, as for no cosine distance).

**The bound of a token.** For any two words x, x' and outcome y

    ln Pr[M(x) = y] - ln Pr[M(x') = y] = (eps/2) (d(x', y) - d(x, y)) + ln Z(x') - ln Z(x)
                                      <= (eps/2) d(x, x') + |ln Z(x') - ln Z(x)|,

and y = x attains it wherever x can come out. All of it is public, so `token_bound` takes the largest over all pairs.
The theorem's eps d(x, x') bounds the difference of the normalisers by (eps/2) d(x, x') once more; on GloVe the exact
figure is about half of it.

**Exact draws.** Floating-point softmax gives 0 to far words, whose true chance is small and not 0: the ratio would be
infinite. So a row is made of integers: w(y) = floor(2^52 Pr[y]) + 2^20. That is the law above, mixed with a uniform
draw that does not depend on x (at most V 2^-32 of it), and mixing keeps every bound; rounding changes a weight by less
than 1 of at least 2^20, so a ratio grows by less than e^(2^-20), and the totals of two rows differ by less than V 2^-52
of them. `ROUNDING` is more than both. After the rows are made, no float decides anything. The uniform part also bounds
every ratio by (2^52 + 2^20) / 2^20, so no token costs more than 22.2, whatever epsilon is.
"""

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from rayprivacy.core.errors import ConfigError
from rayprivacy.sanitize.vocabulary import Matrix, Vocabulary

Ids = npt.NDArray[np.integer]
Weights = npt.NDArray[np.int64]
ROUNDING = 4e-6  # of the log-ratio of a token, and of any distance in float64
_SCALE, _FLOOR = 2.0**52, 2**20
_FLOORED = math.log(_SCALE / _FLOOR + 1)
_ROWS = 256  # of a table that are made at once: 60 MB for 30,000 words
_THREADS = 4
_MOST = 100.0  # half of epsilon times any distance; a rounded distance moves an exponent by less than 3e-6 below it
_SAMPLE = 500  # words by which epsilon is solved for a share of words that are kept


@dataclass(frozen=True, eq=False)
class Table:
    """The law of SanText over a public vocabulary; ConfigError where rounded distances would matter to an epsilon."""

    vocabulary: Vocabulary
    epsilon: float  # per token and unit of distance
    first: int = 0  # the first word that can come out, by frequency; 0 unless only less frequent words are sensitive
    cap: float = math.inf  # distances above it count as it
    known: tuple[float, int, int] | None = None  # the worst pair of an earlier table; computed anew before a charge

    def __post_init__(self) -> None:
        longest = 2 * float(np.sqrt((self.vocabulary.vectors**2).sum(1).max()))
        if self.epsilon / 2 * min(longest, self.cap) > _MOST:
            raise ConfigError(
                f"sanitize.epsilon is {self.epsilon:.4g} per unit of distance, which is no protection: lower it."
            )

    @property
    def outcomes(self) -> int:
        """How many words can come out."""
        return len(self.vocabulary) - self.first

    def distances(self, words: Ids, start: int | None = None, stop: int | None = None) -> Matrix:
        """Distances [words, others] from words to all that lie between two ids; to the outcomes, if none are given."""
        start, stop = self.first if start is None else start, len(self.vocabulary) if stop is None else stop
        vectors, squares = self.vocabulary.vectors, self._squares
        found = vectors[words] @ vectors[start:stop].T
        found *= -2
        found += squares[words][:, None]
        found += squares[None, start:stop]
        np.maximum(found, 0, out=found)
        np.sqrt(found, out=found)
        np.minimum(found, self.cap, out=found)
        own = np.flatnonzero((words >= start) & (words < stop))
        found[own, words[own] - start] = 0  # where rounding leaves 1e-8
        return found

    def weights(self, words: Ids) -> Weights:
        """Integer weights [words, outcomes] of every outcome; a row adds up to about 2^52."""
        chances = self._unscaled(words)
        chances *= _SCALE / chances.sum(1)[:, None]
        rows: Weights = np.floor(chances, out=chances).astype(np.int64)
        rows += _FLOOR
        return rows

    @cached_property
    def log_normalisers(self) -> Matrix:
        """ln Z of every word and of the symbol for all others, [words + 1]."""
        blocks = _blocks(len(self.vocabulary) + 1)
        with ThreadPoolExecutor(_THREADS) as threads:
            return np.concatenate(list(threads.map(lambda block: np.log(self._unscaled(block).sum(1)), blocks)))

    @cached_property
    def worst_pair(self) -> tuple[float, int, int]:
        """The bound of a token, rounded up, and the two words between which it is reached."""
        if self.known is not None:
            return self.known
        logs = self.log_normalisers

        def worst(block: Ids) -> tuple[float, int, int]:
            first = int(block[0])  # the bound is the same in both directions
            bounds = self.distances(block, first, len(logs))
            bounds *= self.epsilon / 2
            bounds += np.abs(logs[block][:, None] - logs[None, first:])
            row, column = np.unravel_index(int(bounds.argmax()), bounds.shape)
            return float(bounds[row, column]), int(block[row]), first + int(column)

        with ThreadPoolExecutor(_THREADS) as threads:
            bound, one, other = max(threads.map(worst, _blocks(len(logs))))
        return rounded_up(min(bound, _FLOORED) + ROUNDING), one, other

    @property
    def token_bound(self) -> float:
        """The largest log-ratio of the chances of an outcome between two words: local epsilon of one token."""
        return self.worst_pair[0]

    @property
    def keep_rates(self) -> Matrix:
        """N_x, the chance that a word comes out as itself, of every word that can come out, [outcomes]."""
        kept: Matrix = np.exp(-self.log_normalisers[self.first : len(self.vocabulary)])
        return kept

    def distinct_outcomes(self, words: Ids, runs: int = 1000) -> Matrix:
        """S_x: how many distinct outcomes are expected of a word in `runs` draws, [words]."""
        chances = self._unscaled(words)
        return _distinct(chances / chances.sum(1)[:, None], runs)

    def distinct_inputs(self, outcomes: Ids, runs: int = 1000) -> Matrix:
        """S*_y: how many words are expected to become an outcome, if each is drawn `runs` times, [outcomes]."""
        apart = self.distances(outcomes, 0, len(self.vocabulary))  # from every word, as distances are symmetric
        chances = np.exp(-self.epsilon / 2 * apart - self.log_normalisers[None, :-1])
        return _distinct(chances, runs)

    def _unscaled(self, words: Ids) -> Matrix:
        found = self.distances(words)
        found *= -self.epsilon / 2
        return np.exp(found, out=found)

    @cached_property
    def _squares(self) -> Matrix:
        return np.asarray((self.vocabulary.vectors**2).sum(1))


def epsilon_for_keep(vocabulary: Vocabulary, keep: float, first: int = 0, cap: float = math.inf) -> float:
    """The epsilon at which a word comes out as itself with this chance, in the median over evenly spaced words."""
    words = np.unique(np.linspace(first, len(vocabulary) - 1, _SAMPLE).astype(np.int64))
    apart = Table(vocabulary, 1e-9, first, cap).distances(words)

    def median(epsilon: float) -> float:
        return float(np.median(1 / np.exp(apart * (-epsilon / 2)).sum(1)))

    low, high = 0.0, 1.0
    while median(high) < keep:
        low, high = high, 2 * high
    while high - low > 1e-5 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if median(middle) < keep else (low, middle)
    return max(round(high, 3), 0.001)


def epsilon_for_bound(vocabulary: Vocabulary, bound: float, first: int = 0, cap: float = math.inf) -> float:
    """An epsilon at which the bound of a token is at most this, and no less than 98% of it."""
    if bound < 100 * ROUNDING:
        raise ConfigError(
            f"privacy.epsilon leaves {bound:.2g} for each word, which is less than a table can hold: raise it, or lower"
            " sanitize.max_tokens or corpus.max_records_per_user."
        )
    if bound > _FLOORED + ROUNDING:
        raise ConfigError(
            f"privacy.epsilon leaves {bound:.4g} for each word, and no word costs more than {_FLOORED:.3g}: set"
            " sanitize.keep, or lower privacy.epsilon."
        )
    epsilon = float(f"{bound / min(2 * math.sqrt((vocabulary.vectors**2).sum(1).max()), cap):.4g}")
    while True:
        found = Table(vocabulary, epsilon, first, cap).token_bound
        if 0.98 * bound <= found <= bound:
            return epsilon
        epsilon = float(f"{0.995 * epsilon * bound / found:.4g}")


def rounded_up(value: float) -> float:
    """A positive number with five digits, and no less, so that two machines that differ in the last bit agree.

    >>> rounded_up(14.300001)
    14.301
    """
    digits = 4 - math.floor(math.log10(value))
    return float(round(math.ceil(value * 10**digits) / 10**digits, digits))


def _distinct(chances: Matrix, runs: int) -> Matrix:
    """How many of the columns are expected to occur in a number of runs, [rows]."""
    return np.asarray(-np.expm1(runs * np.log1p(-np.minimum(chances, 1 - 1e-16))).sum(1))


def _blocks(count: int) -> Iterator[Ids]:
    for start in range(0, count, _ROWS):
        yield np.arange(start, min(start + _ROWS, count))
