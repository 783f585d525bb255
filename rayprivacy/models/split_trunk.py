"""A decoder split between two layers: the lower part is run once and cached, the upper part is trained on its states.

Both parts are copies of the trunk's STRUCTURE around the trunk's own weights: they cost no memory, and an adapter put
into one of them does not show up in the base.
"""

import copy
from typing import Any, cast

import torch

from rayprivacy.core.errors import ConfigError
from rayprivacy.models.backbone import Backbone

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")  # embedding, layers, norm and nothing else; tests cut each


def depth(backbone: Backbone) -> int:
    """How many decoder layers the base has; refused where it cannot be cut."""
    config = backbone.model.config
    if config.model_type not in ARCHITECTURES:
        raise ConfigError(
            f"model.base is a '{config.model_type}' model, which kind 'lora' cannot cut: choose"
            f" teachers.kind 'square' and student.kind 'head', or a base of another architecture"
            f" ({', '.join(ARCHITECTURES)})."
        )
    return int(config.num_hidden_layers)


def cut_below(backbone: Backbone, layers: int | None) -> int:
    """The cut with the last `layers` decoder layers above it; with all of them if None."""
    whole = depth(backbone)
    if layers is not None and not 1 <= layers <= whole:
        raise ConfigError(
            f"layers is {layers} and model.base has {whole} of them: choose 1 to {whole}, or leave it out."
        )
    return 0 if layers is None else whole - layers


def lower_trunk(backbone: Backbone, layers: int) -> torch.nn.Module:
    """The embedding and the first `layers` decoder layers, without the final norm; called like the whole trunk."""
    trunk = _part(backbone, slice(0, _checked(backbone, layers)))
    trunk.norm = torch.nn.Identity()
    return trunk


def upper_trunk(backbone: Backbone, layers: int) -> torch.nn.Module:
    """The decoder layers after the first `layers`, and the final norm.

    Called like the whole trunk, with `inputs_embeds`, the lower trunk's states [rows, row_tokens, width], in place of
    `input_ids`.
    """
    trunk = _part(backbone, slice(_checked(backbone, layers), None))
    trunk.embed_tokens = torch.nn.Identity()
    return trunk


def _checked(backbone: Backbone, layers: int) -> int:
    whole = depth(backbone)
    if not 0 <= layers <= whole:
        raise ConfigError(
            f"the cut is after layer {layers} and model.base has {whole} layers: cut between 0 and {whole}."
        )
    return layers


def _part(backbone: Backbone, keep: slice) -> torch.nn.Module:
    whole: Any = backbone.model.base_model
    shared = {id(tensor): tensor for tensor in (*whole.parameters(), *whole.buffers())}
    # What the memo already holds is taken as it is: the weights are not copied.
    trunk: Any = copy.deepcopy(whole, shared)
    trunk.layers = trunk.layers[keep]
    trunk.config.num_hidden_layers = len(trunk.layers)
    if getattr(trunk.config, "layer_types", None) is not None:
        trunk.config.layer_types = trunk.config.layer_types[keep]
    for index, layer in enumerate(trunk.layers):
        layer.self_attn.layer_idx = index
    return cast(torch.nn.Module, trunk)
