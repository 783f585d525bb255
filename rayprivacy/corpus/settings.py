"""What a recipe says about the corpus: where it is, which columns matter, and how much one user may contribute.

Every figure here is public and chosen before the corpus is touched: none may depend on how many users there are.
"""

from typing import Annotated, Any

from pydantic import Field, SerializerFunctionWrapHandler, ValidationInfo, field_validator, model_serializer

from rayprivacy.core.config import Config
from rayprivacy.core.errors import ConfigError
from rayprivacy.core.paths import PathKind
from rayprivacy.core.units import PrivacyUnit

OWN_COLUMNS = frozenset({"part", "record", "shard", "text", "user"})
_OF_PHRASES = ("phrases", "max_shards_per_phrase")


class CorpusConfig(Config):
    """The `corpus` block of a recipe.

    Attributes:
        source: `chitchat`, or a Parquet, JSONL or CSV file or directory (a path, or a URI such as `s3://bucket/chats`).
        text: the column that holds the text.
        user: the column that names the author; all text of one author is protected together. None where every row is
            its own author's, which methods that sanitise each document alone take, and no others.
        labels: columns to carry along as strings, e.g. for control codes.
        max_records_per_user: the most records of one user that are used; null with privacy.unit 'record', where a
            new record must not push another one out.
        max_chars: longer texts are cut to this number of characters.
        holdout: the share of users kept aside for evaluation, each by a coin of their own.
        phrases: for privacy.unit 'phrase': a private UTF-8 file with one secret phrase a line.
        max_shards_per_phrase: for privacy.unit 'phrase': n_s, the public bound on the shards one phrase may occur in.
    """

    source: str = Field("chitchat", min_length=1)
    text: str = "text"
    user: str | None = "user"
    labels: tuple[str, ...] = ()
    max_records_per_user: int | None = Field(100, ge=1)
    max_chars: int = Field(2000, ge=1)
    holdout: float = Field(0.1, ge=0.0, le=0.9)
    phrases: Annotated[str | None, PathKind.PRIVATE] = Field(None, min_length=1)
    max_shards_per_phrase: int | None = Field(None, ge=1)

    @field_validator("user")
    @classmethod
    def _user_is_not_text(cls, user: str | None, info: ValidationInfo) -> str | None:
        if user == info.data.get("text"):
            raise ValueError("the text column cannot name the user as well: choose another column")
        return user

    @field_validator("labels")
    @classmethod
    def _labels_are_free_names(cls, labels: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        taken = OWN_COLUMNS | {str(info.data.get("text")), str(info.data.get("user"))}
        if taken & set(labels) or len(set(labels)) < len(labels):
            raise ValueError(f"labels are distinct and none of {', '.join(sorted(taken))}: rename the column")
        return labels

    @model_serializer(mode="wrap")
    def _without_unused_phrases(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Left out while unset, so that release ids and shards of the first version are found again.
        written: dict[str, Any] = handler(self)
        return {name: value for name, value in written.items() if name not in _OF_PHRASES or value is not None}

    @property
    def columns(self) -> list[str]:
        """The columns read from the source: user, where there is one, text, labels."""
        return [*([self.user] if self.user is not None else []), self.text, *self.labels]


def check_unit(config: CorpusConfig, unit: PrivacyUnit, shards: int) -> None:
    """Refuse settings under which the sensitivity of a unit would not hold.

    Raises:
        ConfigError: a bound is missing, is not one of this unit, or exceeds the number of shards.
    """
    most = config.max_records_per_user
    per_phrase = config.max_shards_per_phrase
    if unit is PrivacyUnit.RECORD and most is not None:
        raise ConfigError(
            f"corpus.max_records_per_user is {most}, and with privacy.unit 'record' a new record would push another "
            "one out and change two shards: set it to null."
        )
    if unit is not PrivacyUnit.RECORD and most is None:
        raise ConfigError(
            f"corpus.max_records_per_user is null, which privacy.unit '{unit}' does not take: give a whole number."
        )
    for name in _OF_PHRASES:
        given = getattr(config, name) is not None
        if given and unit is not PrivacyUnit.PHRASE:
            raise ConfigError(f"corpus.{name} is set, but privacy.unit is '{unit}': remove it, or protect 'phrase'.")
        if unit is PrivacyUnit.PHRASE and not given:
            raise ConfigError(f"corpus.{name} is not set, and privacy.unit 'phrase' needs it: add it.")
    if per_phrase is not None and per_phrase > shards:
        raise ConfigError(
            f"corpus.max_shards_per_phrase is {per_phrase}, and there are {shards} shards (teachers.count): lower it."
        )
