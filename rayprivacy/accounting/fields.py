"""Checks of the numbers inside an event: each returns the value as an accountant takes it, or names the field.

A JSON number may be anything: NaN, an infinity, a truth value (an `int` to Python), or an integer of ten thousand
digits that no float holds and that cannot even be printed. None may reach an accountant, and none may end in another
error than EventError.

>>> number({"noise_multiplier": 2}, "noise_multiplier", 0, 10)
2.0
>>> show(10**5000)
'an integer of 16610 bits'
"""

import math
import re
from collections.abc import Mapping
from typing import Any

from rayprivacy.core.errors import EventError

MAX_COUNT = 2**53
MAX_PARTS = 1000
SIGMA_RANGE = (1e-100, 1e100)  # outside, 1 / sigma^2 would overflow or vanish, and a charge would cost nothing
POISSON = "poisson"  # JSON has no infinity; repeat-and-select writes its Poisson case (shape = inf) as this word
_SUM_TOLERANCE = 1e-9
_DIGEST = re.compile(r"[0-9a-f]{64}")


def show(value: Any) -> str:
    """A value for an error message, short whatever it is."""
    if isinstance(value, int) and value.bit_length() > 64:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, int | float | str | None):
        return repr(value if not isinstance(value, str) else value[:80])
    return f"a {type(value).__name__}"


def number(obj: Mapping[str, Any], key: str, above: float, most: float) -> float:
    """A finite number with above < number <= most."""
    value = obj[key]
    if not _is_number(value) or not above < value <= most:
        raise EventError(f"event.{key} is {show(value)}: give a finite number above {above:g} and at most {most:g}.")
    return float(value)


def sigma(obj: Mapping[str, Any], key: str = "noise_multiplier") -> float:
    """A noise multiplier."""
    return number(obj, key, *SIGMA_RANGE)


def whole(obj: Mapping[str, Any], key: str) -> int:
    """A whole number from 1 to 2**53."""
    value = obj[key]
    if type(value) is not int or not 1 <= value <= MAX_COUNT:
        raise EventError(f"event.{key} is {show(value)}: give a whole number between 1 and 2**53.")
    return value


def digest(obj: Mapping[str, Any], key: str) -> str:
    """A SHA-256 in hex."""
    value = obj[key]
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        raise EventError(f"event.{key} is {show(value)}: give 64 hex digits.")
    return value


def shape(obj: Mapping[str, Any]) -> float:
    """The shape of a repeat-and-select event; infinite for the word of the Poisson case."""
    value = obj["shape"]
    if isinstance(value, str) and value == POISSON:
        return math.inf
    if not _is_number(value) or not 0 <= value <= 1e6:
        raise EventError(f"event.shape is {show(value)}: give a number from 0 to 1e6, or {POISSON!r}.")
    return float(value)


def parts(obj: Mapping[str, Any], key: str) -> list[Any]:
    """A list that is not empty."""
    value = obj[key]
    if not isinstance(value, list) or not value:
        raise EventError(f"event.{key} is not a list of at least one entry: give one.")
    return value


def mixture(obj: Mapping[str, Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Sensitivities and sampling probabilities of a mixture of Gaussians, one for one.

    A mixture in which nothing can have a positive sensitivity is refused: it would cost nothing.
    """
    sensitivities, probabilities = parts(obj, "sensitivities"), parts(obj, "sampling_probs")
    if len(sensitivities) != len(probabilities) or len(sensitivities) > MAX_PARTS:
        sizes = f"{len(sensitivities)} sensitivities and {len(probabilities)} sampling_probs"
        raise EventError(f"the mixture has {sizes}: give as many of each, at most {MAX_PARTS}.")
    for key, values, most in (("sensitivities", sensitivities, SIGMA_RANGE[1]), ("sampling_probs", probabilities, 1)):
        for value in values:
            if not _is_number(value) or not 0 <= value <= most:
                raise EventError(f"event.{key} holds {show(value)}: give finite numbers from 0 to {most:g}.")
    sizes_, probs = tuple(map(float, sensitivities)), tuple(map(float, probabilities))
    if abs(math.fsum(probs) - 1) > _SUM_TOLERANCE:
        raise EventError(f"event.sampling_probs sum to {math.fsum(probs):g}: they must sum to 1.")
    if not any(size > 0 and p > 0 for size, p in zip(sizes_, probs, strict=True)):
        raise EventError("event.sensitivities are all 0 where event.sampling_probs are not: give one above 0.")
    return sizes_, probs


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
