"""Counts of units by key, over an unknown set of keys: Gaussian noise, and a threshold up to which no key is released.

Some keys may be known to everybody beforehand; they need no threshold.

Sources: Korolova et al. 2009; Gopi et al., "Differentially Private Set Union", ICML 2020. What thousands of users name
(products, places, answers to a public question) is a set of strings that nobody knows beforehand. Each unit counts once
for each of at most c keys; keys that somebody has get noise, and those above a threshold are released with their noisy
counts. On the grid of 2^-20,

    sensitivity (L2) = sqrt(c) 2^20,     noise std s = sigma * sensitivity,     threshold = 2^20 + ceil(s z),
    where z is the quantile of the normal distribution above which it lies with probability delta_T / c
    event = one thresholded Gaussian(sigma, delta_T)

Keys at or under the threshold are not released, nor is their number. A key that nobody has draws no noise, because the
set of all strings has no end. So the set of keys that draw noise is private, and the proof has to take it into account.

**Known keys** are a finite set P of keys that follows from public settings and from earlier releases, never from the
corpus: the answers of a public list to a question about a released name. All of them draw noise, whoever has them. So
what is done with their noisy sums is free, and a lower line (`cut`) may be drawn, one against mere chance: among the m
known answers to a question that nobody answers, one comes out with a probability of at most 0.5%.

**Proof.** Let D' be the corpus D and one unit u more. K are the known keys, and those that somebody in D has. N are
those that u alone has (in D' and not in D) and that are not known, at most c of them. All other keys of u are in K.

1. On K. A key of K draws noise in both corpora, of its own and independent of all else. Its sums differ by 2^20 if u
   has it, and else not at all: by at most sqrt(c) 2^20 in L2 over all of K. Noise, and then a threshold or a cut on
   each key, is the Gaussian mechanism of multiplier sigma, and something done to its output. Let G and G' be what is
   released of K.
2. On N. In D no key of N is released. In D' each of them has the sum 2^20, and is released if its noise is at least
   t = ceil(s z) + 1. The discrete Gaussian gives n a probability of exp(-n^2 / 2s^2) / Z. Its tail from t on is at most
   the integral of the same function from t - 1 >= 0 on, on which it falls, and Z >= s sqrt(2 pi) by Poisson's summation
   formula (Z is s sqrt(2 pi) times the sum over all whole k of exp(-2 pi^2 s^2 k^2), of which k = 0 gives 1). So the
   probability is at most that of a normal variable above (t - 1) / s >= z, which is at most delta_T / c; and that any
   of the at most c keys of N is released, at most delta_T.
3. Together. D releases G. D' releases G', and keys of N besides with a probability p <= delta_T that does not depend
   on the noise on K. That is the pair of distributions of the event (`accounting.events`), which says how it composes.

Where u has no key, or none alone, p is 0; where nobody else has any and none is known, K is empty and G says nothing.
If known keys drew noise only where somebody has them, they would be in N, and pass a cut that hides no one: step 2
would not hold. The proof needs no order of the keys and no number of them: the noise of a key is drawn from the
operating system's entropy, independently of all other keys and of how many there are, and what is released is sorted by
key.

How exact the Gaussian's event is for discrete noise is said in `votes`. On whole counts it would not do: at c = 1 and
sigma = 1 the noise would have a standard deviation of one step, and a delta of up to 1.8 times that of the curve which
is charged. Hence the grid.

**What a released count says.** A key that is released had a noisy count above its line, so those with little support
come out too high: an interval around the noisy count would miss them too often. `ReleasedCounts.interval` is one given
that the key was released. Its lower end is the count at which a noisy count, if it is above the line, is as large as
this one with a probability of half of what the confidence leaves. Its upper end is that of an interval around the noisy
count: to be released makes it less likely, and never more, that noise went far down. It holds for a key that was chosen
before it was looked at; the largest of several answers is a little too large besides.

>>> counts = ThresholdedCounts(most=4, sigma=2.0, delta=1e-6)
>>> round(counts.threshold / SCALE, 1), round(counts.passing(10), 3), round(counts.passing(40), 3)
(21.1, 0.003, 1.0)
>>> round(counts.cut(12) / SCALE, 1), round(counts.passing(10, known=12), 3)
(13.4, 0.2)
>>> counts.contribution(Key.for_tests(), ["ann", "ann", "bob"], ["red", "red", "red"])
Counter({'red': 2})
"""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from dp_accounting.dp_event import SelfComposedDpEvent
from scipy.special import log_ndtr, ndtri, ndtri_exp

from rayprivacy.accounting.events import ThresholdedGaussianDpEvent, round_up, validate
from rayprivacy.core.errors import ReleaseError
from rayprivacy.core.keys import Key
from rayprivacy.core.units import PrivacyUnit, Protection
from rayprivacy.release import noise
from rayprivacy.release.votes import SCALE, SIGMA_RANGE

MOST_KEYS = 10_000  # of one unit; more, and noise might leave 64-bit integers
MOST_DELTA = 0.5  # above, the threshold would be lower than the count of one unit
MOST_LETTERS = 1000  # of a key
_MOST_UNITS = 2**30
_SLACK = 1e-11  # relative, of logarithms of probabilities; far above the rounding of their library
_HALVINGS = 60
_BY_CHANCE = 0.005  # with which a question that nobody answers has a known answer released, at most

KnownKeys = Iterable[Sequence[str]]  # of each question the keys that answer it, none of them twice; public
KeySums = Mapping[str, int]  # how many units have a key; private
_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ReleasedCounts:
    """The keys that passed, in their order, with noisy counts, the line that each is above, and the noise, in units."""

    keys: tuple[str, ...]
    counts: _Floats
    lines: _Floats  # [keys]; public
    std: float

    def interval(self, confidence: float = 0.95) -> tuple[_Floats, _Floats]:
        """Least and largest counts [keys] that go with the noisy ones, given that the keys were released.

        Each holds for its key with at least the confidence.
        """
        if not 0 < confidence < 1:
            raise ReleaseError(f"confidence is {confidence}: give a number between 0 and 1, e.g. 0.95.")
        tail = (1 - confidence) / 2
        return self._least(math.log(tail)), self.counts - float(ndtri(tail)) * self.std

    def _least(self, log_tail: float) -> _Floats:
        """The counts whose noisy ones, where they are released, are as large as these with this probability."""
        low, high = np.zeros_like(self.counts), self.counts
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            over = log_ndtr((middle - self.counts) / self.std) - log_ndtr((middle - self.lines) / self.std)
            low, high = np.where(over < log_tail, middle, low), np.where(over < log_tail, high, middle)
        return low


@dataclass(frozen=True)
class ThresholdedCounts:
    """Bound, noise, threshold and event of one release of counts by key, which cannot be set apart.

    Attributes:
        most: c, how many keys one unit may have; public.
        sigma: noise std / L2 sensitivity.
        delta: delta_T, the most probability with which any key that one unit alone has is released.
        unit: whose presence is hidden, a user or a record; add-or-remove.
    """

    most: int
    sigma: float
    delta: float
    unit: PrivacyUnit = PrivacyUnit.USER

    def __post_init__(self) -> None:
        if type(self.most) is not int or not 1 <= self.most <= MOST_KEYS:
            raise ReleaseError(f"most is {self.most!r}: give a whole number of keys from 1 to {MOST_KEYS:,}.")
        if not SIGMA_RANGE[0] <= self.sigma <= SIGMA_RANGE[1]:
            raise ReleaseError(f"sigma is {self.sigma}: give a number from {SIGMA_RANGE[0]:g} to {SIGMA_RANGE[1]:g}.")
        if not 0 < self.delta <= MOST_DELTA:
            raise ReleaseError(f"delta is {self.delta}: give a number above 0 and at most {MOST_DELTA}, e.g. 5e-7.")
        if self.unit not in (PrivacyUnit.USER, PrivacyUnit.RECORD):
            raise ReleaseError(f"unit is '{self.unit}', and counts by key protect users or records: use one.")
        validate(self.event)

    @property
    def sensitivity(self) -> float:
        """Most that one unit, added or removed, moves the sums in L2, in grid steps; rounded up."""
        return math.nextafter(math.sqrt(self.most) * SCALE, math.inf)

    @property
    def noise_std_grid(self) -> float:
        """Standard deviation of the noise on each key, in grid steps; rounded up."""
        return round_up(Fraction(self.sigma) * Fraction(self.sensitivity))

    @cached_property
    def threshold(self) -> int:
        """The largest noisy sum that is not released, in grid steps."""
        return SCALE + math.ceil(Fraction(self.noise_std_grid) * Fraction(upper_quantile(self.delta / self.most)))

    def cut(self, known: int) -> int:
        """The largest noisy sum that is not released of a key that is one of so many known answers to a question."""
        return math.ceil(Fraction(self.noise_std_grid) * Fraction(upper_quantile(_BY_CHANCE / known)))

    @property
    def event(self) -> SelfComposedDpEvent:
        """What the ledger is charged."""
        return SelfComposedDpEvent(ThresholdedGaussianDpEvent(float(self.sigma), float(self.delta)), 1)

    @property
    def protection(self) -> Protection:
        """What the event's epsilon is about."""
        return Protection(self.unit)

    @property
    def parameters(self) -> dict[str, Any]:
        """Everything that fixes the mechanism, as JSON values."""
        return {"mechanism": "thresholded-counts", "scale": SCALE, **asdict(self)}

    def passing(self, support: float, known: int = 0) -> float:
        """About the probability with which a key of so many units is released; it may be one of so many known ones."""
        line = self.cut(known) if known else self.threshold
        return math.erfc((line - support * SCALE) / (self.noise_std_grid * math.sqrt(2))) / 2

    def contribution(self, key: Key, owners: Sequence[str], words: Sequence[str]) -> Counter[str]:
        """How many of these units have each key: unit and key of each mention, in any order and as often as it comes.

        All mentions of a unit are in one call; the sums of disjoint sets of units add up.
        """
        own = defaultdict(set)
        for owner, word in zip(owners, words, strict=True):
            own[owner].add(word)
        return Counter(word for owner, mentioned in own.items() for word in self.bounded(key, owner, mentioned))

    def bounded(self, key: Key, owner: str, words: Iterable[str]) -> list[str]:
        """The keys for which one unit counts: at most c different ones, in an order that the unit and the key decide.

        What is no key (`is_key`) counts for nothing. No other unit has a say.
        """
        name = owner.encode("utf-8", "surrogatepass")
        kept = sorted(filter(is_key, set(words)), key=lambda word: key.digest("thresholded-counts", name, word))
        return kept[: self.most]

    def check(self, sums: KeySums) -> KeySums:
        """Require numbers of units by key, as contributions add up to; the error holds no key and no number."""
        if not all(is_key(word) and type(count) is int and 0 <= count <= _MOST_UNITS for word, count in sums.items()):
            raise ReleaseError("the sums are not numbers of units by key: add up what contribution() gives.")
        return sums

    def draw(self, sums: KeySums, known: KnownKeys = ()) -> bytes:
        """The keys that pass, with their noisy sums, as bytes; only the gate calls this, after the charge has started.

        Every known key, and every other key that somebody has, draws fresh noise, before any is looked at.
        """
        held = {word: count for word, count in self.check(sums).items() if count}
        passed = dict[str, tuple[int, int]]()
        for words in known:
            passed |= self._above(self.cut(len(words)), words, [held.pop(word, 0) for word in words])
        passed |= self._above(self.threshold, held, held.values())
        return json.dumps(passed, sort_keys=True).encode()

    def _above(self, line: int, words: Collection[str], counts: Iterable[int]) -> dict[str, tuple[int, int]]:
        """Of these keys those whose noisy sums are above a line, with the two."""
        signal = np.array([*counts], dtype=np.int64) * SCALE
        noisy = noise.add_discrete_gaussian(signal, self.noise_std_grid).tolist() if words else []
        return {word: (steps, line) for word, steps in zip(words, noisy, strict=True) if steps > line}

    def to_counts(self, stored: bytes) -> ReleasedCounts:
        """What passed, from the bytes that were drawn."""
        passed = json.loads(stored)
        counts, lines = np.array([*passed.values()], dtype=np.float64).reshape(-1, 2).T / SCALE
        return ReleasedCounts(tuple(passed), counts, lines, self.noise_std_grid / SCALE)


def is_key(word: object) -> bool:
    """Whether this is a string that can be a key: not empty, of at most 1000 letters, and all of them in Unicode."""
    if not isinstance(word, str) or not 1 <= len(word) <= MOST_LETTERS:
        return False
    try:
        word.encode()
    except UnicodeEncodeError:  # half of a pair of surrogates
        return False
    return True


def upper_quantile(probability: float) -> float:
    """A z that a standard normal variable exceeds with at most this probability, which is at most 0.5; rounded up.

    >>> round(upper_quantile(1e-6), 4)
    4.7534
    """
    target = math.log(probability) * (1 + _SLACK)
    z = -float(ndtri_exp(target))
    while float(log_ndtr(-z)) > target:
        z = z * (1 + _SLACK) + _SLACK
    return z
