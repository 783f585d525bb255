"""Spread the corpus over shards with Ray: bound each piece, file its rows by part, finish each part into one file.

    source -> shares: read, clean, bound, find each row's part -> spill (private files)     one Ray task a share
    spill  -> groups of parts: bound, sort, write part files                                one Ray task a group

Privacy argument: a user's shard depends on their id and the secret alone, and one user sits in exactly one file, so
that adding or removing a user changes one shard. For the units 'record' and 'phrase' see `layout` and `masking`:
their rules hold row by row, before rows meet. Ray may run any task twice; every step is a deterministic function of
its rows, and a file is written to a scratch name and renamed, so that a retry writes the same bytes again. What Ray
carries, and counts where others can see it, are the numbers of shares and groups, which are public and depend on no
corpus: rows, counts and digests travel through private files (`spill`). The key travels as a path and is read in the
worker, and so do secret phrases; on more than one machine, key, phrases, source and shard directory must be on a
filesystem that all of them see.

A lost node is Ray's to mend: it runs the node's tasks again elsewhere. What Ray cannot mend is tried anew, ATTEMPTS
times in all. That number is public; what our own code raises, such as a malformed file, is not tried again.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import ray.data
from ray.exceptions import RayError, RayTaskError, UserCodeException

from rayprivacy.core.errors import CorpusError, RayPrivacyError
from rayprivacy.core.files import private_directory
from rayprivacy.core.keys import load_key
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.bounding import Dropped
from rayprivacy.corpus.layout import HOLDOUT, Layout, finish, prepare
from rayprivacy.corpus.manifest import MANIFEST, FileEntry, ShardManifest, read_manifest
from rayprivacy.corpus.masking import tidy
from rayprivacy.corpus.parts import clear_parts, write_part
from rayprivacy.corpus.phrases import PhraseFile
from rayprivacy.corpus.sealing import sealed, unwrap
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.corpus.sources import check_source, read_share, source_stamp
from rayprivacy.corpus.spill import Spill

SHARES = 16  # tasks that read the source: public, whatever the corpus
MOST_GROUPS = 200  # tasks that write part files: public, whatever the corpus
ATTEMPTS = 3
_STEP = "sharding the corpus"
_READ, _WRITTEN = "read", "written"
Batch = dict[str, npt.NDArray[np.int64]]


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
    key = load_key(key_path)
    out = out.absolute()
    phrases = PhraseFile.of(config.phrases, key) if config.phrases else None
    # Unit 'user' adds nothing, so that shards of the first version are found again.
    more = [] if unit is PrivacyUnit.USER else [unit, phrases.digest if phrases else ""]
    more += [] if planted is None else [json.dumps(planted.to_pydict())]
    source = source_stamp(config)
    stamp = key.digest("corpus-config", config.model_dump_json(), shards, per_part, source, *more)
    finished = _finished(out, stamp)
    if finished is not None:
        return finished
    check_source(config)
    clear_parts(private_directory(out))
    _run(_Work(layout, key_path.absolute(), phrases, out, source, planted))
    manifest = _manifest(layout, stamp, out)
    _drop_scratch(out)
    check_size(manifest, out)
    manifest.write(out)
    return manifest


def _spill(out: Path) -> Spill:
    return Spill(out / ".rows")


def _drop_scratch(out: Path) -> None:
    """Remove the private rows on their way, and what tasks left half-written when they died."""
    _spill(out).remove()
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


@dataclass(frozen=True)
class _Work:
    """What every task needs to know; holds no row of the corpus."""

    layout: Layout
    key_path: Path
    phrases: PhraseFile | None
    out: Path
    stamp: str
    planted: pa.Table | None


def _groups(layout: Layout) -> list[range]:
    """All parts, the hold-out first, in groups of about equal size."""
    parts = range(HOLDOUT, layout.parts)
    count = min(len(parts), MOST_GROUPS)
    return [parts[len(parts) * group // count : len(parts) * (group + 1) // count] for group in range(count)]


def _run(work: _Work) -> None:
    failure: RayPrivacyError = CorpusError(
        f"{_STEP} lost processes {ATTEMPTS} times: check the machines and their memory, and run again with --resume."
    )
    with _quiet():
        for _ in range(ATTEMPTS):
            _spill(work.out).prepare()
            try:
                _tasks(_read, SHARES, work)
                _tasks(_write, len(_groups(work.layout)), work)
                return
            except Exception as error:  # noqa: BLE001 - whatever Ray raises may quote private rows
                if not _is_loss(error):
                    failure = unwrap(_STEP, error)
                    break
    _spill(work.out).remove()
    raise failure


def _tasks(function: Callable[..., Batch], count: int, work: _Work) -> None:
    """Call a function once for every number below `count`, each in a Ray task of its own."""
    numbers = ray.data.from_items([{"number": number} for number in range(count)], override_num_blocks=count)
    numbers.map_batches(partial(function, work=work), batch_size=1).materialize()


def _is_loss(error: BaseException) -> bool:
    """Whether Ray lost, or could not get, a process or an object, rather than our code having raised something."""
    while isinstance(error, RayTaskError) and isinstance(error.cause, BaseException):
        error = error.cause
    return isinstance(error, RayError) and not isinstance(error, RayTaskError | UserCodeException)


@contextmanager
def _quiet() -> Iterator[None]:
    context = ray.data.DataContext.get_current().copy()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.max_errored_blocks = 0  # a lost block would silently lose users
    with ray.data.DataContext.current(context):
        yield


@sealed(_STEP)
def _read(batch: Batch, work: _Work) -> Batch:
    """Read one share of the source, and file its rows by part."""
    (share,) = batch["number"].tolist()
    layout = work.layout
    key = load_key(work.key_path)
    total = Dropped()
    phrases = work.phrases.load(key) if work.phrases else None
    pieces = 0
    for piece in _pieces(work, share):
        cleaned, dropped = tidy(piece, key, layout, phrases)
        rows, more = prepare(cleaned, key, layout)
        _spill(work.out).write(share, pieces, rows)
        total = total + dropped + more
        pieces = pieces + 1
    _spill(work.out).report(_READ, share, total, pieces=pieces)
    return batch


def _pieces(work: _Work, share: int) -> Iterator[pa.Table]:
    yield from read_share(work.layout.config, share, SHARES, work.stamp)
    if work.planted is not None and share == 0:
        yield _labelled(work.planted, work.layout.config.labels)


def _labelled(rows: pa.Table, labels: tuple[str, ...]) -> pa.Table:
    for name in labels:
        rows = rows.append_column(name, pa.nulls(len(rows), pa.string()))
    return rows


@sealed(_STEP)
def _write(batch: Batch, work: _Work) -> Batch:
    """Finish one group of parts, empty ones too."""
    (group,) = batch["number"].tolist()
    layout = work.layout
    key = load_key(work.key_path)
    spill = _spill(work.out)
    reports = enumerate(spill.reports(_READ, SHARES))
    pieces = [(share, piece) for share, report in reports for piece in range(report["pieces"])]
    total = Dropped()
    entries = []
    for part, rows in spill.read(pieces, _groups(layout)[group], layout.shuffle_schema.empty_table()).items():
        finished, dropped = finish(rows, part, key, layout)
        entries.append(asdict(write_part(finished, part, key, work.out, layout.unit)))
        total += dropped
    spill.report(_WRITTEN, group, total, entries=entries)
    return batch


def _manifest(layout: Layout, stamp: str, out: Path) -> ShardManifest:
    spill = _spill(out)
    written = spill.reports(_WRITTEN, len(_groups(layout)))
    by_part = {entry["part"]: FileEntry(**entry) for report in written for entry in report["entries"]}
    reports = [*spill.reports(_READ, SHARES), *written]
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
        CorpusError: a corpus of one has nothing to hide among.
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
