"""A model that was handed over as an object: its digest, and the copy from which workers load it.

The copy is public, like every base model, and is saved once into the storage of the run.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rayprivacy.core.artifacts import digest_json
from rayprivacy.core.errors import ConfigError
from rayprivacy.models.backbone import Backbone, tokenizer_rules
from rayprivacy.models.quiet import no_progress_bars


@dataclass(frozen=True)
class GivenModel:
    """A public causal language model with its tokenizer, as objects."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    digest: str  # of configuration, weights and tokenizer as they were when they were handed over

    @staticmethod
    def of(model: PreTrainedModel, tokenizer: Any) -> "GivenModel":
        """The model with its digest; ConfigError where there is no tokenizer."""
        if not isinstance(tokenizer, PreTrainedTokenizerBase):
            raise ConfigError("a model was given without its tokenizer: give tokenizer=..., a Hugging Face tokenizer.")
        return GivenModel(model, tokenizer, _digest(model, tokenizer))

    def folder(self, storage: Path) -> Path:
        """Where its copy is."""
        return storage / f"base-{self.digest[:16]}"

    def save(self, storage: Path) -> None:
        """Save the copy, whole, unless it is there; ConfigError where the model was changed since it was given."""
        folder = self.folder(storage)
        if folder.is_dir():
            return
        if _digest(self.model, self.tokenizer) != self.digest:
            raise ConfigError("the model was changed after it was given to the trainer: make the trainer anew.")
        scratch = folder.with_name(f".{folder.name}")
        shutil.rmtree(scratch, ignore_errors=True)
        with no_progress_bars():
            self.model.save_pretrained(scratch)
            self.tokenizer.save_pretrained(scratch)
        scratch.rename(folder)


def _digest(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> str:
    return digest_json([Backbone(tokenizer, 0, 0, model=model).digest, tokenizer_rules(tokenizer)])
