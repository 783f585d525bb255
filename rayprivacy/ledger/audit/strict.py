"""Reading what may have been forged: strict JSON, exact keys, exact types, and one way to refuse.

Python's JSON reader takes NaN, infinities, duplicate keys and integers of any length, and `True == 1 == 1.0`; each is a
way to make two readers see two different books. Everything here either returns a value of the stated type and range or
raises LedgerError with the place it was found at; no other exception leaves.
"""

import json
import re
from typing import Any, NoReturn

from rayprivacy.core.errors import LedgerError

MAX_COUNT = 2**53
MAX_AMOUNT = 2**1000  # beyond any real cost, and still convertible to a float
_DIGEST = re.compile(r"[0-9a-f]{64}")
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


def fail(where: str, what: str) -> NoReturn:
    """Refuse the book, naming the row."""
    raise LedgerError(f"{where} of the ledger {what}: the file was altered, so restore the newest copy of it.")


def canonical(value: Any) -> str:
    """JSON with sorted keys and no spaces."""
    return _ENCODER.encode(value)


def parse(text: str, where: str, column: str) -> Any:
    """Read JSON without NaN, infinities and duplicate keys."""
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError):
        fail(where, f"holds no valid JSON in {column}")


def mapping(
    value: Any, keys: set[str], where: str, column: str, optional: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """A JSON object with exactly these keys, the optional ones present or not."""
    if not isinstance(value, dict) or not keys <= value.keys() <= keys | optional:
        fail(where, f"holds another JSON object in {column} than its kind has")
    return value


def items(value: Any, where: str, column: str) -> list[Any]:
    """A JSON list."""
    if not isinstance(value, list):
        fail(where, f"holds no list in {column}")
    return value


def text(value: Any, where: str, column: str) -> str:
    """A string."""
    if not isinstance(value, str):
        fail(where, f"holds no text in {column}")
    return value


def is_digest(value: str) -> bool:
    """Whether this is a SHA-256 in hex."""
    return _DIGEST.fullmatch(value) is not None


def digest(value: Any, where: str, column: str) -> str:
    """A SHA-256 in hex."""
    if not is_digest(text(value, where, column)):
        fail(where, f"holds no digest in {column}")
    return str(value)


def whole(value: Any, least: int, most: int, where: str, column: str) -> int:
    """An integer within bounds; booleans and 1.0 are none."""
    if type(value) is not int or not least <= value <= most:
        fail(where, f"holds no whole number from {least} on in {column}")
    return value


def number(value: Any, above: float, most: float, where: str, column: str) -> float:
    """A finite number above one bound and not above the other; NaN is not."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not above < value <= most:
        fail(where, f"holds a number out of range in {column}")
    return float(value)


def amounts(value: Any, where: str, column: str) -> list[int]:
    """A list of whole numbers that are not negative."""
    return [whole(part, 0, MAX_AMOUNT, where, column) for part in items(value, where, column)]


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("duplicate key")
    return found


def _constant(name: str) -> NoReturn:
    raise ValueError(name)


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_constant)
