"""A folder that pyarrow opens by a URI, on a file system or in an object store.

Contents stream in blocks, and errors are one sentence that names the place without what is secret in its URI. pyarrow
itself retries transient errors. On a file system all folders are for the owner alone, and files appear whole.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

import pyarrow as pa
from pyarrow import fs

from rayprivacy.core.errors import ConfigError, StorageError
from rayprivacy.core.files import OWNER_ONLY, private_directory
from rayprivacy.core.mirror.uris import open_uri, reason, shown

BLOCK = 8 << 20
FLAT = ("s3", "gcs", "abfs")  # object stores, which have no folders to make


class Store:
    """A folder at a URI; names are relative to it."""

    def __init__(self, uri: str) -> None:
        self.uri = shown(uri)
        self._files, path = open_uri("the run directory", uri, ConfigError)
        self._path, self._kind = path.rstrip("/"), self._files.type_name
        if "/" not in self._path.lstrip("/") and self._kind in FLAT:
            raise ConfigError(f"the run directory is '{self.uri}', a whole bucket: name a folder in it.")

    def blocks(self, name: str) -> Iterator[bytes]:
        """The content of a file; nothing where there is none."""
        path = f"{self._path}/{name}"
        with self._errors("reading"), suppress(FileNotFoundError), self._files.open_input_stream(path) as stream:
            while block := stream.read(BLOCK):
                yield block

    def write(self, name: str, blocks: Iterable[bytes], mode: int = OWNER_ONLY, sha256: str = "") -> bool:
        """Write a file; False, and no file, when the content is not of that digest."""
        path, digest = f"{self._path}/{name}", hashlib.sha256()
        folder, _, base = path.rpartition("/")
        target = f"{folder}/.{base}.new" if self._kind == "local" else path
        with self._errors("writing to"):
            self._make_folders(name)
            with self._files.open_output_stream(target) as stream:
                for block in blocks:
                    digest.update(block)
                    stream.write(block)
            if right := digest.hexdigest() == (sha256 or digest.hexdigest()):
                self._show(target, path, mode)
            else:
                self._files.delete_file(target)
        return right

    def sizes(self, folder: str = "", *, recursive: bool = False) -> dict[str, int]:
        """Files in a folder, and their sizes."""
        chosen = fs.FileSelector(f"{self._path}/{folder}".rstrip("/"), allow_not_found=True, recursive=recursive)
        with self._errors("listing"):
            found = self._files.get_file_info(chosen)
        start = len(self._path) + 1
        return {info.path[start:]: info.size for info in found if info.type == fs.FileType.File}

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""
        with self._errors("deleting in"), suppress(FileNotFoundError):
            self._files.delete_file(f"{self._path}/{name}")

    def delete_folder(self, name: str) -> None:
        """Delete a folder and all that is in it, if it is there."""
        with self._errors("deleting in"), suppress(FileNotFoundError):
            self._files.delete_dir(f"{self._path}/{name}")

    def _make_folders(self, name: str) -> None:
        for folder in reversed(PurePosixPath(name).parents):
            if self._kind == "local":
                private_directory(Path(self._path, folder))
            elif self._kind not in FLAT:
                self._files.create_dir(f"{self._path}/{folder}", recursive=True)

    def _show(self, target: str, path: str, mode: int) -> None:
        """Flush a file of a file system to disk, and rename it into place."""
        if target != path:
            with open(target, "rb") as file:
                os.fsync(file.fileno())
            os.chmod(target, mode & 0o777)
            os.replace(target, path)

    @contextmanager
    def _errors(self, action: str) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            failure = reason(error)
        else:
            return
        raise StorageError(
            f"{action} {self.uri} failed ({failure}): check the access and the space left, then run with --resume."
        )
