"""Cut the parts of a corpus into ranges of about one size, each of which one process can finish, as one file.

A range is all rows of a part between two places (shard and user), so it holds whole users, and the files of a part
follow each other as the rows of one file would: where the cuts fall changes no row, and nothing that is computed from
rows in their order. They are found from the marks of the spill files, and depend on how much users wrote: they are
private, as the rows are.
"""

from collections import defaultdict
from collections.abc import Iterable

from rayprivacy.corpus.spill import MARK_BYTES, Place, Range


def cut(parts: Iterable[int], marks: Iterable[tuple[int, int, str]], range_bytes: int) -> list[Range]:
    """The ranges of all parts, in order; one that covers everything for a part without marks.

    >>> [(range.part, range.start, range.end) for range in cut([0, 1], [(1, 9, "a"), (1, 9, "b")], MARK_BYTES)]
    [(0, None, None), (1, None, (9, 'b')), (1, (9, 'b'), None)]
    """
    places: dict[int, list[Place]] = defaultdict(list)
    for part, shard, user in marks:
        places[part].append((shard, user))
    return [cut_off for part in parts for cut_off in _ranges(part, sorted(places[part]), range_bytes)]


def _ranges(part: int, places: list[Place], range_bytes: int) -> list[Range]:
    count = max(1, -(-len(places) * MARK_BYTES // range_bytes))
    cuts = sorted({places[len(places) * at // count] for at in range(1, count)})
    return [Range(part, start, end) for start, end in zip([None, *cuts], [*cuts, None], strict=True)]
