"""Costs as exact fractions: a float is a fraction, so sums of 1 / sigma^2 have no rounding and no order.

An account that admits charges until its cap is reached must answer the same whatever the order of the charges and
whatever code adds them up again; a sum of floats does not.

>>> total([Fraction(0.1), Fraction(0.2)]) == Fraction(0.1) + Fraction(0.2)
True
>>> round_up(Fraction(1, 3)) >= Fraction(1, 3)
True
"""

import math
from collections.abc import Sequence
from fractions import Fraction


def total(terms: Sequence[Fraction]) -> Fraction:
    """The exact sum, added pairwise so that the long denominators meet last."""
    if len(terms) <= 1:
        return terms[0] if terms else Fraction(0)
    middle = len(terms) // 2
    return total(terms[:middle]) + total(terms[middle:])


def round_up(value: Fraction) -> float:
    """The least float that is not below a fraction; infinite above the largest float."""
    try:
        near = float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    return near if near >= value else math.nextafter(near, math.inf)
