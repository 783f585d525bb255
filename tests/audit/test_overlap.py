"""Runs of words that synthetic texts share with private ones."""

import pytest

from rayprivacy.auditing.extraction import Overlap
from rayprivacy.core.errors import ConfigError

PRIVATE = [
    "my sister broke her left arm on the way to the early train",
    "i never told anybody that we like soup and bread in the morning",
]


def test_runs_are_compared_without_case_and_punctuation_and_at_full_length() -> None:
    overlap = Overlap(
        ["My sister -- broke HER left arm, on the way", "my sister broke her left arm on a boat", "hm"], 8
    )
    assert overlap.long_enough == 2
    assert overlap.shared_with(PRIVATE) == {0}
    assert Overlap(["my sister broke her left arm on a boat"], 7).shared_with(PRIVATE) == {0}
    assert overlap.shared_with([]) == set()


def test_runs_of_no_words_are_refused() -> None:
    with pytest.raises(ConfigError, match="words is 0"):
        Overlap(["a"], 0)
