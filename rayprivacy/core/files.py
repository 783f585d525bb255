"""Write-then-rename files and private directories: a reader sees a whole file or none.

Files and directories are for their owner alone, whatever the umask is, unless the caller says that they may be shared.
"""

import json
import os
from pathlib import Path
from typing import Any

OWNER_ONLY, SHARED = 0o600, 0o644


def write_atomic(path: Path, data: bytes, mode: int = OWNER_ONLY) -> None:
    """Write `data` beside `path`, flush it to disk, then rename it into place."""
    # Drawn, because process ids of two nodes may be equal, and both may write to one network file system.
    scratch = path.with_name(f".{path.name}.{int.from_bytes(os.urandom(8))}")
    handle = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)


def write_json(path: Path, value: Any, mode: int = OWNER_ONLY) -> None:
    """Write indented JSON atomically; NaN and infinities are refused."""
    write_atomic(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode(), mode)


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    return json.loads(path.read_text())


def append_line(path: Path, line: str) -> None:
    """Add a line to a file of the owner's, behind what a full disk may have left of an earlier one."""
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, OWNER_ONLY), "rb+", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        torn = end and os.pread(file.fileno(), 1, end - 1) != b"\n"
        file.write(("\n" * bool(torn) + f"{line}\n").encode())


def private_directory(path: Path) -> Path:
    """Make a directory that only the owner can enter (mode 0700)."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


def user_cache() -> Path:
    """The package's folder in the user's cache; it need not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "rayprivacy"
