"""Names: what a user or a label is called, whatever program and format wrote it. Pure functions of strings.

One person must have one name, or the bound on contributions and the shard assignment protect only half of them.
Merging two people by mistake costs utility, splitting one costs privacy; so what a program made of a name is undone:

- white space, control characters and invisible ones around it, such as a byte order mark or the zeros behind a field
  of fixed width; marks of direction, soft hyphens and spaces without width wherever they stand; any blank is a space.
  Joiners inside stay, since they spell words and emoji, and so do control characters, which separate parts;
- the form of Unicode: it is NFC;
- 7.0, 7., 1e+15, 1.0E15: a column of integers that met a missing value is written with fractions, and large ones with
  exponents;
- True and TRUE are true; a UUID is in small letters, without braces; a moment has a blank between day and time, no
  fraction of zeros, no sign for UTC, and midnight is the day.

What was written on purpose stays: 007 and 7, look-alikes of other alphabets, and letter case are different names.

>>> name_of("\\ufeff 7.0\\0"), name_of("ann\\u200b"), name_of("2020-01-01T10:00:00.000Z"), name_of("\\u200b")
('7', 'ann', '2020-01-01 10:00:00', None)
"""

import math
import re
import sys
import unicodedata
from decimal import Decimal
from functools import cache
from typing import Annotated

from pydantic import AfterValidator

EXACT = 2**53  # a double holds every integer below it
_WRITTEN_NUMBER = re.compile(  # 12.0, 1.2e+01; and 1.2E1, which is how Java writes what is 10^7 and more
    r"-?(?:[0-9]+(\.[0-9]*)?([eE]\+[0-9]{2,3})?|[0-9](\.[0-9]+E[0-9]{1,3}))"
)
_TRUTH = re.compile(r"True|TRUE|False|FALSE")
_UUID = re.compile(r"(?:urn:uuid:|\{)?([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\}?", re.IGNORECASE | re.ASCII)
_MOMENT = re.compile(
    r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.(\d*?)0*)?(?:Z| ?UTC|[+-]00(?::?00)?|([+-]\d\d)(?::?(\d\d))?)?",
    re.ASCII,
)
_UNSEEN = [0xAD, 0x61C, 0x180E, 0x200B, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2060, 0x2070), 0xFEFF]
_EMPTY = "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\ufffe\uffff"  # letters and marks without ink


@cache
def _rewritten() -> dict[int, str | None]:
    """Characters that are left out, and blanks, which become spaces."""
    blanks = (code for code in range(sys.maxunicode) if unicodedata.category(chr(code)) == "Zs")
    return {**dict.fromkeys(blanks, " "), **dict.fromkeys(_UNSEEN)}


def _is_edge(character: str) -> bool:
    """Whether a character says nothing at the beginning or end of a name."""
    return character.isspace() or character in _EMPTY or unicodedata.category(character) in ("Cc", "Cf")


def spelled(written: str) -> str:
    """A name without what cannot be seen, in NFC; nothing else is changed."""
    if written.isascii() and written.isprintable():
        return written.strip()
    name = unicodedata.normalize("NFC", written.translate(_rewritten()))
    start, end = 0, len(name)
    while start < end and _is_edge(name[start]):
        start += 1
    while end > start and _is_edge(name[end - 1]):
        end -= 1
    return name[start:end]


def name_of(written: str | None) -> str | None:
    """The one name of a user or label; None where there is none."""
    name = spelled(written or "")
    number = _WRITTEN_NUMBER.fullmatch(name)
    if number and any(number.groups()):  # a fraction or an exponent
        return _of_number(name)
    if _TRUTH.fullmatch(name):
        return name.lower()
    if found := _UUID.fullmatch(name):
        return found[1].lower()
    if found := _MOMENT.fullmatch(name):
        return _of_moment(*found.groups(default=""))
    return name or None


def _of_number(name: str) -> str:
    """A whole number that a double holds without fraction; another one as a float of it is written, or as it is."""
    value = Decimal(name)
    if abs(value) >= EXACT:
        return repr(float(name))
    return str(int(value)) if value == value.to_integral_value() else name


def _of_moment(day: str, time: str, fraction: str, hours: str, minutes: str) -> str:
    time += f".{fraction}" if fraction else ""
    zone = f"{hours}:{minutes or '00'}" if hours else ""
    return day if time == "00:00:00" and not zone else f"{day} {time}{zone}"


def has_lost_digits(written: str | None) -> bool:
    """Whether a name is a number that went through a float and is too large for one: it may be several users'."""
    number = _WRITTEN_NUMBER.fullmatch(name := spelled(written or ""))
    return bool(number and any(number.groups()) and abs(Decimal(name)) >= EXACT)


def of_float(value: float | None) -> str | None:
    """A float as a name; NaN is none."""
    if value is None or math.isnan(value):
        return None
    return str(int(value)) if value.is_integer() and abs(value) < EXACT else repr(value)


Label = Annotated[str, AfterValidator(lambda value: name_of(value) or value)]  # in a recipe, named as rows name it
