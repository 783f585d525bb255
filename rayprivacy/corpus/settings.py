"""What a recipe says about the corpus: where it is, which columns matter, and how much one user may contribute.

Every figure here is public and chosen before the corpus is touched: none may depend on how many users there are.
"""

from pydantic import Field, ValidationInfo, field_validator

from rayprivacy.core.config import Config

OWN_COLUMNS = frozenset({"part", "record", "shard", "text", "user"})


class CorpusConfig(Config):
    """The `corpus` block of a recipe.

    Attributes:
        source: `chitchat`, or a Parquet, JSONL or CSV file or directory (a path, or a URI such as `s3://bucket/chats`).
        text: the column that holds the text.
        user: the column that names the author; all text of one author is protected together.
        labels: columns to carry along as strings, e.g. for control codes.
        max_records_per_user: at most so many records of one user are used.
        max_chars: longer texts are cut to so many characters.
        holdout: the share of users kept aside for evaluation, each by a coin of their own.
    """

    source: str = Field("chitchat", min_length=1)
    text: str = "text"
    user: str = "user"
    labels: tuple[str, ...] = ()
    max_records_per_user: int = Field(100, ge=1)
    max_chars: int = Field(2000, ge=1)
    holdout: float = Field(0.1, ge=0.0, le=0.9)

    @field_validator("user")
    @classmethod
    def _user_is_not_text(cls, user: str, info: ValidationInfo) -> str:
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

    @property
    def columns(self) -> list[str]:
        """The columns read from the source, in the order user, text, labels."""
        return [self.user, self.text, *self.labels]
