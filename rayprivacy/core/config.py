"""The base of every config class (frozen, strict about keys, helpful about the nearest one), and marks of path fields.

A field that holds a path is marked where it is declared, `key: Annotated[str, PathKind.PRIVATE]`, so that jobs and
copies of a recipe find it without a list of keys, also in methods that they do not know.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any, ClassVar, Self, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.files import at_home
from rayprivacy.core.written import WrittenNumber


class Config(BaseModel):
    """A frozen pydantic model; unknown keys are errors and NaN is not a number."""

    named: ClassVar[str] = "recipe"  # the whole file, in errors
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)

    @field_validator("*")
    @classmethod
    def _from_home(cls, value: Any, info: ValidationInfo) -> Any:
        """Write out `~` in a path that is ours to open; corpora and models, whose names name a release, keep it."""
        marks = cls.model_fields[str(info.field_name)].metadata
        ours = PathKind.PRIVATE in marks or PathKind.PUBLIC in marks
        return str(at_home(value)) if ours and isinstance(value, str) and value.startswith("~") else value

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Self:
        """Validate a mapping; a number that a file gives where text belongs is text as it is written there."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            errors = error.errors()
        written = _written(data, errors)
        if written is not None:
            return cls.parse(written)
        first = errors[0]
        refusal = ConfigError(_sentence(cls, first))
        refusal.at = first["loc"]
        raise refusal  # outside: a __context__ would quote the value


def _written(data: Any, errors: Iterable[ErrorDetails]) -> Any:
    """The data with the text of numbers where that is what errors ask for; None where it is not."""
    found = None
    for error in errors:
        if error["type"] == "string_type" and isinstance(error["input"], WrittenNumber):
            found = _replaced(data if found is None else found, error["loc"], error["input"].text)
    return found if found != data else None


def _replaced(data: Any, place: Sequence[str | int], value: str) -> Any:
    """The data with another value at a place; what follows the number in its place are kinds that were tried."""
    if isinstance(data, WrittenNumber):
        return value
    copy: Any = dict(data) if isinstance(data, Mapping) else list(data)
    with suppress(LookupError, TypeError):
        copy[place[0]] = _replaced(copy[place[0]], place[1:], value)
    return copy


def _sentence(root: type[Config], error: ErrorDetails) -> str:
    path = [str(part) for part in error["loc"]]
    name = ".".join(path)
    reason = error["msg"].removeprefix("Value error, ").rstrip(".")
    if not path:  # the input is the whole recipe here, with the ledger's URL in it: never quote it
        return f"the {root.named} is refused: {reason}."
    if error["type"] == "extra_forbidden":
        valid = _keys_at(root, path[:-1])
        closest = ".".join([*path[:-1], *difflib.get_close_matches(path[-1], valid, n=1, cutoff=0.0)])
        return f"'{name}' is not a key of the {root.named}: did you mean '{closest}'? (valid: {', '.join(valid)})."
    if error["type"] == "missing":
        return f"'{name}' is missing from the {root.named}: add it."
    if error["type"] == "string_type" and isinstance(error["input"], int | float):
        reason = "this is text: write it in quotes"
    return f"'{name}' is {error['input']!r}: {reason}."


def _keys_at(model: type[BaseModel], path: list[str]) -> list[str]:
    for part in path:
        field = model.model_fields.get(part)
        kinds = (field.annotation, *get_args(field.annotation)) if field is not None else ()  # also of `Block | None`
        model = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), model)
    return sorted(field.alias or name for name, field in model.model_fields.items())


class PathKind(Enum):
    """What lies behind a path: something of the private side (a secret, a cache of private text), a public file, a
    corpus (also a URI or a name), or a public model (also a name or an id of the hub).
    """

    PRIVATE = "private"
    CORPUS = "corpus"
    PUBLIC = "public"
    PUBLIC_CORPUS = "public corpus"
    PUBLIC_MODEL = "public model"


PRIVATE_SIDE = (PathKind.PRIVATE, PathKind.CORPUS)
PUBLIC_SIDE = (PathKind.PUBLIC, PathKind.PUBLIC_CORPUS, PathKind.PUBLIC_MODEL)


def path_keys(config: type[BaseModel], *kinds: PathKind) -> Iterator[str]:
    """The dotted keys of all fields with one of some markers, those of nested blocks too."""
    for name, field in config.model_fields.items():
        if set(kinds) & {mark for mark in field.metadata if isinstance(mark, PathKind)}:
            yield name
        for block in (field.annotation, *get_args(field.annotation)):  # also of `Block | None`
            if isinstance(block, type) and issubclass(block, BaseModel):
                yield from (f"{name}.{key}" for key in path_keys(block, *kinds))


def path_values(config: BaseModel, *kinds: PathKind) -> Iterator[tuple[str, str]]:
    """The dotted key and the value of every field with one of some markers that is set; each value of a list."""
    for key in path_keys(type(config), *kinds):
        value: object = config
        for part in key.split("."):
            value = getattr(value, part, None)
        yield from ((key, str(each)) for each in (value if isinstance(value, tuple) else (value,)) if each is not None)


def written_paths(data: Mapping[str, Any], config: type[BaseModel], *kinds: PathKind) -> Iterator[tuple[str, str]]:
    """The same of a config that is not made: what the mapping of its keys says, and the defaults elsewhere."""
    defaults = dict(path_values(config.model_construct(), *kinds))
    for key in path_keys(config, *kinds):
        value: object = data
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if (value := defaults.get(key) if value is None else value) is not None:
            yield key, str(value)
