"""The store of a mirror: objects named by their digests, one manifest, and copies under their own names.

    <uri>/manifest.json          the state: replaced last, in one write
    <uri>/objects/<sha256>       contents; never overwritten, deleted when no manifest names them any more
    <uri>/synthetic.parquet ...  copies of what a finished run leaves on top, for people and other programs

Transfers stream in blocks; several files travel at once. Transient errors are retried by pyarrow itself.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
from pyarrow import fs

from rayprivacy.core.errors import ConfigError, StorageError
from rayprivacy.core.files import OWNER_ONLY, private_directory
from rayprivacy.core.mirror.local import Folder, blocks_of
from rayprivacy.core.mirror.manifest import Entry
from rayprivacy.core.mirror.uris import open_uri, reason, shown

MANIFEST, OBJECTS = "manifest.json", "objects"
AT_ONCE = 8
FLAT = ("s3", "gcs", "abfs")  # object stores, which have no folders to make
_OBJECT = re.compile(r"[0-9a-f]{64}")
T = TypeVar("T")


class Store:
    """A place that pyarrow opens by a URI.

    Raises:
        ConfigError: the URI cannot be opened, or names no folder.
    """

    def __init__(self, uri: str) -> None:
        self.uri = shown(uri)
        self._files, path = open_uri("the run directory", uri, ConfigError)
        self._path = path.rstrip("/")
        if "/" not in self._path.lstrip("/") and self._files.type_name in FLAT:
            raise ConfigError(f"the run directory is '{self.uri}', a whole bucket: name a folder in it.")

    @contextmanager
    def _asked(self, what: str) -> Iterator[None]:
        failure: str | None = None
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            failure = reason(error)
        if failure is not None:
            raise StorageError(
                f"{what} {self.uri} failed ({failure}): check the access and the space left, then run with --resume."
            )

    def read_manifest(self) -> bytes | None:
        """The manifest as it is now; None when there is none.

        Raises:
            StorageError: the store does not answer, or the place holds other files.
        """
        with self._asked("reading"):
            if self._files.get_file_info(f"{self._path}/{MANIFEST}").type == fs.FileType.File:
                with self._files.open_input_stream(f"{self._path}/{MANIFEST}") as stream:
                    return bytes(stream.read())
            inside = self._files.get_file_info(fs.FileSelector(self._path, allow_not_found=True))
        # A killed first push leaves objects and no manifest.
        if any(info.base_name not in (OBJECTS, f"{MANIFEST}.new") for info in inside):
            raise StorageError(f"{self.uri} holds other files and no run: choose an empty folder.")
        return None

    def write_manifest(self, data: bytes) -> None:
        """Replace the manifest; readers see the old one or this one."""
        with self._asked("writing to"):
            if self._files.type_name != "local":
                self._write(f"{self._path}/{MANIFEST}", [data])
            else:  # appears whole by a rename
                self._write(f"{self._path}/{MANIFEST}.new", [data])
                Path(f"{self._path}/{MANIFEST}.new").chmod(OWNER_ONLY)
                self._files.move(f"{self._path}/{MANIFEST}.new", f"{self._path}/{MANIFEST}")

    def prepare(self) -> None:
        """Make the folders, where the store has such."""
        with self._asked("writing to"):
            if self._files.type_name == "local":
                private_directory(Path(self._path))
                private_directory(Path(self._path) / OBJECTS)
            elif self._files.type_name not in FLAT:
                self._files.create_dir(f"{self._path}/{OBJECTS}", recursive=True)

    def objects(self) -> dict[str, int]:
        """Sizes of the objects by digest, also of those that a killed push left behind."""
        with self._asked("listing"):
            found = self._files.get_file_info(fs.FileSelector(f"{self._path}/{OBJECTS}", allow_not_found=True))
        return {info.base_name: info.size for info in found if _OBJECT.fullmatch(info.base_name)}

    def upload(self, folder: Folder, files: Iterable[tuple[str, Entry]]) -> None:
        """Store contents under their digests.

        Raises:
            StorageError: the store refuses, or a file changed under our hands.
        """
        self._at_once(lambda item: self._put(folder, *item, f"{self._path}/{OBJECTS}/{item[1].sha256}"), files)

    def copy(self, folder: Folder, files: Iterable[tuple[str, Entry]]) -> None:
        """Store contents under the names of the files.

        Raises:
            StorageError: as `upload`.
        """
        chosen = list(files)
        if self._files.type_name not in FLAT:
            with self._asked("writing to"):
                for parent in {f"{self._path}/{name}".rpartition("/")[0] for name, _ in chosen}:
                    self._files.create_dir(parent, recursive=True)
        self._at_once(lambda item: self._put(folder, *item, f"{self._path}/{item[0]}"), chosen)

    def download(self, folder: Folder, files: Iterable[tuple[str, Entry]]) -> None:
        """Fetch contents into a folder; a file is whole and right, or not there.

        Raises:
            StorageError: the store refuses, or an object is missing or not what its name says.
        """
        self._at_once(lambda item: self._get(folder, *item), files)

    def delete_objects(self, digests: Iterable[str]) -> None:
        """Delete objects that no manifest names any more."""
        self._delete(f"{OBJECTS}/{digest}" for digest in digests)

    def delete_copies(self, names: Iterable[str]) -> None:
        """Delete copies that lie under their own names."""
        self._delete(names)

    def _delete(self, names: Iterable[str]) -> None:
        def act(name: str) -> None:
            with self._asked("deleting in"), suppress(FileNotFoundError):
                self._files.delete_file(f"{self._path}/{name}")

        self._at_once(act, names)

    def _put(self, folder: Folder, name: str, entry: Entry, target: str) -> None:
        with self._asked("writing to"), (folder.root / name).open("rb") as source:
            try:
                whole = self._write(target, blocks_of(source)) == entry.sha256
            except BaseException:
                self._discard(target)  # closing a stream stores what came that far
                raise
        if whole and self._files.type_name == "local":
            Path(target).chmod(entry.mode)
        if not whole:
            self._discard(target)
            raise StorageError(f"{folder.root / name} changed while it was mirrored: let one process work on a run.")

    def _write(self, target: str, blocks: Iterable[bytes]) -> str:
        digest = hashlib.sha256()
        with self._files.open_output_stream(target) as stream:
            for block in blocks:
                digest.update(block)
                stream.write(block)
        return digest.hexdigest()

    def _discard(self, target: str) -> None:
        with suppress(OSError, pa.ArrowException):
            self._files.delete_file(target)

    def _get(self, folder: Folder, name: str, entry: Entry) -> None:
        source = f"{self._path}/{OBJECTS}/{entry.sha256}"
        with self._asked("reading"), self._files.open_input_stream(source) as stream:
            whole = folder.write(name, entry, blocks_of(stream))
        if not whole:
            raise StorageError(f"an object in {self.uri} is damaged: delete the run there, or restore the object.")

    @staticmethod
    def _at_once(act: Callable[[T], None], items: Iterable[T]) -> None:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            waiting = [pool.submit(act, item) for item in items]
            try:
                for future in waiting:
                    future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
