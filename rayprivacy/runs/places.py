"""Whether two places that a recipe names, paths or URIs, lie apart: what is public must be no part of the corpus."""

import os
from pathlib import PurePath

from rayprivacy.core.mirror.uris import is_uri


def apart(public: str, private: str) -> bool:
    """Whether neither of two files or folders is the other one, or lies within it."""
    one, other = _place(public), _place(private)
    return not (one.is_relative_to(other) or other.is_relative_to(one))


def _place(source: str) -> PurePath:
    path = source.removeprefix("file://")
    return PurePath(path if is_uri(path) else os.path.realpath(os.path.expanduser(path)))
