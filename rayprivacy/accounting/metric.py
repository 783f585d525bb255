"""Metric local privacy of single tokens (SanText, Yue et al. 2021): an event of its own, composed with no other.

SanText replaces each token x by a token drawn from a public vocabulary, so that for any two tokens x, x' the chances of
each outcome differ by a factor of at most exp(epsilon * d(x, x')), d a distance of public embeddings. It hides *which*
token was there, better from near tokens than from far ones. Two things follow:

- no distance is above the diameter D of the vocabulary, so a document of L tokens is epsilon*D*L locally private when
  any of its tokens may change: this is the figure to print, and it is usually a large one;
- it is a guarantee of another kind than that of a central ledger (each document against every other of the same
  length, no unit of a user, no delta). Neither figure may be added to the other, so no central accountant takes it.

SanText+ protects the words of a public list of sensitive ones. A word that is not on it is released as it is with
probability 1 - p, and is replaced by a sensitive one else; hence a sensitive outcome is up to 1/p times as likely where
the input was sensitive, which adds ln(1/p) to the exponent of every token (Yue et al., theorem 2, eps0).

>>> document_epsilon(MetricLocalDpEvent(epsilon=2.0, diameter=1.5, tokens=100))
300.0
"""

import math
from fractions import Fraction

import attrs
from dp_accounting.dp_event import DpEvent

from rayprivacy.accounting.exact import round_up


@attrs.frozen
class MetricLocalDpEvent(DpEvent):  # type: ignore[misc]
    """`tokens` tokens, each sanitised with metric local privacy `epsilon` per unit of distance.

    Attributes:
        epsilon: per token and unit of distance.
        diameter: the largest distance between two tokens of the public vocabulary, or what takes its place where the
            bound of a token was computed exactly: that bound divided by epsilon.
        tokens: public bound on the tokens of a document, or of all documents of a user together.
        keep_cost: ln(1/p) of SanText+, for each token; 0 where every token is protected.
        sensitive: digest of the public list of words that are protected; empty where all are.
    """

    epsilon: float
    diameter: float
    tokens: int
    keep_cost: float = 0.0
    sensitive: str = ""


def document_epsilon(event: MetricLocalDpEvent) -> float:
    """The local epsilon of a whole document, rounded up; infinite beyond floats."""
    if not all(map(math.isfinite, (event.epsilon, event.diameter, event.keep_cost))):
        return math.inf
    return round_up(exact_epsilon(event))


def exact_epsilon(event: MetricLocalDpEvent) -> Fraction:
    """tokens * (epsilon * diameter + keep_cost), without rounding."""
    return (Fraction(event.epsilon) * Fraction(event.diameter) + Fraction(event.keep_cost)) * event.tokens


def token_epsilon(wanted: float, diameter: float, tokens: int) -> float:
    """The epsilon per token and unit of distance with which a document has the wanted epsilon, rounded down."""
    found = wanted / tokens / diameter
    while Fraction(found) * Fraction(diameter) * tokens > Fraction(wanted):
        found = math.nextafter(found, 0)
    return found
