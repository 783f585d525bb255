"""The public numbers of a recipe beside those of a profile: what people guess, and what was counted with noise.

A profile was released, so a recipe may follow it. What a recipe says stays as it is; what it leaves to its defaults is
taken from the profile. That makes another release of it, so a run must be given the same values.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, Field, ValidationError

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.files import at_home
from rayprivacy.core.private import digest_bytes
from rayprivacy.runs.files import overridden
from rayprivacy.runs.recipe import Recipe

R = TypeVar("R", bound=Recipe)
_KEYS = {  # of recipes, with the suggestion for each
    "corpus.max_records_per_user": "max_records_per_user",
    "training.max_tokens": "max_tokens",
    "teachers.max_tokens": "max_tokens",
    "generation.max_tokens": "max_tokens",
}
USERS, WORDS = "users (--users)", "match.words"
COLUMNS = ("public number", "the recipe", "the profile, and its 95%", "this plan")
Row = tuple[str, str, str, str]


class _Number(BaseModel):
    value: int = Field(ge=0)
    interval: tuple[int, int | None]

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.value:,} ({low:,} or more)" if high is None else f"{self.value:,} ({low:,} to {high:,})"


class _Suggested(BaseModel):
    users: _Number
    max_records_per_user: _Number
    max_tokens: _Number


class _Word(BaseModel):
    word: str


class Profile(BaseModel):
    """What plans and runs read of `profile.json`; of its words the commonest come first."""

    release_id: str
    tokens_of: str
    suggested: _Suggested
    words: tuple[_Word, ...]
    path: str = ""
    digest: str = ""


def base_name(base: str) -> str:
    """A base model without the folders it lies in.

    >>> base_name("/models/ours/base/"), base_name("smollm2-135m")
    ('base', 'smollm2-135m')
    """
    return base.rstrip("/").rpartition("/")[2]


def read_profile(path: str | Path, key: str = "--profile") -> Profile:
    """Read the file of a profile, which `key` names; ConfigError where it is none."""
    try:
        content = at_home(path).read_bytes()
        found = Profile.model_validate_json(content)
    except (OSError, ValidationError):
        raise ConfigError(f"{key} is {path}, which is no profile: give profile.json of a finished one.") from None
    return found.model_copy(update={"path": str(path), "digest": digest_bytes(content)})


def profiled(recipe: R, profile: Profile, users: int | None) -> tuple[R, int, list[Row]]:
    """The recipe with the profile's numbers where it says none, the users to count on, and a row for each number."""
    found, counted = profile.suggested, max(profile.suggested.users.value, 1)
    rows = [(USERS, "" if users is None else f"{users:,}", str(found.users), f"{users or counted:,}")]
    for key, name in _KEYS.items():
        block, _, field = key.partition(".")
        own = getattr(recipe, block, None)
        if own is None or field not in type(own).model_fields:
            continue
        has, number = getattr(own, field), getattr(found, name)
        other = name == "max_tokens" and profile.tokens_of != base_name(recipe.model.base)
        said = field in own.model_fields_set
        if not said:
            recipe = _with(recipe, key, number.value)
        takes = getattr(getattr(recipe, block), field)
        told = f"{number}, tokens of {profile.tokens_of}" if other else str(number)
        rows.append((key, f"{has}" if said else f"{has} by default", told, f"{takes}"))
    if profile.words and (match := getattr(recipe, "match", None)) is not None:
        has, takes = match.words or "none by default", match.words or profile.path
        recipe = _with(recipe, WORDS, takes)
        rows.append((WORDS, has, f"{len(profile.words)} released words", takes))
    return recipe, users or counted, rows


def _with(recipe: R, key: str, value: int | str) -> R:
    """The recipe with another value, or as it was where its other keys do not go with it."""
    try:
        return type(recipe).parse(overridden(recipe.model_dump(mode="json", exclude_unset=True), {key: value}))
    except ConfigError:
        return recipe


def overrides_of(rows: Sequence[Row]) -> str:
    """The options by which a run has what the plan took from the profile; empty where that is nothing."""
    return " ".join(f"-o {key}={takes}" for key, has, _, takes in rows[1:] if has not in (takes, f"{takes} by default"))
