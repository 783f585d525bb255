"""Spread the corpus over shards with Ray: bound each block, shuffle by part, finish each part into one file.

Privacy argument: a user's shard depends on their id and the secret alone, and one user sits in exactly one file, so
that adding or removing a user changes one shard. For the units 'record' and 'phrase' see `placement` and `masking`:
their rules hold row by row, before the shuffle. Ray may run any task twice; every step is a deterministic function of
its rows, and a part is written to a scratch name and renamed, so that a retry writes the same bytes again. Only counts
and digests come back to the driver. The key travels as a path and is read in the worker, and so do secret phrases; on
more than one machine, key, phrases, source and shard directory must be on a filesystem that all of them see.

A lost node is mostly Ray's to mend: it makes the lost blocks anew. When the nodes that are left are full, it cannot:
the tasks that finish parts wait for lost blocks, and keep the CPUs that would make them (seen with Ray 2.60, which lets
them wait for half an hour and then fails). So they wait for STALL_SECONDS, and then the whole shuffle runs again,
ATTEMPTS times in all. Both numbers are public; what our own code raises, such as a malformed file, is not tried again.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray
import ray.data
from ray.exceptions import RayError, RayTaskError

from rayprivacy.core.errors import CorpusError, RayPrivacyError, ShardError
from rayprivacy.core.files import private_directory
from rayprivacy.core.keys import Key, load_key
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.counts import Dropped
from rayprivacy.corpus.layout import HOLDOUT, Layout, finish, prepare
from rayprivacy.corpus.manifest import MANIFEST, FileEntry, ShardManifest, read_manifest
from rayprivacy.corpus.masking import tidy
from rayprivacy.corpus.parts import clear_parts, part_path, read_holdout, read_part, write_part
from rayprivacy.corpus.phrases import PhraseFile
from rayprivacy.corpus.sealing import sealed, unwrap
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.corpus.sources import scan, source_stamp

__all__ = ["ShardManifest", "part_path", "read_holdout", "read_part", "shard_corpus"]

_COUNTS = -2  # the pseudo-part under which each block's drop counts ride along, safe under retries
_STEP = "sharding the corpus"
_MAX_PARTITIONS = 200
STALL_SECONDS = 600.0
ATTEMPTS = 3


def shard_corpus(
    config: CorpusConfig,
    key_path: Path,
    shards: int,
    per_part: int,
    out: Path,
    unit: PrivacyUnit = PrivacyUnit.USER,
    planted: pa.Table | None = None,
) -> ShardManifest:
    """Write the corpus as `out/part-00000.parquet` ... and `out/holdout.parquet`; reuse them if they are there.

    Ray must be started. An intact result of the same settings, key and source is returned as it is.

    Args:
        config: the corpus.
        key_path: the key, on a filesystem that all nodes see.
        shards: how many there are.
        per_part: shards of a file.
        out: the folder.
        unit: of privacy.
        planted: rows of user and text that an audit adds to the corpus; they have no labels.

    Raises:
        ConfigError: the settings, or the secret phrases, break the rule of the unit.
        CorpusError: the source cannot be read as the recipe says, or has fewer than two users.
        ShardError: the result is there, but its files were changed.
    """
    layout = Layout(config, shards, per_part, unit)
    key, out = load_key(key_path), out.absolute()
    phrases = PhraseFile.of(config.phrases, key) if config.phrases else None
    # Unit 'user' adds nothing, so that shards of the first version are found again.
    more = [] if unit is PrivacyUnit.USER else [unit, phrases.digest if phrases else ""]
    more += [] if planted is None else [json.dumps(planted.to_pydict())]
    stamp = key.digest("corpus-config", config.model_dump_json(), shards, per_part, source_stamp(config), *more)
    finished = _finished(out, stamp)
    if finished is not None:
        return finished
    clear_parts(private_directory(out))
    manifest = _manifest(layout, stamp, _run(layout, key_path.absolute(), phrases, out, planted), key, out)
    check_size(manifest, out)
    _drop_scratch(out)
    manifest.write(out)
    return manifest


def _drop_scratch(out: Path) -> None:
    """Remove the private rows that tasks left half-written when they died, alone or with their node."""
    for scratch in out.glob(".*"):
        scratch.unlink(missing_ok=True)


def _finished(out: Path, stamp: str) -> ShardManifest | None:
    if not (out / MANIFEST).exists():
        return None
    manifest = read_manifest(out)
    if manifest.config != stamp:
        return None
    manifest.check_files(out)
    return manifest


def _run(
    layout: Layout, key_path: Path, phrases: PhraseFile | None, out: Path, planted: pa.Table | None
) -> list[dict[str, Any]]:
    failure: RayPrivacyError = CorpusError(
        f"{_STEP} lost processes or blocks {ATTEMPTS} times: check the machines and their memory, and run again with"
        " --resume."
    )
    with _quiet():
        for _ in range(ATTEMPTS):
            reports = _shuffle(layout, key_path, phrases, out, planted)
            try:
                return [json.loads(row["report"]) for row in reports.take_all()]
            except Exception as error:  # noqa: BLE001 - whatever Ray raises may quote private rows
                if not _is_loss(error):
                    failure = unwrap(_STEP, error)
                    break
    raise failure


def _shuffle(
    layout: Layout, key_path: Path, phrases: PhraseFile | None, out: Path, planted: pa.Table | None
) -> ray.data.Dataset:
    prepared = partial(_prepare_block, layout=layout, key_path=key_path, phrases=phrases)
    blocks = scan(layout.config, prepared, planted)
    groups = blocks.groupby("part", num_partitions=min(layout.parts + 2, _MAX_PARTITIONS))
    finished = partial(_finish_part, layout=layout, key_path=key_path, out=out)
    return groups.map_groups(finished, batch_format="pyarrow")


def _is_loss(error: BaseException) -> bool:
    """Whether Ray lost, or could not get, a process or an object, rather than our code having raised something."""
    while isinstance(error, RayTaskError) and isinstance(error.cause, BaseException):
        error = error.cause
    return isinstance(error, RayError) and not isinstance(error, RayTaskError)


@contextmanager
def _quiet() -> Iterator[None]:
    context = ray.data.DataContext.get_current().copy()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.max_errored_blocks = 0  # a lost block would silently lose users
    context.hash_shuffle_reduce_get_timeout_s = STALL_SECONDS
    with ray.data.DataContext.current(context):
        yield


@sealed(_STEP)
def _prepare_block(block: pa.Table, layout: Layout, key_path: Path, phrases: PhraseFile | None) -> pa.Table:
    key = load_key(key_path)
    cleaned, dropped = tidy(block, key, layout, phrases.load(key) if phrases else None)
    rows, more = prepare(cleaned, key, layout)
    return pa.concat_tables([rows, _counts(dropped + more, layout)])


def _counts(dropped: Dropped, layout: Layout) -> pa.Table:
    row = {"user": json.dumps(asdict(dropped)), "text": "", "part": _COUNTS}
    return pa.Table.from_pylist([row], schema=layout.shuffle_schema)


@sealed(_STEP)
def _finish_part(group: pa.Table, layout: Layout, key_path: Path, out: Path) -> pa.Table:
    part = group["part"][0].as_py()
    if part == _COUNTS:
        dropped = sum((Dropped(**json.loads(counts)) for counts in group["user"].to_pylist()), Dropped())
        return _report(None, dropped)
    key = load_key(key_path)
    rows, dropped = finish(group, part, key, layout)
    return _report(write_part(rows, part, key, out, layout.unit), dropped)


def _report(entry: FileEntry | None, dropped: Dropped) -> pa.Table:
    report = {"entry": asdict(entry) if entry else None, "dropped": asdict(dropped)}
    return pa.table({"report": [json.dumps(report)]})


def _manifest(layout: Layout, stamp: str, reports: list[dict[str, Any]], key: Key, out: Path) -> ShardManifest:
    entries = [FileEntry(**report["entry"]) for report in reports if report["entry"]]
    by_part = {entry.part: entry for entry in entries}
    if len(by_part) != len(entries):
        raise ShardError("the shuffle split a part in two: nothing was kept; please report this with the Ray version.")
    for part in (HOLDOUT, *range(layout.parts)):
        if part not in by_part:
            by_part[part] = write_part(layout.schema.empty_table(), part, key, out, layout.unit)
    return ShardManifest(
        config=stamp,
        shards=layout.shards,
        per_part=layout.per_part,
        max_records_per_user=layout.config.max_records_per_user,
        holdout_share=layout.config.holdout,
        parts=tuple(by_part[part] for part in range(layout.parts)),
        holdout=by_part[HOLDOUT],
        dropped=sum((Dropped(**report["dropped"]) for report in reports), Dropped()),
        unit=layout.unit,
        max_shards_per_phrase=layout.config.max_shards_per_phrase,
    )


def check_size(manifest: ShardManifest, out: Path) -> None:
    """Refuse a corpus of one user, or of one record, and remove its files.

    Raises:
        CorpusError: there is nobody to hide among.
    """
    by_record = manifest.unit is PrivacyUnit.RECORD
    size = manifest.rows if by_record else manifest.users
    if size > 1:
        return
    clear_parts(out)
    if size == 0:
        raise CorpusError("the corpus has no usable text: check corpus.text and corpus.user.")
    if by_record:
        raise CorpusError("the corpus has one record, which has nothing to hide among: check corpus.source.")
    raise CorpusError("the corpus has one user, and a corpus of one user has nobody to hide among: check corpus.user.")
