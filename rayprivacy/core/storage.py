"""A local folder and a store that hold the same run directory.

All code works on local paths: files are memory-mapped, and Ray workers open them by name. So a run that is kept in
object storage is worked on in a local folder. It is pulled when it is opened and pushed after every stage:

    pull  the store's state becomes the folder's, unless the store is where this folder left it: then the folder, which
          may be ahead by a killed stage, is right
    push  1. the manifest names the paths that will change; 2. new files are written, and new contents of old files
          under `.next/<sha256>`; 3. the manifest is replaced; 4. contents in `.next` are copied over the old ones, and
          what the manifest does not name any more is deleted

The state changes in one instant, with step 3. A push that is cut off before leaves the state before, and one that is
cut off later the state after it: the content that the manifest names is then found under the file's name or in `.next`.
The next push, of any machine, first repeats step 4. A reader in the middle of step 4 may find neither, and says so.

Private files stay out of the store. A bucket has readers, replicas and old versions of its own, and private text must
not reach a second place because of where the results go. A run that goes on elsewhere computes them anew. They are
mirrored on request alone (`private=True`), for a bucket as well protected as the corpus.

One process works on a run. Before and after each write of the manifest, it looks whether the manifest is the one it
knows; if another process has written, it stops. Between the last look and the write lies one request: the mirror
notices a mistake of the operator, it is no lock. The ledger has its own.
"""

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, TypeVar

import pyarrow as pa
from pyarrow import fs
from pydantic import AfterValidator, Field, NonNegativeInt, StringConstraints

from rayprivacy.core.config import Config
from rayprivacy.core.errors import ConfigError, StorageError
from rayprivacy.core.files import OWNER_ONLY, at_home, private_directory, read_json, user_cache, write_json
from rayprivacy.core.private import digest_file, digest_json
from rayprivacy.core.uris import identity, is_uri, open_uri, reason, shown

BLOCK = 8 << 20
FLAT = ("s3", "gcs", "abfs")  # object stores, which have no folders to make
PRIVATE, MANIFEST, NEXT = "private", "manifest.json", ".next"
NOTE = ".mirror.json"  # in the local folder: which store it belongs to, and the state that both had last
LOCAL_ONLY = f"{PRIVATE}/features_store"  # names folders of one machine, for `clean`
AT_ONCE = 8
T = TypeVar("T")


def _inside(name: str) -> str:
    """Whoever can write to the store may have written its manifest: a path in it never leads out of the folder."""
    path = PurePosixPath(name)
    # Names with a dot in front are never mirrored, which also excludes "..".
    hidden = any(part.startswith(".") for part in path.parts)
    if str(path) != name or path.is_absolute() or "\0" in name or hidden:
        raise ValueError("a path leads out of the run directory")
    return name


Name = Annotated[str, AfterValidator(_inside)]


class Entry(Config):
    """One file: bytes, SHA-256 of them, and permissions."""

    size: NonNegativeInt
    sha256: Annotated[str, StringConstraints(pattern=r"\A[0-9a-f]{64}\z")]
    mode: NonNegativeInt


class Manifest(Config):
    """One state of a run directory: its files, by their paths in it."""

    format: Literal[2] = 2
    files: dict[Name, Entry] = Field(default_factory=dict)
    loose: list[Name] = Field(default_factory=list)  # what a push under way changes: not as `files` says

    def digest(self) -> str:
        """Names the state: equal for equal files."""
        return digest_json(self.model_dump()["files"])


class Store:
    """A folder that pyarrow opens by a URI, on a file system (whole files, the owner's alone) or in an object store;
    errors are one sentence that names the place without what is secret in its URI.
    """

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
            right = digest.hexdigest() == (sha256 or digest.hexdigest())
            if not right:
                self._files.delete_file(target)
            elif target != path:  # on a file system: flushed to disk, and renamed into place
                with open(target, "rb") as file:
                    os.fsync(file.fileno())
                os.chmod(target, mode & 0o777)
                os.replace(target, path)
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


def default_folder(uri: str) -> Path:
    """The folder in which a URI is worked on by default: in the user's cache, named by a digest."""
    cache = user_cache()
    if cache is None:
        raise ConfigError("this user has no home, and so no folder in which to work on a run at a URI: give --work.")
    return cache / "runs" / identity(uri)[:16]


class Mirror:
    """A run directory at a URI and the local folder in which it is worked on; ConfigError if it cannot be opened."""

    def __init__(self, uri: str, folder: Path | None = None, *, private: bool = False) -> None:
        self.root = (at_home(folder) if folder else default_folder(uri)).absolute()
        self._store, self._local = Store(uri), Store(str(self.root))
        self.uri, self._identity, self._private = self._store.uri, identity(uri), private
        self._raw, self._manifest = b"", Manifest()
        self._digests: dict[str, tuple[tuple[int, ...], str]] = {}

    def holds_run(self) -> bool:
        """Whether the store holds anything; StorageError if it does not answer, or holds something else."""
        self._look()
        return bool(self._manifest.files)

    def pull(self) -> None:
        """Take over what the store holds; ConfigError where the local folder holds other files than this run's."""
        self._look()
        ahead = self._last_state() == self._manifest.digest()
        self._remember(None)  # cut off here, the next pull begins anew
        if self._raw and not ahead:
            self._match(lambda name: not _is_private(name))
        # Private files that were never mirrored are the folder's own, and stay where the store has none.
        has_own = any(map(_is_private, self._names()))
        if self._private and any(map(_is_private, self._manifest.files)) and not (ahead and has_own):
            self._match(_is_private)
        self._remember(self._manifest.digest())

    def push(self) -> None:
        """Make the store hold what the folder holds; StorageError if another process wrote since, or it refuses."""
        self._push({name: entry for name, entry in self._manifest.files.items() if not self._takes(name)})

    def forget_private(self) -> int:
        """Delete the private files of the store, also those of pushes that were cut off; how many the run had there."""
        found = sum(map(_is_private, self._manifest.files))
        self._private = False
        self._push({})
        for folder in (PRIVATE, NEXT):
            self._store.delete_folder(folder)
        return found

    def _push(self, others: dict[str, Entry]) -> None:
        self._require_ours()
        if self._manifest.loose:
            self._settle()
        before, ours = self._manifest.files, self._files(self._takes)
        files = others | ours
        if files == before:
            return
        changed = [name for name in ours if before.get(name) != ours[name]]
        loose = sorted({*changed, *(before.keys() - files.keys())})
        self._replace(Manifest(files=before, loose=loose))
        places = {f"{NEXT}/{ours[name].sha256}" if name in before else name: name for name in changed}
        _at_once(lambda place: self._put(place, places[place], ours[places[place]]), places)
        self._replace(Manifest(files=files, loose=loose))
        self._remember(self._manifest.digest())
        self._settle()
        self._replace(Manifest(files=files))

    def _settle(self) -> None:
        """Give the store's files the names that the manifest has for them, and delete what it does not name."""
        files, found = self._manifest.files, self._store.sizes(NEXT)

        def move(name: str) -> None:
            source = f"{NEXT}/{files[name].sha256}"
            if found.get(source) == files[name].size:  # what a killed writer left may be cut off
                self._store.write(name, self._store.blocks(source), files[name].mode)

        _at_once(move, files)
        _at_once(self._store.delete, [*found, *(name for name in self._manifest.loose if name not in files)])

    def _put(self, place: str, name: str, entry: Entry) -> None:
        if not self._store.write(place, self._local.blocks(name), entry.mode, entry.sha256):
            raise StorageError(f"{self.root / name} changed while it was mirrored: let one process work on a run.")

    def _match(self, wanted: Callable[[str], bool]) -> None:
        """Make those files of the folder equal to the manifest's."""
        files = {name: entry for name, entry in self._manifest.files.items() if wanted(name)}
        there = self._files(wanted)
        _at_once(self._local.delete, there.keys() - files.keys())
        different = [name for name in files if name not in there or there[name].sha256 != files[name].sha256]
        _at_once(lambda name: self._fetch(name, files[name]), different)

    def _fetch(self, name: str, entry: Entry) -> None:
        """Fetch a file that appears whole and right, or not; private ones are for the owner alone."""
        mode = OWNER_ONLY if _is_private(name) else entry.mode
        if not any(
            self._local.write(name, self._store.blocks(place), mode, entry.sha256)
            for place in (name, f"{NEXT}/{entry.sha256}")
        ):
            raise StorageError(
                f"{name} in {self.uri} is not what its manifest says: if another process is writing there, wait for it"
                " and try again; otherwise the file is damaged, so restore it, or delete the run there."
            )

    def _look(self) -> None:
        self._raw = self._read_manifest()
        try:
            self._manifest = Manifest.model_validate_json(self._raw) if self._raw else Manifest()
        except ValueError:
            pass
        else:
            return
        raise StorageError(f"the manifest in {self.uri} cannot be read: another version wrote it, or it was changed.")

    def _read_manifest(self) -> bytes:
        """The manifest as it is now; empty where there is none yet."""
        raw = b"".join(self._store.blocks(MANIFEST))
        if not raw and any(not name.startswith(".") for name in self._store.sizes(recursive=True)):
            raise StorageError(f"{self.uri} holds other files and no run: choose an empty folder.")
        return raw

    def _replace(self, manifest: Manifest) -> None:
        self._require_ours()
        raw = manifest.model_dump_json(indent=1).encode()
        self._store.write(MANIFEST, [raw])
        self._raw, self._manifest = raw, manifest
        self._require_ours()  # another process may have written in the same instant

    def _require_ours(self) -> None:
        if self._read_manifest() != self._raw:
            raise StorageError(
                f"another process has written to {self.uri} since: let it finish, or stop it and run with --resume."
            )

    def _takes(self, name: str) -> bool:
        return self._private or not _is_private(name)

    def _last_state(self) -> str | None:
        """The state of the store that this folder last had; a folder with other files is refused."""
        if (self.root / NOTE).exists():
            note: dict[str, str | None] = read_json(self.root / NOTE)
            if note["place"] == self._identity:
                return note.get("state")
        elif not self.root.exists() or not any(self.root.iterdir()):
            return None
        raise ConfigError(f"the folder {self.root} holds something else than {self.uri}: choose another with --work.")

    def _remember(self, state: str | None) -> None:
        write_json(private_directory(self.root) / NOTE, {"place": self._identity, "state": state})

    def _files(self, wanted: Callable[[str], bool]) -> dict[str, Entry]:
        """Files of the folder; of others not even the content is read, and of unchanged ones not again."""
        return {name: self._entry(name) for name in sorted(self._names()) if wanted(name)}

    def _names(self) -> Iterator[str]:
        """What can be mirrored: no scratch files, which have a dot in front or `.tmp` behind."""
        for place, folders, files in os.walk(self.root):
            folders[:] = [name for name in folders if not name.startswith(".")]
            links = [name for name in folders if Path(place, name).is_symlink()]
            plain = [name for name in files if not name.startswith(".") and not name.endswith(".tmp")]
            inside = (Path(place, name).relative_to(self.root).as_posix() for name in (*plain, *links))
            yield from (name for name in inside if name not in (LOCAL_ONLY, MANIFEST))

    def _entry(self, name: str) -> Entry:
        path = self.root / name
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode):
            raise StorageError(
                f"{path} is a link or no plain file: a mirrored run holds plain files only, move it away."
            )
        mark = (found.st_ino, found.st_size, found.st_mtime_ns)
        known = self._digests.get(name)
        digest = known[1] if known and known[0] == mark else digest_file(path)
        self._digests[name] = (mark, digest)
        return Entry(size=found.st_size, sha256=digest, mode=stat.S_IMODE(found.st_mode))


def _is_private(name: str) -> bool:
    return name.split("/", 1)[0] == PRIVATE


def _at_once(act: Callable[[T], Any], items: Iterable[T]) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(act, items))


def mirror_of(place: str, work: Path | None, *, private: bool = False) -> Mirror | None:
    """The mirror of a run directory; None when it is a plain path, with which an option for URIs is refused."""
    if is_uri(place):
        return Mirror(place, work, private=private)
    if work or private:
        option = "--work" if work else "--mirror-private"
        raise ConfigError(f"{option} is for a run directory at a URI, and '{place}' is a path: leave it out.")
    return None


def pull_run(mirror: Mirror) -> None:
    """Fetch a run that is there."""
    if not mirror.holds_run():
        raise ConfigError(f"{mirror.uri} holds no run: give the URI of a `rayprivacy run --out`.")
    mirror.pull()
