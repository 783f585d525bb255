"""The manifest of a run in a store: size, digest and mode of every file.

What a manifest says is checked when it is read, because anybody who can write to the store may have written it: a path
never leads out of the folder.
"""

from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, NonNegativeInt, StringConstraints

from rayprivacy.core.artifacts import digest_json
from rayprivacy.core.config import Config


def _inside(name: str) -> str:
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
    """One state of a run directory.

    Attributes:
        files: the files by their path in the run directory.
        loose: paths that a push under way writes or takes away; `files` need not name what lies there.
    """

    format: Literal[2] = 2
    files: dict[Name, Entry] = Field(default_factory=dict)
    loose: list[Name] = Field(default_factory=list)

    def digest(self) -> str:
        """Names the state: equal for equal files."""
        return digest_json(self.model_dump()["files"])
