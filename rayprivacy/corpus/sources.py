"""The private corpus as a Ray dataset of user, text and labels.

Ray schedules the reading, the readers are ours (see `readers`): Ray's CSV reader quotes the row it fails on and infers
types piece by piece, and its Parquet reader fails now and then on several files when aiohttp is not installed (a race
in importing fsspec). Names and columns are checked first, so that a typo costs nothing.
"""

from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec

import pyarrow as pa
import ray.data

from rayprivacy.core.errors import CorpusError
from rayprivacy.corpus.listing import SourceFiles, check_columns, columns_of, filesystem_of, locate
from rayprivacy.corpus.readers import read_pieces
from rayprivacy.corpus.sealing import sealed
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.corpus.users import clean

CHITCHAT = "chitchat"
CHITCHAT_COLUMNS = ["user", "text", "topic"]
Step = Callable[[pa.Table], pa.Table]
_BLOCK_ROWS = 65_536
_PARQUET_TASKS = 8


def read_source(config: CorpusConfig) -> ray.data.Dataset:
    """Read the corpus with canonical users and clean texts; rows without either are left out.

    Returns:
        A lazy dataset with the columns user (string), text (large string) and the labels (strings).

    Raises:
        CorpusError: the source or a column is missing, or of no known format.
    """
    return scan(config, partial(_clean_block, max_chars=config.max_chars))


def scan(config: CorpusConfig, step: Step, planted: pa.Table | None = None) -> ray.data.Dataset:
    """Apply a step to every piece of the corpus as it is read, with its columns renamed to user, text and the labels.

    The step sees each file's end as a piece without rows: it is called even when the corpus is empty. Planted rows, of
    user and text, are a piece of their own.
    """
    if config.source == CHITCHAT:
        pieces = _scan_chitchat(config, step)
    else:
        files = locate(config)
        check_columns(config, columns_of(config, files))
        pieces = _scan_files(config, files, step)
    return pieces if planted is None else pieces.union(_stepped([_labelled(planted, config.labels)], step))


def source_stamp(config: CorpusConfig) -> str:
    """Names the state of the source: another stamp means that the corpus changed and must be sharded again."""
    if config.source == CHITCHAT:
        _need_chitchat()
        return version("chitchat-dataset")
    return locate(config).stamp


def _scan_chitchat(config: CorpusConfig, step: Step) -> ray.data.Dataset:
    _need_chitchat()
    check_columns(config, CHITCHAT_COLUMNS)
    table = chitchat_table().select(config.columns).rename_columns(["user", "text", *config.labels])
    blocks = [table.slice(start, _BLOCK_ROWS) for start in range(0, len(table), _BLOCK_ROWS)]
    return _stepped(blocks, step)


def _stepped(blocks: list[pa.Table], step: Step) -> ray.data.Dataset:
    return ray.data.from_arrow(blocks).map_batches(step, batch_size=None, batch_format="pyarrow")


def _labelled(rows: pa.Table, labels: tuple[str, ...]) -> pa.Table:
    for name in labels:
        rows = rows.append_column(name, pa.nulls(len(rows), pa.string()))
    return rows


def _need_chitchat() -> None:
    if find_spec("chitchat_dataset") is None:
        raise CorpusError(
            "corpus.source is 'chitchat', which is not installed: run pip install chitchat-dataset, "
            "or name a .parquet, .jsonl or .csv file."
        )


@sealed("reading chitchat")
def chitchat_table() -> pa.Table:
    """Every message; its topic is the public question that its conversation was given, null for one without."""
    from chitchat_dataset import Dataset  # an optional package, imported only where it is wanted

    messages = [
        (message["sender"], message["text"], conversation.get("prompt") or None)
        for conversation in Dataset().values()
        for turn in conversation["messages"]
        for message in turn
    ]
    kinds = (pa.string(), pa.large_string(), pa.string())
    columns = [pa.array(values, kind) for values, kind in zip(zip(*messages, strict=True), kinds, strict=True)]
    return pa.table(columns, names=CHITCHAT_COLUMNS)


def _scan_files(config: CorpusConfig, files: SourceFiles, step: Step) -> ray.data.Dataset:
    # A few big Parquet files are read by several tasks each, which take turns on the row groups.
    stripes = max(1, _PARQUET_TASKS // len(files.paths)) if files.kind == "parquet" else 1
    tasks = [{"path": path, "stripe": stripe} for path in files.paths for stripe in range(stripes)]
    read = partial(_read_file, kind=files.kind, stripes=stripes, config=config, step=step)
    rows = ray.data.from_items(tasks, override_num_blocks=len(tasks))
    return rows.map_batches(read, batch_size=1, batch_format="pyarrow")


def _read_file(task: pa.Table, kind: str, stripes: int, config: CorpusConfig, step: Step) -> Iterator[pa.Table]:
    advance = sealed("reading the corpus")(next)
    pieces = _pieces(task["path"][0].as_py(), kind, (task["stripe"][0].as_py(), stripes), config)
    while (piece := advance(pieces, None)) is not None:
        yield step(piece)


def _pieces(path: str, kind: str, stripe: tuple[int, int], config: CorpusConfig) -> Iterator[pa.Table]:
    filesystem, _ = filesystem_of(config.source)
    names = ["user", "text", *config.labels]
    with filesystem.open_input_file(path) as stream:
        for piece in read_pieces(stream, kind, config.columns, stripe):
            yield piece.select(config.columns).rename_columns(names)
    # Ray skips a block without rows, and then makes up one without columns, which no shuffle can take.
    yield pa.table({name: pa.array([], pa.large_string()) for name in names})


@sealed("cleaning the corpus")
def _clean_block(table: pa.Table, max_chars: int) -> pa.Table:
    return clean(table, max_chars)[0]
