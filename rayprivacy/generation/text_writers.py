"""Writers of a block of texts: an engine continues the prompts, and a rule says which texts are dropped.

An engine is a function of the model, the prompts and the settings, so that a block that is sampled again is the same.
"""

from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoConfig

from rayprivacy.core.artifacts import digest_bytes
from rayprivacy.generation.decode import Sampler, sample
from rayprivacy.generation.degenerate import holds_structure, is_degenerate
from rayprivacy.generation.engines import ONNX
from rayprivacy.generation.grammars import Matcher
from rayprivacy.generation.onnx_decoder import OnnxDecoder
from rayprivacy.generation.settings import EngineName, SamplingConfig
from rayprivacy.generation.structured import Continue, Structure, StructuredWriter
from rayprivacy.models.backbone import Backbone, Documents, load_backbone, load_documents
from rayprivacy.models.settings import ModelConfig

STRUCTURE = "structure"


@dataclass(frozen=True)
class WritingTask:
    """How texts are written, as every actor is told it.

    Attributes:
        model_dir: a model as `save_model` leaves it.
        config: filters, seed and length.
        engine: what samples.
        threads: of an actor.
        ready: the folder that the engine reads: `model_dir`, or what the engine made of it.
        begun: whether each text begins with its prompt.
        structure: what is asked of the texts in place of not being degenerate.
        names: of a structure that the prompts are written in.
    """

    model_dir: Path
    config: SamplingConfig
    engine: EngineName
    threads: int
    ready: Path
    begun: bool = False
    structure: Structure | None = None
    names: frozenset[str] = frozenset()

    @property
    def identity(self) -> list[Any]:
        """What decides a text beside the model and the prompt, as JSON values."""
        how = [self.config.model_dump(mode="json"), self.engine, self.threads, self.begun, repr(self.structure)]
        return [*how, *sorted(self.names)]

    def at(self, block: int) -> SamplingConfig:
        """The settings of one block. A sampler uses 32 bits of a seed, in which no two blocks of a run agree."""
        first = int(digest_bytes(f"writing {self.config.seed}".encode())[:8], 16)
        return self.config.model_copy(update={"seed": (first + block) % 2**32})


@dataclass
class UnstructuredWriter:
    """Texts as the model writes them; degenerate ones are dropped, and those that hold names of a structure."""

    freely: Continue
    names: frozenset[str]
    counts: Counter[str] = field(default_factory=Counter)

    def __call__(self, prompts: list[str], config: SamplingConfig) -> list[tuple[str, str | None]]:
        """The texts, each with the reason to drop it, or none."""
        return [
            (text, is_degenerate(text) or (STRUCTURE if holds_structure(text, self.names) else None))
            for text in self.freely(prompts, config)
        ]


def writer_of(task: WritingTask) -> StructuredWriter | UnstructuredWriter:
    """What writes the texts of the task's blocks."""
    if task.engine == ONNX:
        documents = load_documents(task.model_dir)
        freely = _texts(documents, OnnxDecoder(task.ready, documents, task.threads).sample, task.begun)
    else:
        freely = _by_transformers(task)
    if task.structure is None:
        return UnstructuredWriter(freely, task.names)
    vocabulary = int(AutoConfig.from_pretrained(task.model_dir).vocab_size)
    documents = load_documents(task.model_dir)
    return StructuredWriter(task.structure, documents, vocabulary, freely, partial(_by_transformers, task))


def _by_transformers(task: WritingTask, matcher: Matcher | None = None) -> Continue:
    backbone = _loaded(task.model_dir)
    masks = matcher.masks if matcher else None
    return _texts(backbone, partial(sample, backbone.model, backbone, masks=masks), task.begun)


def _texts(documents: Documents, sampler: Sampler, begun: bool) -> Continue:
    """What a sampler writes after each prompt, as text; with the prompt if the text has begun with it."""

    def continued(prompts: list[str], config: SamplingConfig) -> list[str]:
        written = zip(prompts, sampler(prompts, config), strict=True)
        return [documents.text(ids) if begun else documents.text_after(prompt, ids) for prompt, ids in written]

    return continued


@lru_cache(maxsize=1)
def _loaded(model_dir: Path) -> Backbone:
    """The model of an actor, which may sample from it both freely and under masks."""
    return load_saved(model_dir)


def load_saved(model_dir: Path) -> Backbone:
    """A model as `save_model` left it, in the number format that it was saved in."""
    stored = AutoConfig.from_pretrained(model_dir).dtype
    dtype: Literal["bfloat16", "float32"] = "bfloat16" if stored == torch.bfloat16 else "float32"
    return load_backbone(ModelConfig(base=str(model_dir), dtype=dtype))
