"""Markers of the fields of a recipe that hold paths, and a walk over the fields that have one.

A field is marked where it is declared: `key: Annotated[str, PathKind.PRIVATE]`. So whatever has to treat paths in its
own way (a job that is sent to a cluster, a copy of a recipe for another corpus) needs no list of keys of its own, and
finds those of a method that it does not know.
"""

from collections.abc import Iterator
from enum import Enum
from typing import get_args

from pydantic import BaseModel


class PathKind(Enum):
    """What lies behind a path: something of the private side (a secret, a cache of private text), or a public file.

    A public corpus may be one too; or, as the private corpus may be, a URI or a name.
    """

    PRIVATE = "private"
    PUBLIC = "public"
    PUBLIC_CORPUS = "public corpus"


def path_keys(config: type[BaseModel], kind: PathKind) -> Iterator[str]:
    """The dotted keys of all fields with a marker, those of nested blocks too.

    Args:
        config: class of the config.
        kind: the marker.
    """
    for name, field in config.model_fields.items():
        if kind in field.metadata:
            yield name
        for block in (field.annotation, *get_args(field.annotation)):  # also of `Block | None`
            if isinstance(block, type) and issubclass(block, BaseModel):
                yield from (f"{name}.{key}" for key in path_keys(block, kind))


def path_values(config: BaseModel, kind: PathKind) -> Iterator[tuple[str, str]]:
    """The dotted key and the value of every field with a marker that is set.

    Args:
        config: the config.
        kind: the marker.
    """
    for key in path_keys(type(config), kind):
        value: object = config
        for part in key.split("."):
            value = getattr(value, part, None)
        if value is not None:
            yield key, str(value)
