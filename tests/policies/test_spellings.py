"""The pattern policy hides a number however it is spelled: separators, dashes and blanks of Unicode, neighbours."""

import re
from itertools import product

import pytest

from rayprivacy.policies.policy import MARK
from rayprivacy.policies.settings import PolicyConfig
from rayprivacy.policies.words import PatternPolicy
from rayprivacy.sanitize.entities import PatternDetector
from rayprivacy.sanitize.settings import KINDS

POLICY = PatternPolicy(KINDS)
DASHES = ["-", "--", *map(chr, range(0x2010, 0x2016)), "\u2212"]
BLANKS = [" ", "  ", "\u00a0", *map(chr, range(0x2000, 0x200B)), "\u202f"]
BETWEEN = ["", ".", *DASHES, *BLANKS, *(f" {dash} " for dash in DASHES), "\u00ad", "\u200b"]
NUMBERS = {
    "phone": ("555", "123", "4567"),
    "international": ("+44", "20", "7946", "0958"),
    "social security": ("123", "45", "6789"),
    "card": ("4111", "1111", "1111", "1111"),
    "other card": ("3782", "822463", "10005"),
    "account": ("12345678",),
}
BEFORE, AFTER = ("", "_", "-", "(", "#", "a", "x_", "ABCDEFG"), ("", "_", "-", ")", "#", "a", "_a", "abc")


@pytest.mark.parametrize("number", NUMBERS)
def test_no_digit_of_a_number_is_left(number: str) -> None:
    for between, before, after in product(BETWEEN, BEFORE, AFTER):
        text = f"call {before}{between.join(NUMBERS[number])}{after} now"
        assert not re.search(r"\d", POLICY.redact({"text": text})), repr(text)


@pytest.mark.parametrize("before", [each for each in BEFORE if each not in ("a", "ABCDEFG")])
def test_no_digit_of_a_date_is_left(before: str) -> None:
    for mark, year, after in product(("/", *DASHES[:1], *DASHES[2:]), ("2015", "15"), AFTER):
        for date in (f"5{mark}12{mark}{year}", f"2015{mark}05{mark}12T10:00"):
            text = f"on {before}{date}{after} now"
            assert not re.search(r"\d", POLICY.redact({"text": text})), repr(text)


def test_years_prices_and_short_numbers_stay() -> None:
    text = "in 2021 we paid $12.50 or 1,250.00 for 3 of 40, since\u20142015, 2010\u20132015, 10\u00a0000 at 10:30"
    assert POLICY.redact({"text": text}) == text


def test_a_policy_of_other_patterns_has_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an earlier version hid is another release: its digest is not that of this one."""
    now = PolicyConfig(kind="patterns").digest
    monkeypatch.setattr(PatternDetector, "name", "patterns of rayprivacy, version 1")
    assert PolicyConfig(kind="patterns").digest != now
    assert MARK in POLICY.redact({"text": "call 555\u2011123\u20114567"})
