"""How many records were set aside on the way into the shards, and why. The counts are private, like the corpus."""

from dataclasses import dataclass, fields
from typing import Self


@dataclass(frozen=True)
class Dropped:
    """Counts that add up over blocks.

    Duplicates and records over the bound are dropped within blocks first and across blocks later; a record that is both
    counts as whichever was noticed first. So their sum is exact, and how it splits depends on the blocks.

    Attributes:
        null_user: records without a user.
        empty_text: records without text.
        duplicates: records repeated by the same user, with the same text and labels.
        over_bound: records beyond `max_records_per_user`.
        cut_text: records kept, but cut to `max_chars`.
    """

    null_user: int = 0
    empty_text: int = 0
    duplicates: int = 0
    over_bound: int = 0
    cut_text: int = 0

    def __add__(self, other: Self) -> "Dropped":
        return Dropped(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))
