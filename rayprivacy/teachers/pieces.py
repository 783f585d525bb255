"""How teachers are dealt out to actors: runs of neighbours, whose length is a matter of performance.

A teacher is a function of its own shard, and answers in a block of VOTERS that its number fixes (see `kinds`). So no
piece of either kind decides a bit of what is released. A piece of training stays within one part file, which it reads
its own shards of; a piece of voting holds whole blocks, of any part.
"""

from rayprivacy.teachers.kinds import VOTERS
from rayprivacy.teachers.settings import TeachersConfig

PIECES = 4  # for each actor at least, so that the last ones to finish do not keep the others waiting for long


def training_pieces(teachers: TeachersConfig, actors: int, size: int = 0) -> list[range]:
    """The teachers of each piece of training, ascending, to be dealt out among actors.

    `size` is the number of teachers in a piece at most; with 0 it is a quarter of an actor's share.
    """
    parts = (teachers.members(part) for part in range(teachers.parts))
    return [piece for part in parts for piece in _cut(part, size or _quarter(teachers, actors))]


def voting_pieces(teachers: TeachersConfig, actors: int, size: int = 0) -> list[range]:
    """The teachers of each piece of voting, ascending: whole blocks, and the rest of them; other arguments as above."""
    blocks = -(-(size or _quarter(teachers, actors)) // VOTERS)
    return _cut(range(teachers.count), blocks * VOTERS)


def blocks_of(piece: range) -> list[range]:
    """The blocks in which the teachers of a piece of voting answer; the very last may be shorter than VOTERS."""
    return _cut(piece, VOTERS)


def _quarter(teachers: TeachersConfig, actors: int) -> int:
    return -(-teachers.count // (PIECES * actors))


def _cut(teachers: range, size: int) -> list[range]:
    return [teachers[at : at + size] for at in range(0, len(teachers), size)]
