"""The `sanitize` block of a recipe: the public vocabulary, the mechanism, and the treatment of the rest of a text."""

from typing import Annotated, Literal, get_args

from pydantic import Field, field_validator, model_validator

from rayprivacy.core.config import Config, PathKind
from rayprivacy.core.names import Label

Kind = Literal["email", "url", "ip", "date", "card", "phone", "code"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class PlusConfig(Config):
    """The `plus` block: SanText+, which protects the less frequent words of the vocabulary and no others.

    Attributes:
        sensitive: share w of the vocabulary that is sensitive: its least frequent words, by the public list.
        p: chance that a word which is not sensitive is replaced, by a sensitive one; else it is released as it is.
    """

    sensitive: float = Field(default=0.9, gt=0, lt=1)
    p: float = Field(default=0.3, gt=0, le=1)


class LabelsConfig(Config):
    """The `labels` block: what happens to the columns of `corpus.labels`.

    Attributes:
        kind: `copy` releases them as they are, which protects nothing of them; `randomize` answers by randomised
            response over `values`, for a charge of its own.
        epsilon: of the randomised response of one label of one record.
        values: the public list of values of each label; all others count as one further value.
    """

    kind: Literal["copy", "randomize"] = "copy"
    epsilon: float = Field(default=2.0, gt=0)
    values: dict[str, tuple[Label, ...]] = Field(default_factory=dict)

    @field_validator("values")
    @classmethod
    def _two_values(cls, values: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for name, each in values.items():
            if len(set(each)) < max(2, len(each)):
                raise ValueError(f"label '{name}' needs at least two values, all different")
        return values


class SanitizeConfig(Config):
    """The `sanitize` block.

    Attributes:
        mechanism: `santext` replaces a word by one whose vector is near, `randomized_response` by any other one.
        vectors: `glove-50d`, or `base` for the input embeddings of `model.base`.
        vectors_file: in their place, a public .npz file with `words` and `vectors`, the most frequent word first.
        words: size of the vocabulary: its most frequent words.
        length: `unit` scales every vector to length 1, `raw` leaves it.
        cap: distances above it count as it; None leaves them.
        epsilon: of a token, per unit of distance; for `randomized_response` of a token.
        keep: in place of `epsilon`: the share of draws that give a word itself, median over the vocabulary; frequent
            words stay less often, so a running text keeps fewer. Without both, epsilon is the largest that
            `privacy.epsilon` allows.
        plus: SanText+; None protects every word.
        max_tokens: number of tokens to which texts are cut.
        layout: `spaces` puts one space between words; `keep` releases what stood between them.
        entities: kinds of typed values that are replaced by made-up ones of their format before words are.
        detector: `patterns` of this package, or those of Presidio (extra `presidio`).
        consistent: equal values get equal made-up ones everywhere in a release, which reveals that they are equal.
        labels: what happens to labels.
    """

    mechanism: Literal["santext", "randomized_response"] = "santext"
    vectors: Literal["glove-50d", "base"] = "glove-50d"
    vectors_file: Annotated[str | None, PathKind.PUBLIC] = None
    words: int = Field(default=30_000, ge=2)
    length: Literal["unit", "raw"] = "unit"
    cap: float | None = Field(default=None, ge=1e-6)
    epsilon: float | None = Field(default=None, ge=1e-9)
    keep: float | None = Field(default=None, gt=0, lt=1)
    plus: PlusConfig | None = None
    max_tokens: int = Field(default=64, ge=1, le=2**16)
    layout: Literal["spaces", "keep"] = "spaces"
    entities: tuple[Kind, ...] = KINDS
    detector: Literal["patterns", "presidio"] = "patterns"
    consistent: bool = False
    labels: LabelsConfig = LabelsConfig()

    @model_validator(mode="after")
    def _means_one_thing(self) -> "SanitizeConfig":
        if self.epsilon is not None and self.keep is not None:
            raise ValueError("sanitize.epsilon and sanitize.keep are both set, and each decides the other: remove one")
        if self.mechanism == "randomized_response" and (self.plus or self.cap):
            raise ValueError("sanitize.plus and sanitize.cap are of 'santext': remove them, or use that mechanism")
        return self
