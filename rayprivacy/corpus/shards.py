"""Spread the corpus over shards with Ray Data: bound each block, bring the rows of each file together, write the files.

    source -> shares: read, clean, bound, find each row's file        map_batches
           -> files:  the rows of one file, bounded and sorted        groupby, map_groups
           -> manifest

Privacy argument: a user's shard depends on their id and the secret alone, and one user sits in exactly one file, so
that adding or removing a user changes one shard. For the units 'record' and 'phrase' see `layout` and `phrases`:
their rules hold row by row, before rows meet. Any task may run twice, on any blocks and in any order: a file is a
function of its rows, and is written to a scratch name and renamed, so that the same bytes are written again.

What Ray carries, and counts where those can see it who see the cluster's dashboard, is private: rows, and how many
there are (docs/soundness.md, the boundary). The key travels as a path and is read in the worker, and so do secret
phrases; on more than one machine, key, phrases, source and shard directory must be on a filesystem that all of them
see.

Memory: blocks and files have about a thirty-second part of the memory that a process may take. Python objects, sorted
copies and what a user wrote in other blocks come on top of that, and so do the libraries themselves. A share of the
source is read page by page, and how many files a part has follows the size of the source. What is small enough for one
file is read and written by one task: a shuffle takes seconds to start.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import pyarrow as pa

from rayprivacy.core.errors import CorpusError
from rayprivacy.core.files import Json, private_directory
from rayprivacy.core.keys import Key, load_key
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.layout import FILE, HOLDOUT, Layout, finish, prepare
from rayprivacy.corpus.manifest import MANIFEST, FileEntry, ShardManifest, clear_parts, read_manifest, write_part
from rayprivacy.corpus.phrases import PhraseFile, tidy
from rayprivacy.corpus.settings import MEMORY, CorpusConfig
from rayprivacy.corpus.sources import SEAL, check_source, read_share, shares_of, size_of, source_stamp
from rayprivacy.corpus.users import PLACE, Dropped
from rayprivacy.corpus.verify import check_files
from rayprivacy.work.mapping import in_tasks, numbers, rows_of

_STEP = "sharding the corpus"
_OF_MEMORY = 32  # a block, or a file, has this part of the memory of a process
_COUNTS = -(1 << 31)  # in place of a file: a row whose text says what a share lost


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
    version: str = "",
) -> ShardManifest:
    """Write the corpus as `out/part-00000.parquet` ... and `out/holdout.parquet`, with Ray; an intact result of the
    same settings, key and source is returned as it is.

    `planted` are an audit's rows of user and text, without labels. `memory`, bytes per process, decides how many files
    a part becomes, but neither rows nor their order. With `by_place` rows are known by their place in the source
    (`layout`). `version` says which one of a table the source is a copy of, for the manifest.
    """
    layout = Layout(config, shards, per_part, unit, by_place)
    key = load_key(key_path)
    out = out.absolute()
    phrases = PhraseFile.of(config.phrases, key) if config.phrases else None
    source = source_stamp(config)
    distinct = [unit, phrases.digest if phrases else "", by_place, planted.to_pydict() if planted else None]
    stamp = key.digest("corpus-config", config.model_dump_json(), shards, per_part, source, json.dumps(distinct))
    finished = _finished(out, stamp)
    if finished is not None:
        return finished
    check_source(config)
    clear_parts(private_directory(out))
    room = memory // _OF_MEMORY
    layout = replace(layout, cuts=max(1, -(-size_of(config) // (room * (layout.parts + 1)))))
    work = _Work(layout, key_path.absolute(), phrases, out, source, planted, room, version)
    try:
        manifest = _made(work, key, stamp)
    finally:
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
    block_bytes: int
    version: str

    @property
    def shares(self) -> int:
        """Into how many shares the source is cut."""
        return shares_of(self.layout.config, self.layout.by_place)


def _made(work: _Work, key: Key, stamp: str) -> ShardManifest:
    layout = work.layout
    if size_of(layout.config) <= work.block_bytes:
        made = in_tasks(numbers([0]), partial(_at_once, work=work))
    else:
        prepared = in_tasks(numbers(range(work.shares)), partial(_read, work=work))
        made = prepared.groupby(FILE, num_partitions=len(layout.files)).map_groups(
            partial(_write, work=work), batch_format="pyarrow"
        )
    reports = [json.loads(row["report"]) for row in rows_of(made, _STEP, SEAL)]
    written = {report["file"]: report["entry"] for report in reports if report["entry"]}
    for file in set(layout.files) - written.keys():  # nobody is there
        written[file] = _entry(layout.shuffle_schema.empty_table(), file, key, work)[0]
    return _manifest(work, stamp, written, sum((Dropped(**report["dropped"]) for report in reports), Dropped()))


@SEAL.around(_STEP)
def _at_once(_: pa.Table, work: _Work) -> pa.Table:
    """Do all that there is to do, for a small corpus."""
    blocks = pa.concat_tables(table for share in range(work.shares) for table in _prepared(share, work))
    files = blocks[FILE].unique().to_pylist()
    return pa.concat_tables([_write(blocks.filter(pa.compute.equal(blocks[FILE], file)), work) for file in files])


def _read(shares: pa.Table, work: _Work) -> Iterator[pa.Table]:
    """Read one share of the source, and say where its rows go."""
    (share,) = shares[0].to_pylist()
    yield from SEAL.each(_STEP, _prepared(share, work))


def _prepared(share: int, work: _Work) -> Iterator[pa.Table]:
    """The prepared rows of a share, and one row with what it lost."""
    key, total = load_key(work.key_path), Dropped()
    for block, dropped in _blocks(work, share, key):
        rows, more = prepare(block, key, work.layout)
        yield rows
        total += dropped + more
    schema = work.layout.shuffle_schema
    lost = dict.fromkeys(schema.names) | {"text": json.dumps(asdict(total)), FILE: _COUNTS}
    yield pa.Table.from_pylist([lost], schema=schema)


def _blocks(work: _Work, share: int, key: Key) -> Iterator[tuple[pa.Table, Dropped]]:
    """The tidied rows of a share, in blocks of bounded size, and how many each lost. Pieces are tidied before they
    meet: in one table, ids of several types would take a common type, in which some are not what they were.
    """
    held: list[pa.Table] = []
    phrases, total = work.phrases.load(key) if work.phrases else None, Dropped()
    for piece in _pieces(work, share):
        rows, dropped = tidy(piece, key, work.layout, phrases)
        if held and sum(table.nbytes for table in held) + rows.nbytes > work.block_bytes:
            yield pa.concat_tables(held), total
            held, total = [], Dropped()
        held.append(rows)
        total += dropped
    if held:
        yield pa.concat_tables(held), total


def _pieces(work: _Work, share: int) -> Iterator[pa.Table]:
    config, by_place = work.layout.config, work.layout.by_place
    yield from read_share(config, share, work.shares, work.stamp, by_place)
    if work.planted is not None and share == 0:
        yield _labelled(work.planted, work.layout)


def _labelled(rows: pa.Table, layout: Layout) -> pa.Table:
    places = pa.array([f"planted-{row}" for row in range(len(rows))], pa.string())
    for name in layout.carried:
        rows = rows.append_column(name, places if name == PLACE else pa.nulls(len(rows), pa.string()))
    return rows


@SEAL.around(_STEP)
def _write(rows: pa.Table, work: _Work) -> pa.Table:
    """Finish one file; or, of the rows that say what shares lost, their sum."""
    file = rows[FILE][0].as_py()
    if file == _COUNTS:
        entry, dropped = None, sum((Dropped(**json.loads(text)) for text in rows["text"].to_pylist()), Dropped())
    else:
        entry, dropped = _entry(rows, file, load_key(work.key_path), work)
    return pa.table({"report": [json.dumps({"file": file, "entry": entry, "dropped": asdict(dropped)})]})


def _entry(rows: pa.Table, file: int, key: Key, work: _Work) -> tuple[Json, Dropped]:
    finished, dropped = finish(rows, file, key, work.layout)
    part, number = work.layout.part_of(file)
    return asdict(write_part(finished, part, key, work.out, work.layout.unit, number)), dropped


def _manifest(work: _Work, stamp: str, written: dict[int, Json], dropped: Dropped) -> ShardManifest:
    layout = work.layout
    entries = [FileEntry(**written[file]) for file in sorted(written)]
    first = {entry.part: entry for entry in reversed(entries)}
    return ShardManifest(
        config=stamp,
        shards=layout.shards,
        per_part=layout.per_part,
        max_records_per_user=layout.config.max_records_per_user,
        holdout_share=layout.config.holdout,
        parts=tuple(first[part] for part in range(layout.parts)),
        holdout=first[HOLDOUT],
        dropped=dropped,
        unit=layout.unit,
        max_shards_per_phrase=layout.config.max_shards_per_phrase,
        more=tuple(entry for entry in entries if entry is not first[entry.part]),
        version=work.version,
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
