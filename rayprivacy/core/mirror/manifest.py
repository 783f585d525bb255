"""The list of files that makes a store's content one state: path, size, digest and mode of each.

Contents lie in the store under their digests and are never overwritten. So the state changes in one instant, when the
manifest is replaced: a reader has the state before it or the one after it. What a manifest says is checked when it is
read, because whoever can write to the store wrote it: a path never leads out of the folder.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

PRIVATE, PUBLIC = "private", "public"
FORMAT = 1
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Entry:
    """One file.

    Attributes:
        size: bytes.
        sha256: digest of the bytes, which names the object in the store.
        mode: permissions of the file.
    """

    size: int
    sha256: str
    mode: int


@dataclass(frozen=True)
class Manifest:
    """One state of a run directory.

    Attributes:
        files: the files by their path in the run directory.
        published: digests of the copies that lie in the store under their own names.
    """

    files: Mapping[str, Entry] = field(default_factory=dict)
    published: Mapping[str, str] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """As JSON; equal manifests are equal bytes."""
        files = {name: vars(entry) for name, entry in self.files.items()}
        value = {"format": FORMAT, "files": files, "published": dict(self.published)}
        return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()

    @staticmethod
    def parse(data: bytes) -> "Manifest":
        """Read a manifest.

        Raises:
            ValueError: it is no manifest of this version, or a path leads out of the folder.
        """
        try:
            value = json.loads(data)
            files = {str(name): Entry(**entry) for name, entry in value["files"].items()}
            published = {str(name): str(digest) for name, digest in value["published"].items()}
            whole = value["format"] == FORMAT and all(_sound(entry) for entry in files.values())
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError("no manifest") from error
        if not whole or not all(_inside(name) for name in (*files, *published)):
            raise ValueError("no manifest of this version")
        return Manifest(files, published)


def is_private(name: str) -> bool:
    """Whether a path lies among the private files.

    >>> is_private("private/shards/part-00000.parquet"), is_private("synthetic.parquet")
    (True, False)
    """
    return name.split("/", 1)[0] == PRIVATE


def _sound(entry: Entry) -> bool:
    numbers: tuple[Any, ...] = (entry.size, entry.mode)
    return all(type(number) is int and number >= 0 for number in numbers) and bool(_DIGEST.fullmatch(entry.sha256))


def _inside(name: str) -> bool:
    path = PurePosixPath(name)
    # Names with a dot in front are never mirrored, which also excludes "..".
    return str(path) == name and not path.is_absolute() and "\0" not in name and not any(_hidden(path))


def _hidden(path: PurePosixPath) -> list[str]:
    return [part for part in path.parts if part.startswith(".")]
