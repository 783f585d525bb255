"""What is tried of a base model before an account is opened: the whole road of a run, in small, on public tokens.

    loaded by the class that will load the result -> whole, finite, causal, its tokenizer fits       (models.loading)
    positions for all that is read and written -> one step, or packed rows, as the method needs them
    the model as it would be released -> saved -> loaded again -> the same logits

It takes a few seconds beside the loading, and its backbone is the one that the run goes on with. What depends on the
machine that trains, and on units in one batch, is tried there before the first step (`dpsgd.independence`).

A model of more than SAVED_BYTES is not written to try it: its configuration and tokenizer are, and the class that loads
them must ask for the same weights by name and shape.
"""

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from rayprivacy.blocks.match_plan import opener_tokens
from rayprivacy.core.errors import ConfigError
from rayprivacy.corpus.public import load_prompts
from rayprivacy.dpsgd.batches import Batch, Document, physical_batches
from rayprivacy.dpsgd.clipping import BookKeeping, Clipping
from rayprivacy.dpsgd.independence import check_memory
from rayprivacy.dpsgd.losses import row_losses
from rayprivacy.dpsgd.units import Reading
from rayprivacy.models import features, loading
from rayprivacy.models.backbone import Backbone, load_backbone
from rayprivacy.models.save import save_model
from rayprivacy.models.settings import ModelConfig
from rayprivacy.models.spelling import ids_of
from rayprivacy.models.trainable import merged, trainable

SAVED_BYTES = 2e9  # of a model that is written and read again; the packaged one has 0.3 to 0.5
TRIED_TOKENS = 512  # of the row for which positions are tried, at most: the configuration says it for longer ones
_ROWS, _TOKENS = 2, 8  # of the batch of which a step is taken
_MOVE = 1e-2  # how far a step moves each weight, relatively: so far that its loss would show
_PRECISE, _ROUNDED = 1e-4, 2e-2  # how far logits may be apart, relatively; the latter in bfloat16
_MARKS = 2  # tokens around a text
Losses = Callable[..., Tensor]  # of a model and a batch, and whether it computes in `low_precision`


def try_language_model(recipe: Any, readings: Sequence[Reading], losses: Losses | None = row_losses) -> Backbone:
    """Load a base that DP-SGD trains and that is then released, and try all of it; `losses` as in `try_training`."""
    backbone = load_base(recipe, readings)
    if getattr(recipe, "pretrain", None) is not None:
        check_packing(recipe.model.base, backbone)
    try_training(recipe, backbone, losses)
    return backbone


def load_base(recipe: Any, readings: Sequence[Reading]) -> Backbone:
    """Load a base that has positions for whatever is read by `readings`, and written."""
    backbone, base = load_backbone(recipe.model), recipe.model.base
    blocks = [recipe.generation, getattr(recipe, "pseudo", None)]
    code = _longest_code(recipe, backbone)
    begun = code + max(_longest_prompt(recipe, backbone), opener_tokens(recipe))
    written = [1 + begun + block.max_tokens for block in blocks if block is not None]
    read = [_MARKS + max(code, reading.max_context or 0) + reading.max_tokens for reading in readings]
    longest = max([*written, *read])
    loading.check_positions(backbone.model, longest)
    ids = loading.public_ids(backbone.model, min(longest, TRIED_TOKENS))
    with loading.telling(base, f"it cannot read {ids.shape[1]} tokens"), torch.no_grad():
        backbone.model.base_model(input_ids=ids)
    return backbone


def _longest_code(recipe: Any, backbone: Backbone) -> int:
    """Tokens of the longest control code in front of a text, where a recipe has codes."""
    codes = getattr(recipe, "control_codes", None)
    texts = [] if codes is None else [codes.text(cell) for cell in range(codes.cells)]
    return max(map(len, ids_of(backbone.tokenizer, texts)), default=0) if any(texts) else 0


def _longest_prompt(recipe: Any, backbone: Backbone) -> int:
    """Tokens of the longest prompt with which texts are begun, where a recipe has a file of them or is given one."""
    if not hasattr(recipe, "prompts"):
        return 0
    most = max(recipe.pseudo.prompt_words[1], recipe.generation.prompt_words[1])
    texts = [" ".join(prompt.split()[:most]) for prompt in load_prompts(recipe.prompts)]
    return max(map(len, ids_of(backbone.tokenizer, texts)))


def try_training(recipe: Any, backbone: Backbone, losses: Losses | None) -> None:
    """Train a base as the blocks `adapter` and `resources` say, and try to save what comes out.

    Without `losses`, which are then a user's own, the rules of all layers are looked up and no step is taken.
    """
    base = recipe.model.base
    with loading.telling(base, "it cannot be trained"):
        model = trainable(backbone, recipe.adapter)
        check_memory(model)
        if recipe.resources.gradients == "bookkeeping" and recipe.training.microbatches is None:
            coarse = any(each.dtype == torch.bfloat16 for each in backbone.model.parameters())  # `auto` may choose it
            _step(base, model, losses and partial(losses, low_precision=coarse))
    try_saving(recipe.model, backbone, merged(model, backbone))


def check_packing(base: str, backbone: Backbone) -> None:
    """Refuse a base that cannot read rows of several documents, each by itself."""
    kind = backbone.model.config.model_type
    with loading.telling(base, f"a model of type {kind!r} cannot read several documents in one row"):
        apart = _reads_apart(backbone)
    if not apart:
        raise ConfigError(
            f"model.base is {base!r}, of type {kind!r}, which does not keep documents in one row apart: name another."
        )


def try_saving(config: ModelConfig, backbone: Backbone, model: Any) -> None:
    """Save a model as it would be released, load it by the class that would, and compare."""
    size = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    same = _same_logits if size <= SAVED_BYTES else _same_names
    failed = "what is made of it cannot be saved and loaded again"
    with loading.telling(config.base, failed), tempfile.TemporaryDirectory() as scratch:
        found = same(config, Path(scratch) / "model", backbone, model)
    if not found:
        raise ConfigError(
            f"model.base is {config.base!r}, of type {model.config.model_type!r}: what is made of it is another model"
            " when it was saved and loaded again: name another."
        )


def _step(base: str, model: Any, losses: Losses | None) -> None:
    """Move the weights by the clipped gradient of two rows."""
    try:
        gradients = BookKeeping(model, Clipping(1.0))
        sums = {} if losses is None else gradients(lambda: _finite(base, losses(model, _batch(model))), 1)
    except ConfigError as error:
        said = str(error)
        raise error if "model.base is" in said else ConfigError(f"model.base is {base!r}: {said}") from None
    for parameter in list(sums):
        gradient = sums.pop(parameter)()
        size = parameter.detach().norm() / max(1, parameter.numel()) ** 0.5
        scale = _MOVE * max(float(size), _MOVE) / max(float(gradient.abs().max()), 1e-30)
        parameter.data.add_((gradient * scale).to(parameter.dtype))


def _batch(model: Any) -> Batch:
    rows = loading.public_ids(model, _ROWS * _TOKENS).view(_ROWS, _TOKENS).numpy().astype(np.int32)
    return physical_batches([[Document(row, 1)] for row in rows], _ROWS * _TOKENS, 0)[0]


def _finite(base: str, values: Tensor) -> Tensor:
    if not torch.isfinite(values).all():
        raise ConfigError(f"model.base is {base!r}: its loss on public tokens is no finite number: name another.")
    return values


@torch.enable_grad()
def _reads_apart(backbone: Backbone) -> bool:
    """Whether no state of a document depends on the document before it in its row, be it ever so little."""
    model = backbone.model
    ids = loading.public_ids(model, 2 * _TOKENS)[0].tolist()
    rows = features.pack([ids[:_TOKENS], ids[_TOKENS:]], 2 * _TOKENS, 1)
    features.encode_rows(backbone, rows, 2 * _TOKENS)
    tokens, apart = torch.stack([row.ids for row in rows]), features.layout(rows, model.dtype, model.device)
    out, embedded = loading.differentiable(model, model.base_model, input_ids=tokens, use_cache=False, **apart)
    (gradient,) = torch.autograd.grad(loading.projected(out.last_hidden_state[:, _TOKENS:]), embedded)
    return not bool(gradient[:, :_TOKENS].any())


def _same_logits(config: ModelConfig, folder: Path, backbone: Backbone, model: Any) -> bool:
    save_model(model, backbone.tokenizer, folder, "none", "A trial.")
    again = load_backbone(config.model_copy(update={"base": str(folder)})).model
    ids = loading.public_ids(model)
    with torch.no_grad():
        one, other = (each(input_ids=ids).logits.float() for each in (model, again))
    near = _PRECISE if model.dtype == torch.float32 else _ROUNDED
    return one.shape == other.shape and bool((one - other).abs().max() <= near * one.abs().max())


def _same_names(config: ModelConfig, folder: Path, backbone: Backbone, model: Any) -> bool:
    for part in (model.config, model.generation_config, backbone.tokenizer):
        part.save_pretrained(folder)
    with torch.device("meta"):
        again = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder, trust_remote_code=False))
    one, other = ({name: weight.shape for name, weight in each.named_parameters()} for each in (model, again))
    return one == other
