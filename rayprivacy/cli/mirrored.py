"""Run directories that are given as a URI, for the commands that take one."""

from pathlib import Path
from typing import Annotated

import typer

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.mirror import Mirror, is_uri

WorkFolder = Annotated[
    Path | None,
    typer.Option("--work", help="Local folder in which a run at a URI is worked on.", show_default="the user's cache"),
]


def mirror_of(place: str, work: Path | None, *, private: bool = False) -> Mirror | None:
    """The mirror of a run directory; None when it is a plain path.

    Raises:
        ConfigError: an option for URIs comes with a path, or the URI cannot be opened.
    """
    if is_uri(place):
        return Mirror(place, work, private=private)
    if work or private:
        option = "--work" if work else "--mirror-private"
        raise ConfigError(f"{option} is for a run directory at a URI, and '{place}' is a path: leave it out.")
    return None


def pull_run(mirror: Mirror) -> None:
    """Fetch a run that is there.

    Raises:
        ConfigError: nothing is there.
        StorageError: the store refuses.
    """
    if not mirror.holds_run():
        raise ConfigError(f"{mirror.uri} holds no run: give the URI of a `rayprivacy run --out`.")
    mirror.pull()
