"""What is declared public must be no private text: each field marked so is compared with every private place.

Whoever writes a recipe says what is public, and nobody can check that. What can be checked is the slip by which one
place is named twice: a search on "public" text, say, that would read the private corpus for nothing. Places are
compared as what they are (links, mounts and other spellings lead to the same file), and nothing in them is read. So a
private file that was copied elsewhere passes.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath, PurePosixPath
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.mirror.uris import is_uri, shown
from rayprivacy.core.paths import PUBLIC_SIDE, PathKind, path_values

_OF_A_RUN = ("recipe.yaml", "space.json")  # beside the folder `private` of a run, and of a search
_CORPORA = (PathKind.CORPUS, PathKind.PUBLIC_CORPUS)
_SCHEMES = {"gcs": "gs", "abfss": "abfs"}  # two names of one store
_NAMES = ("chitchat", "dataset")  # of corpora that are no place


def require_public(config: BaseModel, private: Iterable[tuple[str, str]]) -> None:
    """Refuse a config in which something that is declared public is private, or holds a part of what is.

    `private` are keys of the private side, each with the place that it names.
    """
    places = list(private)
    for kind in PUBLIC_SIDE:
        for key, value in path_values(config, kind):
            said = _in_common(value, kind, places)
            if said is not None:
                raise ConfigError(
                    f"{key} is '{shown(value)}', which {said}, and is declared public: name public text, a public model"
                    " or a public list, in a file or folder of its own."
                )


def _in_common(value: str, kind: PathKind, private: list[tuple[str, str]]) -> str | None:
    """What a place has in common with the private ones, as a sentence goes on; None where it is apart from them."""
    place = _place(value, kind)
    others = [(key, other, _place(other, PathKind.CORPUS)) for key, other in private]
    for key, written, other in others:
        if how := "is" if value == written else _how(place, other):
            return f"{how} {key}"
    if not isinstance(place, Path):
        return None
    files = list(_files(place))
    for key, _, other in others:
        if isinstance(other, Path) and _share(files, other):
            return f"shares a file with {key}"
    return "holds files of the private folder of a run" if any(map(_of_a_run, [place, *files])) else None


def _how(place: PurePath | None, other: PurePath | None) -> str | None:
    if place is None or other is None or type(place) is not type(other):
        return None
    if place == other or _one_is(place, [other]):
        return "is"
    if place.is_relative_to(other) or _one_is(other, place.parents):
        return "lies in"
    return "holds" if other.is_relative_to(place) or _one_is(place, other.parents) else None


def _place(value: str, kind: PathKind) -> PurePath | None:
    """A local place as a `Path` without links, one in a store as a pure path; None for what is a mere name."""
    if not is_uri(value):
        path = os.path.expanduser(value)
        named = not os.path.exists(path) if kind is PathKind.PUBLIC_MODEL else kind in _CORPORA and value in _NAMES
        return None if named else Path(os.path.realpath(path))
    uri = urlsplit(value)
    if uri.scheme == "file":
        return Path(os.path.realpath(unquote(uri.path)))
    parts = [part for part in unquote(uri.path).split("/") if part not in ("", ".")]
    return PurePosixPath(_SCHEMES.get(uri.scheme, uri.scheme), uri.hostname or "", *parts)


def _files(place: Path) -> Iterator[Path]:
    """The files of a local place, without links; folders that links lead to are entered once."""
    if place.is_file():
        yield place
    entered = set()
    for folder, folders, names in os.walk(place, followlinks=True):
        real = os.path.realpath(folder)
        if real in entered:
            folders.clear()
            continue
        entered.add(real)
        yield from (Path(os.path.realpath(os.path.join(real, name))) for name in names)


def _one_is(place: PurePath, others: Iterable[PurePath]) -> bool:
    """Whether one of these is this local place under another name: a mount, a hard link, letters in another case."""
    return isinstance(place, Path) and any(_same(place, other) for other in others)


def _same(one: PurePath, other: PurePath) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:  # not there, or not ours to look at
        return False


def _share(files: list[Path], other: Path) -> bool:
    """Whether a file lies in another place, or is there too by a hard link, which only one with two names can be."""
    several = {found for file in files if (found := _number(file)) is not None}
    return any(file.is_relative_to(other) for file in files) or (
        bool(several) and any(_number(file) in several for file in _files(other))
    )


def _number(file: Path) -> tuple[int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if status.st_nlink > 1 else None


def _of_a_run(place: Path) -> bool:
    folders = (place, *place.parents) if "private" in place.parts else ()
    return any(
        folder.name == "private" and any((folder.parent / name).is_file() for name in _OF_A_RUN) for folder in folders
    )
