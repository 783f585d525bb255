"""The `training` block of the generator, with presets: named sets of public defaults that were measured.

A preset fixes how many users a step expects and how many steps there are, which are good for any corpus; the sampling
rate follows from a public guess at the number of users. It is resolved as the recipe is read: what is written down, and
what release ids are made of, are its values, not its name. Keys that the recipe gives itself stand.

    quick   40 steps of 110 users, one record each: those of jobs/generator/chat.yaml
    good    60 steps of 250: NoisySGD+GC on Europarl               (benchmarks/results/dpsgd_table.json, noisy_sgd_gc)
    best    470 steps of 32: NoisySGD there, the best row          (benchmarks/results/dpsgd_table.json, noisy_sgd)

`good` and `best` read as many users; large steps can be shared by many workers, and many small ones learn more.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from rayprivacy.dpsgd.settings import DpSgdConfig

Preset = Literal["quick", "good", "best"]
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "quick": {"expected_batch": 110.0, "steps": 40, "chunk": 10, "max_records": 1},
    "good": {"expected_batch": 250.0, "steps": 60, "chunk": 20, "max_records": 4},
    "best": {"expected_batch": 32.0, "steps": 470, "chunk": 94, "max_records": 4},
}
_SIZES = ("sampling_rate", "expected_batch")


class GeneratorTraining(DpSgdConfig):
    """The `training` block.

    Attributes:
        preset: `quick`, `good` or `best`; a resolved recipe has its values instead.
        users: with `preset`, a public guess at how many users (or records, where these are the unit) the corpus has.
    """

    preset: Preset | None = Field(default=None, exclude=True)
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
            or name not in PRESETS
            or not (users is None or (type(users) is int and users > 0))
        ):
            return data  # no preset, or a value that its field refuses
        own = {key: value for key, value in data.items() if key not in ("preset", "users")}
        return {**PRESETS[name], **own, **_sizes(name, users, own)}


def _sizes(name: str, users: int | None, own: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling rate and expected batch: what the recipe gives of the two, and the other one for so many users."""
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
    batch = given.get("expected_batch", PRESETS[name]["expected_batch"])
    if batch > users:
        raise ValueError(f"users is {users}, fewer than the {batch:g} that a step expects: lower expected_batch")
    return {"sampling_rate": batch / users, "expected_batch": batch}
