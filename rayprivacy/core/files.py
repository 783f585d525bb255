"""Write-then-rename files and private directories: a reader sees a whole file or none."""

import json
import os
from pathlib import Path
from typing import Any


def write_atomic(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write `data` beside `path`, flush it to disk, then rename it into place."""
    # Drawn, because process ids of two nodes may be equal, and both may write to one network file system.
    scratch = path.with_name(f".{path.name}.{int.from_bytes(os.urandom(8))}")
    handle = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)


def write_json(path: Path, value: Any, mode: int = 0o644) -> None:
    """Write indented JSON atomically; NaN and infinities are refused."""
    write_atomic(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode(), mode)


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    return json.loads(path.read_text())


def private_directory(path: Path) -> Path:
    """Make a directory that only the owner can enter (mode 0700)."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)
    return path
