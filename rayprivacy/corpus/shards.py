"""Spread the corpus over shards with Ray: bound each block, file its rows by place, finish ranges of them as files.

    source -> shares: read, clean, bound, find each row's place -> spill (private files)
    spill  -> ranges: where each part is cut, so that its pieces are of about one size          one piece of work
    spill  -> files:  a range of a part, bounded and sorted

Privacy argument: a user's shard depends on their id and the secret alone, and one user sits in exactly one file, so
that adding or removing a user changes one shard. For the units 'record' and 'phrase' see `layout` and `phrases`:
their rules hold row by row, before rows meet. Any piece of work may be done twice; every step is a deterministic
function of its rows, and a file is written to a scratch name and renamed, so that the same bytes are written again.
What Ray carries, and counts where others can see it, are the numbers of its tasks, which are public and depend on no
corpus (see `work.pieces`): rows, counts and digests travel through private files. The key travels as a path and is read
in the worker, and so do secret phrases; on more than one machine, key, phrases, source and shard directory must be on a
filesystem that all of them see.

A range is all rows of a part between two places (shard and user), so it holds whole users, and the files of a part
follow each other as the rows of one file would: where the cuts fall changes no row, and nothing that is computed from
rows in their order. They are found from the marks of the spill files, and depend on how much users wrote: they are
private, as the rows are.

Memory: blocks and ranges have about a thirty-second part of the memory that a process may take. Python objects, sorted
copies and what a user wrote in other blocks come on top of that, and so do the libraries themselves. No process holds
more, however large the corpus is; a share of the source is read page by page. The driver keeps a digest for each file.

A lost process costs the piece that it was at. That number of rounds is public; what our own code raises, such as a
malformed file, is not tried again.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa

from rayprivacy.core.errors import CorpusError
from rayprivacy.core.files import Json, private_directory, read_json, write_json
from rayprivacy.core.keys import Key, load_key
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.layout import HOLDOUT, Layout, finish, gathered, prepare
from rayprivacy.corpus.manifest import MANIFEST, FileEntry, ShardManifest, clear_parts, read_manifest, write_part
from rayprivacy.corpus.phrases import PhraseFile, tidy
from rayprivacy.corpus.settings import MEMORY, CorpusConfig
from rayprivacy.corpus.sources import SEAL, check_source, read_share, shares_of, source_stamp
from rayprivacy.corpus.spill import MARK_BYTES, Place, Range, Spill
from rayprivacy.corpus.users import PLACE, Dropped
from rayprivacy.corpus.verify import check_files
from rayprivacy.work.pieces import Bench, work_off

_STEP = "sharding the corpus"
_OF_MEMORY = 32  # a block, or a range, has this part of the memory of a process


def cut(parts: Iterable[int], marks: Iterable[tuple[int, int, str]], range_bytes: int) -> list[Range]:
    """The ranges of all parts, in order; one that covers everything for a part without marks.

    >>> [(range.part, range.start, range.end) for range in cut([0, 1], [(1, 9, "a"), (1, 9, "b")], MARK_BYTES)]
    [(0, None, None), (1, None, (9, 'b')), (1, (9, 'b'), None)]
    """
    places: dict[int, list[Place]] = defaultdict(list)
    for part, shard, user in marks:
        places[part].append((shard, user))
    return [cut_off for part in parts for cut_off in _ranges_of_part(part, sorted(places[part]), range_bytes)]


def _ranges_of_part(part: int, places: list[Place], range_bytes: int) -> list[Range]:
    count = max(1, -(-len(places) * MARK_BYTES // range_bytes))
    cuts = sorted({places[len(places) * at // count] for at in range(1, count)})
    return [Range(part, start, end) for start, end in zip([None, *cuts], [*cuts, None], strict=True)]


def shard_corpus(
    config: CorpusConfig,
    key_path: Path,
    shards: int,
    per_part: int,
    out: Path,
    unit: PrivacyUnit = PrivacyUnit.USER,
    planted: pa.Table | None = None,
    memory: int = MEMORY,
    by_place: bool = False,
) -> ShardManifest:
    """Write the corpus as `out/part-00000.parquet` ... and `out/holdout.parquet`, with Ray; an intact result of the
    same settings, key and source is returned as it is.

    `planted` are an audit's rows of user and text, without labels. `memory`, bytes per process, decides how many files
    a part becomes, but neither rows nor their order. With `by_place` rows are known by their place in the source
    (`layout`).
    """
    layout = Layout(config, shards, per_part, unit, by_place)
    key = load_key(key_path)
    out = out.absolute()
    phrases = PhraseFile.of(config.phrases, key) if config.phrases else None
    # Unit 'user' adds nothing, so that shards of the first version are found again.
    more = [] if unit is PrivacyUnit.USER else [unit, phrases.digest if phrases else ""]
    more += ["distinct turns"] if config.join else []  # shards in which repeats were left are not found again
    more += ["by place"] if by_place else []
    more += [] if planted is None else [json.dumps(planted.to_pydict())]
    source = source_stamp(config)
    stamp = key.digest("corpus-config", config.model_dump_json(), shards, per_part, source, *more)
    finished = _finished(out, stamp)
    if finished is not None:
        return finished
    check_source(config)
    clear_parts(private_directory(out))
    work = _Work(layout, key_path.absolute(), phrases, out, source, planted, memory // _OF_MEMORY)
    try:
        manifest = _made(work, stamp)
    finally:
        work.spill.remove()
        for scratch in filter(Path.is_file, out.glob(".*")):  # what lost processes left half-written
            scratch.unlink(missing_ok=True)
    check_size(manifest, out, by_place)
    manifest.write(out)
    return manifest


def _finished(out: Path, stamp: str) -> ShardManifest | None:
    if not (out / MANIFEST).exists():
        return None
    manifest = read_manifest(out)
    if manifest.config != stamp:
        return None
    check_files(out, manifest)
    return manifest


@dataclass(frozen=True)
class _Work:
    """What every task needs to know; holds no row of the corpus but those that an audit plants, and no count of it."""

    layout: Layout
    key_path: Path
    phrases: PhraseFile | None
    out: Path
    stamp: str
    planted: pa.Table | None
    piece_bytes: int

    @property
    def spill(self) -> Spill:
        """Where rows are on their way."""
        return Spill(self.out / ".rows")

    def bench(self, step: str) -> Bench:
        """Where the pieces of a step lie."""
        return Bench(self.spill.root / step)

    @property
    def ranges(self) -> Path:
        """The file of the ranges."""
        return self.spill.root / "ranges.json"

    def spilled(self) -> list[Path]:
        """The spill files of all shares."""
        reports = enumerate(self.bench("read").reports())
        return [self.spill.file(share, block) for share, report in reports for block in range(report["blocks"])]


def _made(work: _Work, stamp: str) -> ShardManifest:
    work.spill.remove()
    work.spill.prepare()
    work.bench("read").offer(shares_of(work.layout.config, work.layout.by_place))
    work.bench("cut").offer(1)
    for step, piece in (("read", _read), ("cut", _cut), ("write", _write)):
        work_off(work.bench(step), partial(piece, work=work), _STEP, SEAL)
    return _manifest(work, stamp)


def _read(share: int, work: _Work) -> Json:
    """Read one share of the source, and file its rows by place."""
    key, total, blocks = load_key(work.key_path), Dropped(), 0
    for block, dropped in _blocks(work, share, key):
        rows, more = prepare(block, key, work.layout)
        work.spill.write(share, blocks, rows)
        total, blocks = total + dropped + more, blocks + 1
    return {"dropped": asdict(total), "blocks": blocks}


def _blocks(work: _Work, share: int, key: Key) -> Iterator[tuple[pa.Table, Dropped]]:
    """The tidied rows of a share, in blocks of bounded size, and how many each lost. Pieces are tidied before they
    meet: in one table, ids of several types would take a common type, in which some are not what they were.
    """
    held: list[pa.Table] = []
    phrases, total = work.phrases.load(key) if work.phrases else None, Dropped()
    for piece in _pieces(work, share):
        rows, dropped = tidy(piece, key, work.layout, phrases)
        if held and sum(table.nbytes for table in held) + rows.nbytes > work.piece_bytes:
            yield pa.concat_tables(held), total
            held, total = [], Dropped()
        held.append(rows)
        total += dropped
    if held:
        yield pa.concat_tables(held), total


def _pieces(work: _Work, share: int) -> Iterator[pa.Table]:
    config, by_place = work.layout.config, work.layout.by_place
    yield from read_share(config, share, shares_of(config, by_place), work.stamp, by_place)
    if work.planted is not None and share == 0:
        yield _labelled(work.planted, work.layout)


def _labelled(rows: pa.Table, layout: Layout) -> pa.Table:
    places = pa.array([f"planted-{row}" for row in range(len(rows))], pa.string())
    for name in layout.carried:
        rows = rows.append_column(name, places if name == PLACE else pa.nulls(len(rows), pa.string()))
    return rows


def _cut(_: int, work: _Work) -> Json:
    """Decide how parts are cut, empty ones too, and offer their ranges."""
    parts = range(HOLDOUT, work.layout.parts)
    ranges = cut(parts, work.spill.marks(work.spilled()), work.piece_bytes)
    write_json(work.ranges, [[found.part, found.start, found.end] for found in ranges])
    work.bench("write").offer(len(ranges))
    return {}


def _ranges(work: _Work) -> list[Range]:
    found = read_json(work.ranges)
    return [Range(part, tuple(start) if start else None, tuple(end) if end else None) for part, start, end in found]


def _write(number: int, work: _Work) -> Json:
    """Finish one range of a part as a file."""
    layout, key, ranges = work.layout, load_key(work.key_path), _ranges(work)
    wanted = ranges[number]
    rows, total = _gathered(work, wanted)
    finished, dropped = finish(rows, wanted.part, key, layout)
    of_part = number - next(at for at, found in enumerate(ranges) if found.part == wanted.part)
    entry = write_part(finished, wanted.part, key, work.out, layout.unit, of_part)
    return {"dropped": asdict(total + dropped), "entry": asdict(entry)}


def _gathered(work: _Work, wanted: Range) -> tuple[pa.Table, Dropped]:
    """The rows of a range; what users wrote too much is dropped on the way, lest it pile up."""
    held, size, total = [work.layout.shuffle_schema.empty_table()], 0, Dropped()
    for rows in work.spill.read(work.spilled(), wanted):
        held.append(rows)
        size += rows.nbytes
        if size > 3 * work.piece_bytes:
            kept, dropped = gathered(pa.concat_tables(held), work.layout)
            held, size, total = [kept], kept.nbytes // 2, total + dropped
    return pa.concat_tables(held), total


def _manifest(work: _Work, stamp: str) -> ShardManifest:
    layout, written = work.layout, work.bench("write").reports()
    entries = [FileEntry(**report["entry"]) for report in written]
    first = {entry.part: entry for entry in reversed(entries)}
    reports = [*work.bench("read").reports(), *written]
    return ShardManifest(
        config=stamp,
        shards=layout.shards,
        per_part=layout.per_part,
        max_records_per_user=layout.config.max_records_per_user,
        holdout_share=layout.config.holdout,
        parts=tuple(first[part] for part in range(layout.parts)),
        holdout=first[HOLDOUT],
        dropped=sum((Dropped(**report["dropped"]) for report in reports), Dropped()),
        unit=layout.unit,
        max_shards_per_phrase=layout.config.max_shards_per_phrase,
        more=tuple(entry for entry in entries if entry is not first[entry.part]),
    )


def check_size(manifest: ShardManifest, out: Path, by_place: bool = False) -> None:
    """Refuse a corpus of one user, or of one record, or without any text, and remove its files."""
    by_record = manifest.unit is PrivacyUnit.RECORD
    size = manifest.rows if by_record else manifest.users
    without_text = by_place and manifest.dropped.empty_text == manifest.rows + manifest.dropped.over_bound
    if size > 1 and not without_text:
        return
    clear_parts(out)
    if size == 0 or without_text:
        raise CorpusError("the corpus has no usable text: check corpus.text and corpus.user.")
    if by_record:
        raise CorpusError("the corpus has one record, which has nothing to hide among: check corpus.source.")
    raise CorpusError("the corpus has one user, and a corpus of one user has nobody to hide among: check corpus.user.")
