"""Files written whole, private directories, and the journal of a folder's finished files.

Both are for their owner alone, whatever the umask is, unless the caller says that they may be shared.
"""

import fcntl
import json
import os
import platform
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.private import digest_bytes

OWNER_ONLY, SHARED = 0o600, 0o644
Json = dict[str, Any]  # an object of a JSON file


def write_atomic(path: Path, data: bytes | Iterator[bytes], mode: int = OWNER_ONLY) -> None:
    """Write `data`, or its pieces as they come, beside `path`, flush it to disk, then rename it into place."""
    # Drawn, because process ids of two nodes may be equal, and both may write to one network file system.
    scratch = path.with_name(f".{path.name}.{int.from_bytes(os.urandom(8))}")
    try:
        handle = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(handle, "wb") as file:
            file.writelines(data if isinstance(data, Iterator) else [data])  # a buffer of Arrow is no iterator
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except BaseException as error:  # a disk may be full: what is half written goes, and what was there before stays
        with suppress(OSError):
            scratch.unlink()
        if isinstance(error, OSError):
            error.filename = str(path)
        raise


def write_json(path: Path, value: Any, mode: int = OWNER_ONLY) -> None:
    """Write indented JSON atomically; NaN and infinities are refused."""
    write_atomic(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode(), mode)


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    return json.loads(path.read_text())


def append_line(path: Path, line: str) -> None:
    """Add a line to a file of the owner's, behind what a full disk may have left of an earlier one."""
    with _appending(path) as file:
        _append(file, line)


def _appending(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, OWNER_ONLY), "r+b", buffering=0)


def _append(file: BinaryIO, line: str) -> None:
    end = file.seek(0, os.SEEK_END)
    torn = end and os.pread(file.fileno(), 1, end - 1) != b"\n"
    file.write(("\n" * bool(torn) + f"{line}\n").encode())


def private_directory(path: Path) -> Path:
    """Make a directory that only the owner can enter (mode 0700)."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


def at_home(path: Path | str) -> Path:
    """A path as people write it: `~` in front is their home."""
    found = os.path.expanduser(path)
    if found.partition("/")[0] == "~":
        raise ConfigError(f"the path {found} begins with ~, and this user has no home: write it out.")
    return Path(found)


def made_folder(path: Path, name: str) -> Path:
    """A folder for results, made before the work, its owner's if it is new; ConfigError where none can be."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        why = None if os.access(path, os.W_OK | os.X_OK) else "it is read-only, or somebody else's"
    except OSError as error:
        why = error.strerror
    if why is not None:
        raise ConfigError(
            f"{name} is {path}, which cannot be written to ({why}): name a folder that is yours to write."
        )
    return path


def user_cache() -> Path | None:
    """The package's folder in the user's cache, which need not exist; None for a user without a home."""
    place = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(place):  # unset, empty, or a folder that every working directory would have anew
        place = os.path.expanduser("~/.cache")
    return Path(place) / "rayprivacy" if os.path.isabs(place) else None


def kept_file(folder: str, name: str) -> Path | None:
    """A file of the user's cache."""
    cache = user_cache()
    return cache / folder / name if cache else None


def keep(path: Path | None, data: bytes) -> None:
    """Write a file of the user's cache, if there is one that can be written: none is no reason to stop."""
    with suppress(OSError):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, data)


TABLE = re.compile(r"journal-[0-9a-f]{16}\.jsonl")
Line = Json


class Journal:
    """The finished files of one folder, as one process knows them; nodes that share the folder share the journal.

    It is a table for each node, with one line for each file: a process reads what was added since it last looked, where
    it would have to list the folder and open every marker. A line is written after its file, under a lock, and flushed
    to disk; it counts once its end is there. What a killed writer left of a line is closed by the next one, and skipped
    like everything else that is no line. A file that is gone does not count, whatever lines say of it; written again,
    it gets another line. The order of lines means nothing.
    """

    def __init__(self, folder: Path, node: str | None = None) -> None:
        self._folder = folder
        self._own = folder / f"journal-{digest_bytes((node or platform.node()).encode())[:16]}.jsonl"
        self._read: dict[str, int] = {}
        self.files: set[str] = set()  # which lines were about, when they were last read

    def add(self, file: str, facts: Line) -> None:
        """Say that a file of the folder is finished; the line is on disk when this returns."""
        line = json.dumps({"file": file, **facts}, separators=(",", ":"), allow_nan=False)
        with _appending(self._own) as table:
            fcntl.flock(table, fcntl.LOCK_EX)
            _append(table, line)
            os.fsync(table.fileno())

    def news(self) -> tuple[bool, list[Line]]:
        """Whether a file is gone that lines were about, and the lines since the last time; all of them if one is."""
        lines = self._unread()
        present = set(_listed(self._folder))  # after the lines, so that no file is younger than this list
        void = not self.files <= present
        if void:
            self._read.clear()
            self.files.clear()
            lines, present = self._unread(), set(_listed(self._folder))
        found = [line for line in lines if line["file"] in present]
        self.files.update(line["file"] for line in found)
        return void, found

    def _unread(self) -> list[Line]:
        tables = sorted(filter(TABLE.fullmatch, _listed(self._folder)))
        read = (_parsed(text) for table in tables for text in self._whole_lines(table))
        return [line for line in read if line is not None]

    def _whole_lines(self, table: str) -> list[bytes]:
        with (self._folder / table).open("rb") as file:
            size, known = file.seek(0, os.SEEK_END), self._read.get(table, 0)
            begin = known if known <= size else 0  # a shorter one is another table of that name
            file.seek(begin)
            text = file.read()
        end = text.rfind(b"\n") + 1
        self._read[table] = begin + end
        return text[:end].splitlines()


def _parsed(text: bytes) -> Line | None:
    try:
        line = json.loads(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) and isinstance(line.get("file"), str) else None


def _listed(folder: Path) -> list[str]:
    return os.listdir(folder) if folder.is_dir() else []
