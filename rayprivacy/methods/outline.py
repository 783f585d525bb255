"""What `rayprivacy plan` prints: stages, what they read and what they cost. Touches no data."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Outline:
    """The stages of a run.

    Attributes:
        stages: (stage, what it reads, what it costs).
        note: noise, unit, account and accountant, in one line.
    """

    stages: tuple[tuple[str, str, str], ...]
    note: str
