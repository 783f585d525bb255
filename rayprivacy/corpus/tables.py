"""Tables as corpora: Delta, Lance and Hugging Face folders, and Iceberg by name, each read at one version.

A folder is known by its content and Iceberg by its prefix, as its catalogue alone knows which version is current:

    /data/chats                       holds _delta_log, _versions, or dataset_info.json and state.json
    iceberg:CATALOG.NAMESPACE.TABLE   the catalogue is configured as pyiceberg does (file or environment)

A run copies the rows of one version to files (`runs.source`), and everything else reads files. Read as a folder of
files, a table would give rows that were deleted, or that belong to another version: where files are meant, it is
refused. Libraries are imported where they are used, for each is an extra of its own; a Hugging Face dataset needs none:
it is a list of Arrow streams. What libraries raise may quote rows or credentials, and is named by its type alone.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from json import load
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pyarrow import fs

from rayprivacy.core.errors import CorpusError, RayPrivacyError
from rayprivacy.core.files import Json
from rayprivacy.core.keys import Key
from rayprivacy.core.private import Seal
from rayprivacy.core.uris import is_uri, open_uri, shown

if TYPE_CHECKING:
    from ray.data import Dataset

T = TypeVar("T")
ICEBERG = "iceberg:"
SEAL = Seal(CorpusError, "check that the table of corpus.source is whole and readable")
_INFO, _STATE, _SPLITS = "dataset_info.json", "state.json", "dataset_dict.json"  # of a Hugging Face dataset


@dataclass(frozen=True)
class TableKind:
    """One kind of table, and how its library is asked."""

    words: str  # with its article
    version: str  # what the library calls a version
    module: str  # that must be installed, by the extra of this package; empty where none is needed
    extra: str
    latest: Callable[[str, Key], str]  # of a place: the version that is current
    columns: Callable[[str, str], list[str]]  # of a place at a version
    rows: Callable[[str, str, list[str]], "Dataset"]  # some columns of a place at a version

    @property
    def keeps_versions(self) -> bool:
        """Whether an old version can be read after the table has moved on."""
        return self is not _HUGGING_FACE


@dataclass(frozen=True)
class Table:
    """A table that a recipe names; what its library raises becomes one sentence that names the recipe's source."""

    kind: TableKind
    source: str  # as the recipe writes it

    def latest(self, key: Key) -> str:
        """The version that is current; a Hugging Face dataset has none, and is named by a keyed digest."""
        return self._asked(
            lambda: self.kind.latest(self._place, key), "cannot be opened", "correct the name, or the access to it"
        )

    def columns(self, version: str) -> list[str]:
        """The columns at a version, without reading a row."""
        which = f"has no {self.kind.version} {version} that can be opened"
        return self._asked(lambda: self.kind.columns(self._place, version), which, "choose another --out")

    def rows(self, version: str, columns: list[str]) -> "Dataset":
        """The rows of a version, which Ray reads when they are asked for."""
        return self._asked(
            lambda: self.kind.rows(self._place, version, columns), "cannot be read", "check that its files are there"
        )

    def named(self, version: str) -> str:
        """Kind and version, as manifest and certificate say it."""
        return f"{self.kind.words.partition(' ')[2]}, {self.kind.version} {version}"

    @property
    def _place(self) -> str:
        if self.source.startswith(ICEBERG):
            return self.source.removeprefix(ICEBERG)
        return self.source if is_uri(self.source) else os.path.abspath(os.path.expanduser(self.source))

    def _asked(self, ask: Callable[[], T], what: str, remedy: str) -> T:
        said = f"corpus.source is '{shown(self.source)}', {self.kind.words}"
        if self.kind.module and find_spec(self.kind.module) is None:
            raise CorpusError(
                f"{said}, and {self.kind.module} is not installed: run pip install 'rayprivacy[{self.kind.extra}]'."
            )
        if self.kind.module and is_uri(self.source) and "?" in self.source:
            raise CorpusError(f"{said}, which takes its options from the environment: leave out what follows the '?'.")
        try:
            return ask()
        except RayPrivacyError:
            raise
        except Exception as error:  # noqa: BLE001 - it may quote rows or credentials
            why = type(error).__name__
        raise CorpusError(f"{said}, which {what} ({why}): {remedy}.")


def table_of(source: str) -> Table | None:
    """The table that a source is; None for files, names and what is not there."""
    if source.startswith(ICEBERG):
        if source.count(".") < 2 or not all(source.removeprefix(ICEBERG).split(".")):
            raise CorpusError(f"corpus.source is '{source}': write {ICEBERG}CATALOG.NAMESPACE.TABLE.")
        return Table(_ICEBERG, source)
    filesystem, path = _opened(source)
    if filesystem.get_file_info(path).type != fs.FileType.Directory:
        return None
    looked = [fs.FileSelector(folder, allow_not_found=True) for folder in (path, f"{path}/metadata")]
    listed = [info for selector in looked for info in filesystem.get_file_info(selector)]
    return table_among(source, [info.path[len(path) :].strip("/") for info in listed])


def table_among(source: str, paths: list[str]) -> Table | None:
    """The same of a folder, by the paths of what is in it."""
    there = {path.split("/", 1)[0] for path in paths}
    if _SPLITS in there:
        raise CorpusError(
            f"corpus.source is '{shown(source)}', a Hugging Face dataset of several splits: name the folder of one."
        )
    if any(path.startswith("metadata/") and path.endswith(".metadata.json") for path in paths):
        raise CorpusError(
            f"corpus.source is '{shown(source)}', the folder of an Iceberg table, and its catalogue alone knows which"
            f" files count: write {ICEBERG}CATALOG.NAMESPACE.TABLE."
        )
    kinds = {"_delta_log": _DELTA, "_versions": _LANCE} | ({_INFO: _HUGGING_FACE} if _STATE in there else {})
    kind = next((kind for name, kind in kinds.items() if name in there), None)
    return Table(kind, source) if kind else None


def _opened(source: str) -> tuple[fs.FileSystem, str]:
    if is_uri(source):
        return open_uri("corpus.source", source, CorpusError)
    return fs.LocalFileSystem(), os.path.abspath(os.path.expanduser(source))


def _delta(place: str, version: str | None = None) -> Any:
    from deltalake import DeltaTable

    return DeltaTable(place, version=None if version is None else int(version))


def _delta_rows(place: str, version: str, columns: list[str]) -> "Dataset":
    import ray.data

    from rayprivacy.work.mapping import in_reads

    return in_reads(ray.data.read_delta, place, version=int(version), columns=columns)


def _lance(place: str, version: str | None = None) -> Any:
    import lance

    return lance.dataset(place, version=None if version is None else int(version))


def _lance_rows(place: str, version: str, columns: list[str]) -> "Dataset":
    import ray.data

    from rayprivacy.work.mapping import in_reads

    return in_reads(ray.data.read_lance, place, version=int(version), columns=columns)


def _iceberg(place: str) -> Any:
    from pyiceberg.catalog import load_catalog

    catalog, _, name = place.partition(".")
    return load_catalog(catalog).load_table(name)


def _iceberg_latest(place: str, _: Key) -> str:
    snapshot = _iceberg(place).current_snapshot()
    if snapshot is None:
        raise CorpusError(f"corpus.source is '{ICEBERG}{place}', which holds no record: give a corpus with text.")
    return str(snapshot.snapshot_id)


def _iceberg_columns(place: str, version: str) -> list[str]:
    return [field.name for field in _iceberg(place).scan(snapshot_id=int(version)).projection().fields]


def _iceberg_rows(place: str, version: str, _: list[str]) -> "Dataset":
    import ray.data

    from rayprivacy.work.mapping import in_reads

    catalog, _dot, name = place.partition(".")
    named = {"table_identifier": name, "snapshot_id": int(version), "catalog_kwargs": {"name": catalog}}
    return in_reads(ray.data.read_iceberg, **named)  # whoever reads chooses columns: Ray pushes that down


def _saved(place: str, file: str) -> Json:
    filesystem, path = _opened(place)
    with filesystem.open_input_file(f"{path}/{file}") as stream:
        read: Json = load(stream)
    return read


def _streams(place: str) -> list[str]:
    return [file["filename"] for file in _saved(place, _STATE)["_data_files"]]


def _saved_digest(place: str, key: Key) -> str:
    """Names the files and their state. The library's own fingerprint may be a plain hash of the rows."""
    filesystem, path = _opened(place)
    infos = filesystem.get_file_info([f"{path}/{name}" for name in (_STATE, *_streams(place))])
    return key.digest("hugging-face", *(f"{info.base_name} {info.size} {info.mtime_ns}" for info in infos))[:16]


def _saved_columns(place: str, _: str) -> list[str]:
    return list(_saved(place, _INFO)["features"])


def _saved_rows(place: str, _: str, columns: list[str]) -> "Dataset":
    from rayprivacy.work.mapping import in_tasks, numbers

    read = partial(_stream, place=place, names=_streams(place), columns=columns)
    return in_tasks(numbers(range(len(_streams(place)))), read)


def _stream(numbers: pa.Table, place: str, names: list[str], columns: list[str]) -> Iterator[pa.Table]:
    """Read one of the streams, in a task of Ray's."""
    filesystem, path = _opened(place)
    for number in numbers[0].to_pylist():
        with filesystem.open_input_file(f"{path}/{names[number]}") as file, pa.ipc.open_stream(file) as stream:
            yield from SEAL.each("reading the dataset", (pa.Table.from_batches([b]).select(columns) for b in stream))


_DELTA = TableKind(
    "a Delta table",
    "version",
    "deltalake",
    "delta",
    lambda place, _: str(_delta(place).version()),
    lambda place, version: [field.name for field in _delta(place, version).schema().fields],
    _delta_rows,
)
_LANCE = TableKind(
    "a Lance table",
    "version",
    "lance",
    "lance",
    lambda place, _: str(_lance(place).version),
    lambda place, version: list(_lance(place, version).schema.names),
    _lance_rows,
)
_ICEBERG = TableKind(
    "an Iceberg table", "snapshot", "pyiceberg", "iceberg", _iceberg_latest, _iceberg_columns, _iceberg_rows
)
_HUGGING_FACE = TableKind("a Hugging Face dataset", "keyed digest", "", "", _saved_digest, _saved_columns, _saved_rows)
