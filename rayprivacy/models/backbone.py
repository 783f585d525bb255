"""The frozen public model, split the way the project uses it: trunk -> final hidden state -> output head.

A document is `start, tokens..., end`. `start` is the token that separates documents in pre-training, so that the
trunk sees a context it knows; `end` is what generation stops at.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from rayprivacy.core.errors import ConfigError
from rayprivacy.models.settings import ModelConfig
from rayprivacy.models.sources import resolve_base

disable_progress_bar()  # our own stages report progress; theirs would overwrite it

DOCUMENT_SEPARATOR = "<|endoftext|>"


@dataclass(frozen=True)
class Backbone:
    """A frozen causal language model with its tokenizer.

    Attributes:
        model: the Hugging Face model, in eval mode, with no gradients.
        tokenizer: its tokenizer.
        start, end: token ids around a document.
    """

    model: Any
    tokenizer: Any
    start: int
    end: int

    @cached_property
    def head(self) -> torch.Tensor:
        """Output head, float32 [vocabulary, width]."""
        weight: torch.Tensor = self.model.get_output_embeddings().weight
        return weight.detach().float()

    @property
    def width(self) -> int:
        """Size of the final hidden state."""
        return int(self.model.get_output_embeddings().weight.shape[1])

    @cached_property
    def digest(self) -> str:
        """Digest of configuration, number format and all weights: what certificates and cached states name."""
        state = hashlib.sha256(f"{self.model.config.to_json_string()}{self.model.dtype}".encode())
        for name, tensor in sorted(self.model.state_dict().items()):
            state.update(name.encode())
            state.update(tensor.detach().contiguous().flatten().view(torch.uint8).numpy())
        return state.hexdigest()

    def document(self, text: str, max_tokens: int) -> list[int]:
        """Token ids `start, at most max_tokens of text, end`; `end` is left out where the text was cut."""
        ids = self.tokenizer.encode(text, add_special_tokens=False, verbose=False)  # it would log the length of a text
        return [self.start, *ids[:max_tokens], *([self.end] if len(ids) <= max_tokens else [])]

    def prefix(self, text: str) -> list[int]:
        """Token ids `start, text`, to be continued."""
        return [self.start, *self.tokenizer.encode(text, add_special_tokens=False)]

    def text(self, ids: list[int]) -> str:
        """Decode without special tokens."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=True)).strip()


def read_head_contiguously(model: Any) -> None:
    """Hand the output head contiguous rows.

    `generate` slices the last position out of a prompt batch; torch multiplies that strided slice by copying the whole
    head once per text (64 texts: 3.6 GB, six seconds).
    """
    model.get_output_embeddings().register_forward_pre_hook(lambda _module, inputs: (inputs[0].contiguous(),))


def load_backbone(config: ModelConfig) -> Backbone:
    """Load the base of a recipe.

    Raises:
        ConfigError: the base does not exist or has no end-of-text token.
    """
    try:
        source = resolve_base(config.base)
        tokenizer = AutoTokenizer.from_pretrained(source)
        model = AutoModelForCausalLM.from_pretrained(source, dtype=getattr(torch, config.dtype))
    except (OSError, ValueError) as error:
        raise ConfigError(f"model.base is {config.base!r}: it could not be loaded ({type(error).__name__}).") from None
    if tokenizer.eos_token_id is None:
        raise ConfigError(f"model.base is {config.base!r}: its tokenizer has no end-of-text token.")
    vocabulary = tokenizer.get_vocab()
    start = vocabulary.get(DOCUMENT_SEPARATOR, tokenizer.bos_token_id)
    model.eval().requires_grad_(False)
    read_head_contiguously(model)
    return Backbone(model, tokenizer, tokenizer.eos_token_id if start is None else start, tokenizer.eos_token_id)
