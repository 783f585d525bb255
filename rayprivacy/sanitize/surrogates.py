"""Made-up values in the format of typed ones: they tell which kind of value stood there, and its layout, and no more.

Every digit becomes a uniform digit and every letter of a code a uniform letter, so nothing of the value is left but its
layout: how many digits, which separators, capitals. Addresses and links are made of public words at a domain that is
kept for examples (RFC 2606), whatever theirs were; of a date the name of the month is drawn too. Digits are drawn as
they come: a card number is not made to pass a check, and a date may not exist.

With `consistent`, the numbers are keyed by kind and value in place of document and position. Then equal values have
equal surrogates in the whole release, and the reader sees that they are equal, and nothing else of them.
"""

import re
from collections.abc import Iterator

import numpy as np

from rayprivacy.core.keys import Key
from rayprivacy.core.streams import words_of
from rayprivacy.sanitize.coins import ENTITY, Coins

NAMES = "alex blake casey dana ellis finley gray harper jamie kai logan morgan noel".split()  # noqa: SIM905
_MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec".split()  # noqa: SIM905
_LONG = "january february march april may june july august september october november december".split()  # noqa: SIM905
_LETTER = re.compile(r"[a-z]+", re.IGNORECASE)


class Surrogates:
    """Made-up values of one release; with the run's secret, equal values stay equal, without it each is drawn anew."""

    def __init__(self, coins: Coins, key: Key | None = None, *release: str) -> None:
        self._coins, self._key, self._release = coins, key, release

    def make(self, kind: str, value: str, tag: int, position: int) -> str:
        """A value of the same kind (see `settings.KINDS`) and layout as a private one at a word of a document."""
        numbers = self._of_value(kind, value) if self._key else self._of_place(tag, position)
        if kind in ("email", "url"):
            return _address(kind, numbers)
        return "".join(_part(part, kind, numbers) for part in re.split(r"([^\W\d_]+|\d)", value))

    def _of_place(self, tag: int, position: int) -> Iterator[int]:
        tags, positions = np.array([tag], dtype=np.uint64), np.array([position], dtype=np.uint32)
        attempt = 0
        while True:
            yield from map(int, self._coins.words(ENTITY, tags, positions, attempt)[0])
            attempt += 1

    def _of_value(self, kind: str, value: str) -> Iterator[int]:
        assert self._key is not None
        secret = bytes.fromhex(self._key.digest("sanitize-entity", *self._release, kind, value))
        block = 0
        while True:
            yield from map(int, words_of(secret, block.to_bytes(16, "big"))[0])
            block += 1


def _part(part: str, kind: str, numbers: Iterator[int]) -> str:
    if part.isdigit() and len(part) == 1:
        return str(next(numbers) % 10)  # uniform up to 2^-60
    if not _LETTER.fullmatch(part):
        return part if part.isascii() else "".join("x" if letter.isalnum() else letter for letter in part)
    if kind == "date":
        return _like(_month(part, numbers), part)
    return "".join(_like(chr(ord("a") + next(numbers) % 26), letter) for letter in part)


def _month(part: str, numbers: Iterator[int]) -> str:
    word = part.lower()
    if word[:3] not in _MONTHS:
        return word  # st, nd, rd, th, of
    return (_MONTHS if len(word) <= 4 and word != "may" else _LONG)[next(numbers) % 12]


def _like(made: str, part: str) -> str:
    return made.upper() if part.isupper() else made.capitalize() if part[0].isupper() else made


def _address(kind: str, numbers: Iterator[int]) -> str:
    name = NAMES[next(numbers) % len(NAMES)]
    return f"{name}@example.com" if kind == "email" else f"https://www.example.com/{name}"
