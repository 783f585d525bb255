"""The frozen public model, split the way the project uses it: trunk -> final hidden state -> output head.

A document is `start, tokens..., end`. `start` is the token that separates documents in pre-training, so that the
trunk sees a context it knows; `end` is what generation stops at.
"""

import hashlib
import json
import os
import platform
import timeit
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, cast

import torch
from transformers import AutoModelForCausalLM

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.files import keep, kept_file
from rayprivacy.core.private import digest_json
from rayprivacy.models import loading
from rayprivacy.models.heads import head_scale
from rayprivacy.models.settings import AUTO, DOCUMENT_SEPARATOR, ModelConfig
from rayprivacy.models.sources import resolve_base
from rayprivacy.models.spelling import ids_of

NumberFormat = Literal["bfloat16", "float32"]
FORMATS: tuple[NumberFormat, ...] = ("bfloat16", "float32")
_WORTH = 1.2  # bfloat16 is coarser: it has to be clearly faster
_ROUNDS = 5
_PUBLIC = "The weather is nice today, and we are going to the market to buy apples, bread and soup."
_SHAPE = (512, 576, 1536)  # of a product in the packaged model
_SETTINGS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY")


def fast_format() -> NumberFormat:
    """The format to compute in on this machine: measured in about a second, then read from the user's cache.

    Where the processor knows bfloat16 (AVX512-BF16, AMX, ARMv8.6) its products are two to six times faster than
    float32's; elsewhere it is emulated, and three to seven times slower. No list of processors is kept.
    """
    path = kept_file("number-format", digest_json(_machine())[:32])
    with suppress(OSError, ValueError):  # not there, or damaged: it is measured again
        if path and (found := path.read_text()) in FORMATS:
            return found
    speeds = {name: speed(name) for name in FORMATS}
    fast: NumberFormat = "bfloat16" if speeds["bfloat16"] > _WORTH * speeds["float32"] else "float32"
    keep(path, fast.encode())
    return fast


def speed(name: NumberFormat) -> float:
    """Floating-point operations in a second of the best of some products of two matrices in a format."""
    rows, inner, columns = _SHAPE
    left = torch.ones(rows, inner, dtype=getattr(torch, name))
    right = torch.ones(columns, inner, dtype=getattr(torch, name))
    torch.nn.functional.linear(left, right)  # the first one prepares the kernel
    seconds = timeit.repeat(partial(torch.nn.functional.linear, left, right), repeat=_ROUNDS, number=1)
    return 2 * rows * inner * columns / min(seconds)


def _machine() -> list[str]:
    """What the answer depends on: the processor, the version of torch, and the settings that hide instructions."""
    return [_processor(), torch.__version__, torch.backends.cpu.get_cpu_capability()] + [
        os.environ.get(name, "") for name in _SETTINGS
    ]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))


@dataclass(frozen=True)
class Documents:
    """Text as the token ids of documents, and back, by a tokenizer and the token ids around a document."""

    tokenizer: Any
    start: int
    end: int

    @staticmethod
    def of(tokenizer: Any) -> "Documents":
        """The documents of a tokenizer that has an end-of-text token."""
        start = tokenizer.get_vocab().get(DOCUMENT_SEPARATOR, tokenizer.bos_token_id)
        return Documents(tokenizer, tokenizer.eos_token_id if start is None else start, tokenizer.eos_token_id)

    def ids(self, text: str) -> list[int]:
        """Token ids of a text alone, in which nothing is a control token."""
        return ids_of(self.tokenizer, [text])[0]

    def document(self, text: str, max_tokens: int) -> list[int]:
        """Token ids `start, at most max_tokens of text, end`; `end` is left out where the text was cut."""
        ids = self.ids(text)
        return [self.start, *ids[:max_tokens], *([self.end] if len(ids) <= max_tokens else [])]

    def prefix(self, text: str, most: int | None = None) -> list[int]:
        """Token ids `start, text`, to be continued; of a longer text the first `most` tokens."""
        return [self.start, *self.ids(text)[:most]]

    def text(self, ids: list[int]) -> str:
        """The text of token ids, without special tokens."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=True)).strip()

    def text_after(self, prompt: str, document: list[int]) -> str:
        """The text of a document that begins with a prompt, without the prompt."""
        return self.text(document[len(self.prefix(prompt)) :])


@dataclass(frozen=True, kw_only=True)
class Backbone(Documents):
    """A frozen causal language model with its tokenizer; `model` is of Hugging Face, in eval mode."""

    model: Any

    @cached_property
    def head_scale(self) -> float:
        """What the model multiplies the product of final states and output head by; refused where it does more."""
        ids = torch.tensor([self.prefix(_PUBLIC)], device=self.model.device)
        if (scale := head_scale(self.model, ids)) is None:
            raise ConfigError(
                f"model.base is a '{self.model.config.model_type}' model, whose logits are not the product of its last"
                " states and its output head, on which SeqPATE's teachers and students stand: choose another base, or"
                " method generator."
            )
        return scale

    @cached_property
    def head(self) -> torch.Tensor:
        """Matrix whose product with final states are the model's logits, float32 [vocabulary, width]."""
        weight: torch.Tensor = self.model.get_output_embeddings().weight.detach().float()
        return weight if self.head_scale == 1 else weight * self.head_scale

    @property
    def vocabulary(self) -> int:
        """How many tokens the model chooses from."""
        return int(self.model.get_output_embeddings().weight.shape[0])

    @property
    def width(self) -> int:
        """Size of the final hidden state."""
        return int(self.model.get_output_embeddings().weight.shape[1])

    @cached_property
    def digest(self) -> str:
        """Digest of configuration, number format and all weights: what certificates and cached states name."""
        return model_digest(self.model)

    @cached_property
    def tokenizer_digest(self) -> str:
        """Digest of what the tokenizer does, which is no part of the model."""
        return digest_json(tokenizer_rules(self.tokenizer))


def model_digest(model: Any) -> str:
    """Digest of the configuration, number format and all weights of a Hugging Face model."""
    state = hashlib.sha256(f"{model.config.to_json_string()}{model.dtype}".encode())
    for name, tensor in sorted(model.state_dict().items()):
        state.update(name.encode())
        state.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return state.hexdigest()


def tokenizer_rules(tokenizer: Any) -> list[Any]:
    """What a tokenizer does, as JSON values; padding and truncation, which calls change, are left out."""
    inner = getattr(tokenizer, "backend_tokenizer", None)
    rules = json.loads(inner.to_str()) if inner is not None else {}
    kept = {name: value for name, value in rules.items() if name not in ("padding", "truncation")}
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    return [sorted(tokenizer.get_vocab().items()), special, kept]


def read_head_contiguously(model: Any) -> None:
    """Hand the output head contiguous rows.

    `generate` slices the last position out of a prompt batch; torch multiplies that strided slice by copying the whole
    head once per text (64 texts: 3.6 GB, six seconds).
    """
    model.get_output_embeddings().register_forward_pre_hook(lambda _module, inputs: (inputs[0].contiguous(),))


def load_documents(folder: Path) -> Documents:
    """The tokenizer of a saved model that `load_backbone` has loaded before."""
    return Documents.of(loading.load_tokenizer(folder))


def load_backbone(config: ModelConfig, device: torch.device | str = "cpu", *, released: bool = False) -> Backbone:
    """Load the base of a recipe: a causal language model on the device, or a tagger, always on the CPU.

    A model that a run has `released` may have become anything, and its figures say so: no look at it refuses it.
    """
    loader = import_module(config.LOADER)
    loaded: Backbone = loader.load(config, device)
    if not released:
        loader.look(config.base, loaded.model)
    return loaded


def look(base: str, model: Any) -> None:
    """Refuse a model with an adapter inside, with weights that are no numbers, or that is no language model."""
    loading.check_model(base, model)
    loading.check_language_model(base, model)


def load(config: ModelConfig, device: torch.device | str) -> Backbone:
    """Load a causal language model; see `load_backbone`."""
    base, dtype = config.base, fast_format() if config.dtype == AUTO else config.dtype
    with loading.telling(base):
        source = resolve_base(base)
        tokenizer = loading.load_tokenizer(source)
        model = loading.load_weights(base, AutoModelForCausalLM, source, dtype=getattr(torch, dtype))
    loading.check_tokenizer(base, tokenizer, model)
    cast(torch.nn.Module, model).to(device)
    read_head_contiguously(model)
    documents = Documents.of(tokenizer)
    return Backbone(tokenizer, documents.start, documents.end, model=model)
