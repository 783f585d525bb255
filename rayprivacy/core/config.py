"""The base of every config class: frozen, strict about keys, and helpful about the nearest valid one."""

import difflib
from collections.abc import Mapping
from typing import Any, ClassVar, Self, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from rayprivacy.core.errors import ConfigError


class Config(BaseModel):
    """A frozen pydantic model; unknown keys are errors and NaN is not a number.

    Attributes:
        named: what the whole file is called in errors.
    """

    named: ClassVar[str] = "recipe"
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Self:
        """Validate a mapping."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            message = _sentence(cls, error.errors()[0])
        raise ConfigError(message)


def _sentence(root: type[Config], error: ErrorDetails) -> str:
    path = [str(part) for part in error["loc"]]
    name = ".".join(path)
    reason = error["msg"].removeprefix("Value error, ").rstrip(".")
    if not path:  # the input is the whole recipe here, with the ledger's URL in it: never quote it
        return f"the {root.named} is refused: {reason}."
    if error["type"] == "extra_forbidden":
        valid = _keys_at(root, path[:-1])
        near = difflib.get_close_matches(path[-1], valid, n=1, cutoff=0.0)
        closest = ".".join([*path[:-1], near[0]])
        return f"'{name}' is not a key of the {root.named}: did you mean '{closest}'? (valid: {', '.join(valid)})."
    if error["type"] == "missing":
        return f"'{name}' is missing from the {root.named}: add it."
    return f"'{name}' is {error['input']!r}: {reason}."


def _keys_at(model: type[BaseModel], path: list[str]) -> list[str]:
    for part in path:
        field = model.model_fields.get(part)
        kinds = (field.annotation, *get_args(field.annotation)) if field is not None else ()  # also of `Block | None`
        model = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), model)
    return sorted(field.alias or name for name, field in model.model_fields.items())
