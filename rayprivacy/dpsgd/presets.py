"""Presets of a `training` block: named sets of public defaults that were measured.

A preset fixes how many users a step expects, which is good for any corpus; the sampling rate follows from a public
guess at the number of users. It is resolved as the recipe is read: what is written down, and what release ids are made
of, are its values, not its name. Keys that the recipe gives itself stand. A method names its own presets.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field, model_validator

from rayprivacy.dpsgd.settings import DpSgdConfig

_SIZES = ("sampling_rate", "expected_batch")


class PresetTraining(DpSgdConfig):
    """The `training` block of a method that has presets.

    Attributes:
        presets: by name, the keys that each one gives, among them `expected_batch`.
        preset: the name of one; a resolved recipe has its values instead. A method narrows it to its names.
        users: with `preset`, a public guess at how many users (or records, where these are the unit) the corpus has.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    preset: str | None = Field(default=None, exclude=True)
    users: int | None = Field(default=None, ge=1, exclude=True)

    @model_validator(mode="before")
    @classmethod
    def _resolved(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        name, users = data.get("preset"), data.get("users")
        if name is None and users is not None:
            raise ValueError(f"users is {users!r} without a preset, which alone reads it: add preset, or remove users")
        if (
            not isinstance(name, str)
            or name not in cls.presets
            or not (users is None or (type(users) is int and users > 0))
        ):
            return data  # no preset, or a value that its field refuses
        own = {key: value for key, value in data.items() if key not in ("preset", "users")}
        values = cls.presets[name]
        return {**values, **own, **_sizes(name, values["expected_batch"], users, own)}


def _sizes(name: str, batch: float, users: int | None, own: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling rate and expected batch. The recipe gives one; the other follows from the guessed number of users."""
    given = {key: own[key] for key in _SIZES if key in own}
    if len(given) == len(_SIZES) or not all(isinstance(value, int | float) for value in given.values()):
        return given
    if users is None:
        raise ValueError(
            f"preset is '{name}' without users: add users, a public guess at how many the corpus has, or give"
            " sampling_rate and expected_batch"
        )
    if "sampling_rate" in given:
        return {**given, "expected_batch": given["sampling_rate"] * users}
    batch = given.get("expected_batch", batch)
    if batch > users:
        raise ValueError(f"users is {users}, fewer than the {batch:g} that a step expects: lower expected_batch")
    return {"sampling_rate": batch / users, "expected_batch": batch}
