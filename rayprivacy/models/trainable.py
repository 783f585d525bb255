"""The base model made trainable for DP-SGD: LoRA matrices, or all weights; and back to an ordinary model.

The heads of a tagger are new, and always trained. What is trained is kept in float32 and the rest in the base's number
format. Dropout is off, whatever mode the model is in, and the model stays in evaluation mode: a gradient is a function
of the weights and of one user's text alone. A GPU is held to kernels that give the same bits again.
"""

import copy
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer
from torch.utils.checkpoint import checkpoint
from transformers import PretrainedConfig
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.pytorch_utils import Conv1D

from rayprivacy.core.errors import ConfigError
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.loading import reason
from rayprivacy.models.settings import AdapterConfig

LINEAR = (torch.nn.Linear, Conv1D)
START_SEED = 0  # public: every run starts from the same matrices


def trainable(backbone: Backbone, config: AdapterConfig) -> Any:
    """A copy of the base whose trainable parameters, float32, are those the adapter says; the others are the base's."""
    model = _sharing(backbone.model)
    model.config.use_cache = False
    _without_dropout(model)
    if config.kind == "full":
        model = _in_float32(model).requires_grad_(True)
        for part in getattr(model, "frozen_parts", ()):  # of a tagger
            part.requires_grad_(False)
        return model
    return _with_lora(model, config)


def _sharing(model: Any) -> Any:
    """A copy with modules of its own, whose weights lie where the model's do: those of a file, once for a machine."""
    weights = {id(each): torch.nn.Parameter(each.detach(), each.requires_grad) for each in model.parameters()}
    return copy.deepcopy(model, weights)


def _in_float32(module: torch.nn.Module) -> torch.nn.Module:
    """The module with weights of its own in float32."""
    for parameter in module.parameters():
        parameter.data = parameter.data.to(torch.float32, copy=True)
    return module.float()  # what is no weight, too


def _with_lora(model: Any, config: AdapterConfig) -> Any:
    depth = int(model.config.num_hidden_layers)
    if config.layers is not None and config.layers > depth:
        raise ConfigError(f"adapter.layers is {config.layers} and the base has {depth}: give at most {depth}.")
    chosen = None if config.layers is None else list(range(depth - config.layers, depth))
    linear = {name.rpartition(".")[2] for name, each in model.base_model.named_modules() if isinstance(each, LINEAR)}
    lora = LoraConfig(
        r=config.rank,
        lora_alpha=2 * config.rank,
        lora_dropout=0.0,
        target_modules=sorted(linear),
        layers_to_transform=chosen,
    )
    found = adapted(model, lora)
    for head in getattr(model, "heads", ()):  # of a tagger, whose heads are new
        _in_float32(head).requires_grad_(True)
    return found


def adapted(model: Any, lora: LoraConfig) -> Any:
    """The model with LoRA matrices, float32, which always start from the same numbers and change nothing yet."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT asks transformers by an old name, and advises on Conv1D
        torch.manual_seed(START_SEED)
        try:
            return get_peft_model(model, lora)
        except ValueError as error:
            raise ConfigError(
                f"model.base is of type {model.config.model_type!r}, to which PEFT adds no LoRA matrices"
                f" ({reason(error)}): name another base."
            ) from None


def _without_dropout(model: Any) -> None:
    """Modules of dropout, and the rates that modules (`dropout`, `layerdrop`, ...) and configs keep for themselves."""
    for module in model.modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0
        _no_rates(module)
        if isinstance(config := getattr(module, "config", None), PretrainedConfig):
            _no_rates(config)  # some models read their rates in each forward pass (Falcon, Persimmon)


def _no_rates(owner: Any) -> None:
    for name in [name for name, value in vars(owner).items() if "drop" in name and isinstance(value, float)]:
        setattr(owner, name, 0.0)


def checkpointed(model: Any) -> Any:
    """The model, keeping only the inputs of its layers also outside training mode, which would wake up more."""
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise ConfigError(
            "resources.gradient_checkpointing is true and model.base has no layers that can be computed again: leave it"
            " out."
        )
    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    return model


def merged(model: Any, backbone: Backbone) -> Any:
    """An ordinary Hugging Face model in the base's number format, with LoRA matrices added to its weights.

    What was not trained stays where it is, and one layer at a time is added up, in float32.
    """
    plain, dtype = _sharing(model), backbone.model.dtype
    for layer in [each for each in plain.modules() if isinstance(each, BaseTunerLayer)]:
        weights = _in_float32(layer.get_base_layer())
        layer.merge()
        weights.to(dtype)
    plain = plain.unload() if hasattr(plain, "unload") else plain
    for parameter in plain.parameters():  # not what is computed anew on loading, such as frequencies of positions
        parameter.data = parameter.data.to(dtype, copy=parameter.requires_grad)
    plain.eval().requires_grad_(False)
    plain.config.use_cache = True
    return plain


def repeatable(device: torch.device) -> torch.device:
    """Hold this process to repeatable kernels if the device is a GPU, before anything is computed there.

    Kernels that add with atomics add in another order each time: on an H200, in bfloat16 with all weights trained, the
    last bits of a user's clipped gradient changed from run to run. Torch then refuses an operation that has no
    repeatable kernel. Bits differ between kinds of GPU, as they do between kinds of processor.
    """
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it torch refuses products
        torch.use_deterministic_algorithms(True)
    return device


def has_no_repeatable_kernel(error: RuntimeError) -> bool:
    """Whether torch raised this because an operation has no repeatable kernel."""
    return "deterministic" in str(error)


@contextmanager
def any_kernel() -> Iterator[None]:
    """Admit kernels that are not repeatable, for a while, for what is not kept."""
    held = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(held)
