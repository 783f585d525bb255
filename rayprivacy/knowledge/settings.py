"""The `knowledge` block: whose names are asked about, what is asked about each, and how many votes a user has.

All of it is public. This file imports no package of the extra.
"""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from rayprivacy.core.config import Config, PathKind
from rayprivacy.questions.answers import normalised

NAME = "{name}"  # stands in a question for the name that it asks about
MOST_KNOWN = 1_000_000  # known answers of all names together; each draws noise, a million in a quarter of a minute
Kind = Literal["category", "number", "date", "place", "name"]
Whole = Annotated[int, Field(ge=0, le=10**12)]


class NamesConfig(Config):
    """Which names are asked about.

    Attributes:
        file: a public file with one name a line; then no budget is spent on names. Left out, names are found: what
            many users write and no list of English words has.
        most: names of a user that count, at most: those of most of their texts.
        letters: of a name's words that are found, at least.
    """

    file: Annotated[str | None, PathKind.PUBLIC] = None
    most: int = Field(default=20, ge=1, le=10_000)
    letters: int = Field(default=4, ge=1)


class AttributeConfig(Config):
    """What is asked about every name.

    Attributes:
        name: of the attribute.
        kind: of its answers: one of some `values`, a number, a date, a place, or another name.
        values: a public list of all answers; a category must have one, and a place may. Its answers are known, and need
            fewer users.
        unit: how the unit of a number may be written, the plain form first; left out, it has none.
        between: the least and the greatest number that can be an answer. Whole ones between them are known answers.
        questions: that ask for it, in which {name} stands for the name. Their words are what an answer is looked for
            beside.
        sentences: that state it, with {name} and {answer}, for the passages; left out, plain ones.
    """

    name: str = Field(min_length=1)
    kind: Kind
    values: tuple[str, ...] = ()
    unit: tuple[str, ...] = ()
    between: tuple[Whole, Whole] | None = None
    questions: tuple[str, ...] = Field(min_length=1)
    sentences: tuple[str, ...] = (
        "The {attribute} of {name} is {answer}.",
        "{name} has {answer} as its {attribute}.",
        "As for {attribute}, {name} is known for {answer}.",
    )

    @field_validator("questions", "sentences")
    @classmethod
    def _of_a_name(cls, phrases: tuple[str, ...]) -> tuple[str, ...]:
        missing = next((phrase for phrase in phrases if NAME not in phrase), None)
        if missing is not None or not phrases:
            raise ValueError(f"{missing!r} does not say {NAME}: write it where the name stands")
        return phrases

    @field_validator("sentences")
    @classmethod
    def _of_an_answer(cls, phrases: tuple[str, ...]) -> tuple[str, ...]:
        missing = next((phrase for phrase in phrases if "{answer}" not in phrase), None)
        if missing is not None:
            raise ValueError(f"{missing!r} does not say {{answer}}: write it where the answer stands")
        return phrases

    @model_validator(mode="after")
    def _fits_its_kind(self) -> "AttributeConfig":
        if self.kind == "category" and not self.values:
            raise ValueError(f"the attribute {self.name!r} is a category without values: list them, or change its kind")
        if self.values and self.kind not in ("category", "place"):
            raise ValueError(f"the attribute {self.name!r} is a {self.kind} with values: make it a category")
        for key in ("unit", "between"):
            if getattr(self, key) and self.kind != "number":
                raise ValueError(f"the attribute {self.name!r} is a {self.kind} with '{key}': only a number has it")
        if self.between and self.between[0] > self.between[1]:
            raise ValueError(f"the attribute {self.name!r} is between {self.between}: write the lesser number first")
        return self

    def known(self, names: Sequence[str]) -> Sequence[Any]:
        """All answers, or all whole ones, where public settings or these released names say them; none where not."""
        if self.between:
            return range(self.between[0], self.between[1] + 1)
        return [*dict.fromkeys(map(normalised, self.values))] or (names if self.kind == "name" else ())


class ReaderConfig(Config):
    """How answers are read in a user's texts: as the candidate of the attribute's kind that is nearest to the name and
    to the words of the attribute's questions.

    Attributes:
        score: public, from 0 to 1; an answer below it is none. A higher one is right more often, and silent too.
    """

    score: float = Field(default=0.15, ge=0, le=1)


class AnswersConfig(Config):
    """Which answers of a user count.

    Attributes:
        most: answers, at most (c): noise grows with its square root, and whoever has more loses some of them.
    """

    most: int = Field(default=40, ge=1, le=10_000)


class LearningConfig(Config):
    """A language model that learns the released facts by heart: from passages, questions and answers, all weights.

    Attributes:
        steps: number of AdamW's steps.
        batch: rows of a step.
        max_tokens: tokens of a row, into which texts are packed.
        learning_rate: AdamW's step size.
    """

    steps: int = Field(default=200, ge=1)
    batch: int = Field(default=8, ge=1)
    max_tokens: int = Field(default=128, ge=8, le=2048)
    learning_rate: float = Field(default=1e-4, gt=0)


class KnowledgeConfig(Config):
    """The `knowledge` block.

    Attributes:
        names: which names are asked about.
        attributes: what is asked about each of them.
        reader: what finds answers.
        answers: which of them count.
        rounds: 2 asks a second time what the first left open, for a charge of its own.
        names_share: of the budget that goes to names; what is left goes to answers, the same to each round. Without
            effect where names are a public file.
        model: how `model.base` learns the released facts; null for no model.
    """

    named: ClassVar[str] = "recipe"

    names: NamesConfig = NamesConfig()
    attributes: tuple[AttributeConfig, ...] = Field(min_length=1)
    reader: ReaderConfig = ReaderConfig()
    answers: AnswersConfig = AnswersConfig()
    rounds: Literal[1, 2] = 1
    names_share: float = Field(default=0.1, gt=0, lt=1)
    model: LearningConfig | None = None

    def known(self, names: Sequence[str]) -> dict[str, Sequence[Any]]:
        """The known answers of each attribute that has any; where all keys would be too many, it counts as unknown."""
        found, left = dict[str, Sequence[Any]](), MOST_KNOWN
        for each in self.attributes:
            answers = each.known(names)
            if 0 < (keys := len(names) * len(answers)) <= left:
                found[each.name], left = answers, left - keys
        return found

    @field_validator("attributes")
    @classmethod
    def _told_apart(cls, attributes: tuple[AttributeConfig, ...]) -> tuple[AttributeConfig, ...]:
        names = [each.name for each in attributes]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"two attributes are called {twice!r}: give each a name of its own")
        return attributes
