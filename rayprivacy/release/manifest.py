"""The manifest of a vote: the teachers it is of. Each must have voted exactly once, or nothing is released.

A retried task can hand in a teacher's votes twice, a lost one not at all. Twice doubles one user's influence, and a
missing one makes the number of votes depend on the data; the sensitivity covers neither.
"""

from collections import Counter
from dataclasses import dataclass

from rayprivacy.core.errors import ReleaseError


@dataclass(frozen=True)
class VoteManifest:
    """The teachers whose votes a sum holds, one id per summand.

    >>> VoteManifest((2, 0, 1)).check(3)
    """

    teachers: tuple[int, ...]

    def check(self, teachers: int) -> None:
        """Require the ids 0 .. teachers-1, each exactly once.

        Raises:
            ReleaseError: an id is missing, doubled or unknown.
        """
        votes = Counter(self.teachers)
        doubled = sorted(teacher for teacher, times in votes.items() if times > 1)
        unknown = sorted(teacher for teacher in votes if not 0 <= teacher < teachers)
        missing = [teacher for teacher in range(teachers) if teacher not in votes]
        for ids, what in ((doubled, "voted more than once"), (unknown, "do not exist"), (missing, "did not vote")):
            if ids:
                raise ReleaseError(f"teachers {ids[:5]} of {teachers} {what}: collect every teacher's votes once.")
