"""What a recipe says about the corpus: where it is, which columns matter, and how much one user may contribute.

Every figure here is public and chosen before the corpus is touched: none may depend on how many users there are.
"""

from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from rayprivacy.core.config import Config, PathKind
from rayprivacy.core.errors import ConfigError
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.users import ORDER, PLACE

MEMORY = 2 << 30  # bytes that a process may take, about
OWN_COLUMNS = frozenset({ORDER, PLACE, "part", "record", "shard", "text", "user"})
WHOLE = 10**9  # characters: no text is cut


class JoinConfig(Config):
    """The `corpus.join` block: which rows are turns of one conversation, and become one document (see `layout`).

    Attributes:
        by: the column that names the conversation; may be the one that names the user.
        order: the column of numbers that turns are sorted by; a row without one is a document of its own.
        prefix: what stands in front of each turn.
        words: columns with a label for each word of a turn, in a line with blanks between, which are joined as well.
    """

    by: str = Field(min_length=1)
    order: str = Field(min_length=1)
    prefix: str = ""
    words: tuple[str, ...] = ()

    @field_validator("prefix")
    @classmethod
    def _one_line(cls, prefix: str) -> str:
        if prefix.splitlines() not in ([], [prefix]):
            raise ValueError("a turn is one line: give a prefix without line breaks")
        if prefix and not prefix[-1].isspace():
            raise ValueError(
                "it would be one word with the first of the turn, and labels name words: end it in a blank"
            )
        return prefix


class CorpusConfig(Config):
    """The `corpus` block of a recipe.

    Attributes:
        source: `chitchat`; a Parquet, JSONL or CSV file or directory (a path, or a URI such as `s3://bucket/chats`);
            the folder of a Delta or Lance table, or of a Hugging Face dataset; or `iceberg:CATALOG.NAMESPACE.TABLE`.
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
        join: for a corpus of turns: how they are joined into conversations, before all bounds; None where a row is a
            document.
    """

    source: Annotated[str, PathKind.CORPUS] = Field("chitchat", min_length=1)
    text: str = "text"
    user: str | None = "user"
    labels: tuple[str, ...] = ()
    max_records_per_user: int | None = Field(100, ge=1)
    max_chars: int = Field(2000, ge=1)
    holdout: float = Field(0.1, ge=0.0, le=0.9)
    phrases: Annotated[str | None, PathKind.PRIVATE] = Field(None, min_length=1)
    max_shards_per_phrase: int | None = Field(None, ge=1)
    join: JoinConfig | None = None

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

    @field_validator("join")
    @classmethod
    def _words_are_free_names(cls, join: JoinConfig | None, info: ValidationInfo) -> JoinConfig | None:
        taken = OWN_COLUMNS | {"by", "order", *(str(info.data.get(name)) for name in ("text", "user"))}
        taken |= set(info.data.get("labels") or ())
        if join and (taken & set(join.words) or len(set(join.words)) < len(join.words)):
            listed = ", ".join(sorted(taken))
            raise ValueError(f"corpus.join.words are distinct and none of {listed}: rename the column")
        return join

    @property
    def columns(self) -> list[str]:
        """The columns read from the source: user, where there is one, text, labels, and what turns are joined by."""
        return list(dict.fromkeys(self.sources))

    @property
    def sources(self) -> list[str]:
        """For each column of rows that are read, the one of the source; a column of the source may serve twice."""
        return [*([self.user] if self.user is not None else []), self.text, *self.kept, *self.joined_by]

    @property
    def kept(self) -> tuple[str, ...]:
        """The columns that a document keeps beside user and text: labels, and labels of its words."""
        return (*self.labels, *(self.join.words if self.join else ()))

    @property
    def joined_by(self) -> tuple[str, ...]:
        """The columns of conversation and order; none where a row is a document."""
        return (self.join.by, self.join.order) if self.join else ()


def check_by_place(config: CorpusConfig, unit: PrivacyUnit) -> None:
    """Refuse settings under which how long documents are would follow from what they say (see `layout`, by place)."""
    if config.max_chars != WHOLE:
        raise ConfigError(
            f"corpus.max_chars is {config.max_chars}, and a cut by characters would let words decide how many of them"
            " are left, which the claim takes as known: remove it, and let the method cut by words."
        )
    if unit is PrivacyUnit.PHRASE:
        raise ConfigError("privacy.unit is 'phrase', and the claim compares documents word for word: choose another.")


def check_unit(config: CorpusConfig, unit: PrivacyUnit, shards: int) -> None:
    """Refuse settings under which the sensitivity of a unit would not hold."""
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
    if config.join and unit is not PrivacyUnit.USER:
        raise ConfigError(
            f"corpus.join is set, but privacy.unit is '{unit}': what is one record, or holds a phrase, is looked at "
            "before turns are joined; join them in the source, or protect 'user'."
        )
    if config.join and config.user is None:
        raise ConfigError("corpus.join is set, but corpus.user is null: name the column of the user, or conversation.")
    for name in ("phrases", "max_shards_per_phrase"):
        given = getattr(config, name) is not None
        if given and unit is not PrivacyUnit.PHRASE:
            raise ConfigError(f"corpus.{name} is set, but privacy.unit is '{unit}': remove it, or protect 'phrase'.")
        if unit is PrivacyUnit.PHRASE and not given:
            raise ConfigError(f"corpus.{name} is not set, and privacy.unit 'phrase' needs it: add it.")
    if per_phrase is not None and per_phrase > shards:
        raise ConfigError(
            f"corpus.max_shards_per_phrase is {per_phrase}, and there are {shards} shards (teachers.count): lower it."
        )
