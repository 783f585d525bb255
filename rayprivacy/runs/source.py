"""The corpus of a run that is no files yet: its rows are copied to the run's private side, once.

That is a Ray Dataset that was handed over (`corpus.source: dataset`), or a table at one version (`corpus.tables`).
`private/source` of the run then stands for it. Tasks write the copy, and the driver sees names and sums alone: each
task writes one file, named by a keyed digest of its content, so that a task that is repeated writes the same file.
Then files are named by their order. Each holds a public number of rows: so the place of a row, by which some methods
know it (`corpus.layout`), follows from how many rows come before it, and not from how long these are.

The release id does not depend on what is in the copy, as it does not for a path; the shards, and with them the input
digest of every charge, depend on its content.
"""

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from rayprivacy.core.errors import ConfigError, CorpusError
from rayprivacy.core.files import private_directory, read_json, write_atomic, write_json
from rayprivacy.core.keys import KEY_BYTES, Key, load_key
from rayprivacy.core.private import Seal
from rayprivacy.corpus.layout import add_digests
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.corpus.sources import check_columns, plain_string
from rayprivacy.corpus.tables import Table
from rayprivacy.runs.checks import DATASET, check_files, table_behind
from rayprivacy.runs.directory import COPY, R, Run
from rayprivacy.work.mapping import in_tasks, rows_of

if TYPE_CHECKING:
    from ray.data import Dataset

_FOLDER, _STAMP = "source", ".stamp"
_VERSION = "source_version.json"  # on the public side, as the certificate says it: `clean` leaves it
_ROWS = 8192  # of one file
_SEAL = Seal(CorpusError, "report it, with the schema of the dataset")  # errors may quote rows


def corpus_of(run: Run[R]) -> CorpusConfig:
    """The corpus of a run, with the place where its rows are; ConfigError for a dataset that was not handed over."""
    corpus = run.recipe.sharded_corpus
    if _has_copy(run):
        return corpus.model_copy(update={"source": str(run.private(_FOLDER))})
    if corpus.source == DATASET:
        raise ConfigError(
            "corpus.source is 'dataset' and no dataset was given: call rayprivacy.run(recipe, dataset=...), or name a"
            " .parquet, .jsonl or .csv file."
        )
    return corpus


def version_of(run: Run[R]) -> str:
    """Which version of a table the run reads, in words; empty where its corpus is none."""
    path = run.public(_VERSION)
    return str(read_json(path)["table"]) if path.exists() else ""


def look(run: Run[R]) -> None:
    """Refuse a corpus that is not there, or lacks a column, before anything is made. A dataset is looked at by Ray."""
    check_files(run.recipe)
    table = table_behind(run.recipe.corpus)
    if table and not (_has_copy(run) or _known_version(run, table)):
        _check(run, table.columns(table.latest(Key(bytes(KEY_BYTES)))))  # any key: what it names is not kept


def settle_source(run: Run[R], dataset: "Dataset | None") -> None:
    """Copy what is no files yet, unless that was done; Ray must run.

    The version of a table is written down before it is read: a run that is resumed reads that one again, whatever
    became of the table since. A dataset with other rows replaces the copy that is there: it is another corpus, as a
    changed file is.
    """
    source = run.recipe.corpus.source
    if dataset is not None:
        if source != DATASET:
            raise ConfigError(
                f"a dataset was given, and corpus.source is '{source}': set corpus.source to '{DATASET}'."
            )
        with run.stage(COPY):
            _check(run, _columns_of(dataset))
            _write(run, dataset)
    elif not _has_copy(run) and (table := table_behind(run.recipe.corpus)):
        with run.stage(COPY):
            version = _known_version(run, table) or table.latest(load_key(_key_path(run)))
            _check(run, table.columns(version))
            write_json(run.public(_VERSION), {"table": table.named(version), "version": version})
            _write(run, table.rows(version, run.recipe.corpus.columns))


def _has_copy(run: Run[R]) -> bool:
    return (run.root / "private" / _FOLDER).is_dir()


def _known_version(run: Run[R], table: Table) -> str:
    """The version with which the run began; empty where it is new, or nothing but what is there can be read."""
    path = run.public(_VERSION)
    return str(read_json(path)["version"]) if path.exists() and table.kind.keeps_versions else ""


def _key_path(run: Run[R]) -> Path:
    return Path(run.recipe.privacy.key).absolute()


def _check(run: Run[R], names: list[str]) -> None:
    check_columns(run.recipe.corpus, names, "parquet")


@_SEAL.around("reading the schema of the dataset")
def _columns_of(dataset: "Dataset") -> list[str]:
    schema = dataset.schema()
    return list(schema.names) if schema else []


@_SEAL.around(COPY)
def _write(run: Run[R], dataset: "Dataset") -> None:
    """Write the columns of the recipe to the private side, or find these rows there.

    Rows are named by a keyed digest that does not depend on their order, which a dataset need not have.
    """
    folder, scratch = run.private(_FOLDER), run.private(f".{_FOLDER}")
    shutil.rmtree(scratch, ignore_errors=True)
    private_directory(scratch)
    rows = dataset.select_columns(run.recipe.corpus.columns)
    blocks = in_tasks(rows, _plain).repartition(target_num_rows_per_block=_ROWS, strict=True)
    copy = partial(_copied, folder=scratch, key_path=_key_path(run))
    with _in_order(in_tasks(blocks, copy)) as copied:
        written = [(row["file"], row["sum"]) for row in rows_of(copied, COPY, _SEAL)]
    _number(scratch, [name for name, _ in written])
    stamp = f"{add_digests(total for _, total in written)}\n"
    if not ((folder / _STAMP).exists() and (folder / _STAMP).read_text() == stamp):
        write_atomic(scratch / _STAMP, stamp.encode())
        shutil.rmtree(folder, ignore_errors=True)
        scratch.rename(folder)
    shutil.rmtree(scratch, ignore_errors=True)


@_SEAL.around(COPY)
def _plain(rows: pa.Table) -> pa.Table:
    """Rows whose values Arrow knows: Ray pickles a column where it does not, as for a text with a lone surrogate."""
    for at, field in enumerate(rows.schema):
        if isinstance(field.type, pa.BaseExtensionType):
            strings = pa.array(map(plain_string, rows[at].to_pylist()), pa.large_string())
            rows = rows.set_column(at, field.name, strings)
    return rows


@_SEAL.around(COPY)
def _copied(rows: pa.Table, folder: Path, key_path: Path) -> pa.Table:
    """Write one file; returns its name and the sum of its rows' digests. It runs in a task of Ray's."""
    key, sink = load_key(key_path), pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd")
    data = sink.getvalue().to_pybytes()
    name = f".{key.digest('dataset-file', data)}"
    write_atomic(folder / name, data)
    named = (key.digest("dataset-row", *(repr(value) for value in row.values())) for row in rows.to_pylist())
    return pa.table({"file": [name], "sum": [add_digests(named)]})


@contextmanager
def _in_order(dataset: "Dataset") -> Iterator["Dataset"]:
    """The dataset, of which all blocks come in order and in silence meanwhile; it shares its settings with others."""
    context, options = dataset.context, dataset.context.execution_options
    before = options.preserve_order, context.enable_progress_bars, context.max_errored_blocks
    options.preserve_order, context.enable_progress_bars, context.max_errored_blocks = True, False, 0
    try:
        yield dataset
    finally:
        options.preserve_order, context.enable_progress_bars, context.max_errored_blocks = before


def _number(scratch: Path, names: list[str]) -> None:
    """Name files by their order, and remove what tasks left that were lost. Blocks of equal rows are one file, which
    is needed once for each.
    """
    left = Counter(names)
    for number, name in enumerate(names):
        left[name] -= 1
        give = shutil.copy if left[name] else shutil.move
        give(scratch / name, scratch / f"{number:08d}.parquet")
    for path in scratch.glob(".*"):
        path.unlink()
