"""A decoder split between two layers: the lower part is run once and cached, the upper part is trained by LoRA.

Both parts are copies of the trunk's STRUCTURE around the trunk's own weights: they cost no memory, and an adapter put
into one of them does not show up in the base. The embedding below and the output head above (tied to it in small
models) stay the base's own. So the states of a tuned model are scored with the base's head, and a cached pass through
the lower part serves every tuned model.
"""

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import torch
from peft import LoraConfig, get_peft_model_state_dict, set_peft_model_state_dict

from rayprivacy.core.errors import ConfigError
from rayprivacy.models import features
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.features import Encoded, Row
from rayprivacy.models.trainable import adapted

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")  # embedding, layers, norm and nothing else; tests cut each
ROWS = 8  # rows in one call of a part of the trunk


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
    """The layers after the first `layers`, and the final norm; takes states as `inputs_embeds`, not `input_ids`."""
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


def select(rows: Encoded, index: torch.Tensor) -> Encoded:
    """Some rows, in the order of `index`, int64 [n]."""
    return Encoded(rows.ids[index], rows.segment[index], rows.hidden[index])


def calls(rows: Encoded) -> Iterator[torch.Tensor]:
    """Row numbers, call after call of a part of the trunk; which rows share a call depends on nothing but the rows."""
    return (torch.arange(first, min(first + ROWS, len(rows))) for first in range(0, len(rows), ROWS))


def at_cut(backbone: Backbone, cut: int, rows: Encoded, threads: int = 1) -> Encoded:
    """The same rows with the base's states at the cut, bfloat16, in place of the states they come with."""
    parts = features.side_by_side(partial(_cut_states, lower_trunk(backbone, cut), rows), calls(rows), threads)
    return features.join(parts, rows.ids.shape[1], backbone.width)


@torch.no_grad()
def _cut_states(trunk: Any, rows: Encoded, index: torch.Tensor) -> Encoded:
    few = select(rows, index)
    return Encoded(few.ids, few.segment, _read(trunk, few, trunk.dtype, input_ids=few.ids).bfloat16())


def _read(module: Any, rows: Encoded, dtype: torch.dtype, **tokens: torch.Tensor) -> torch.Tensor:
    packed = [Row(ids, segment) for ids, segment in zip(rows.ids, rows.segment, strict=True)]
    out = module(**tokens, **features.layout(packed, dtype, rows.ids.device), use_cache=False)
    return cast(torch.Tensor, out.last_hidden_state)


class LoraLayers:
    """LoRA matrices of one rank, float32, on every linear map of the layers above a cut.

    No dropout: what they compute depends on their weights and their input alone.

    Attributes:
        cut: how many layers lie below.
        start: the matrices they start from, which change nothing.
    """

    def __init__(self, backbone: Backbone, cut: int, rank: int) -> None:
        config = LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules="all-linear")
        self._module: Any = adapted(upper_trunk(backbone, cut), config).eval()
        self._dtype = backbone.model.dtype
        self._kept: tuple[Encoded, Encoded] | None = None
        self.cut = cut
        self.start = self.read()

    def below(self, backbone: Backbone, rows: Encoded, threads: int) -> Encoded:
        """`at_cut` of rows; those of the last rows are kept, because several models above one cut read them in turn."""
        if self._kept is None or self._kept[0] is not rows:
            self._kept = rows, at_cut(backbone, self.cut, rows, threads)
        return self._kept[1]

    def states(self, below: Encoded) -> torch.Tensor:
        """Final states [rows, row_tokens, width] of rows that hold the states at the cut."""
        return _read(self._module, below, self._dtype, inputs_embeds=below.hidden.to(self._dtype))

    def parameters(self) -> list[torch.nn.Parameter]:
        """What an optimizer moves, float32."""
        return [parameter for parameter in self._module.parameters() if parameter.requires_grad]

    def read(self) -> dict[str, torch.Tensor]:
        """A copy of the matrices, by their names in PEFT."""
        found = get_peft_model_state_dict(self._module, save_embedding_layers=False)
        return {name: tensor.detach().clone() for name, tensor in found.items()}

    def load(self, tensors: dict[str, torch.Tensor]) -> None:
        """Put back what `read` gave."""
        set_peft_model_state_dict(self._module, tensors)

    def merged(self) -> torch.nn.Module:
        """The upper trunk in the ordinary architecture, with the matrices added to its weights."""
        return cast(torch.nn.Module, copy.deepcopy(self._module).merge_and_unload())
