"""The two parts of a cut trunk are the whole trunk, for every cut and every architecture we say we can cut."""

import dataclasses

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rayprivacy.core.errors import ConfigError
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.features import layout, pack
from rayprivacy.models.layers import ARCHITECTURES, depth, lower_trunk, upper_trunk

LAYERS = 4


def _random_base(architecture: str, dtype: torch.dtype, like: Backbone) -> Backbone:
    shape = {"vocab_size": 400, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": LAYERS}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    config = AutoConfig.for_model(architecture, **shape, **heads)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        model = AutoModelForCausalLM.from_config(config).to(dtype).eval().requires_grad_(False)
    return dataclasses.replace(like, model=model)


@torch.no_grad()
def _put_together(backbone: Backbone, cut: int, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    below = lower_trunk(backbone, cut)(**inputs, use_cache=False).last_hidden_state
    rest = {name: value for name, value in inputs.items() if name != "input_ids"}
    states: torch.Tensor = upper_trunk(backbone, cut)(inputs_embeds=below, **rest, use_cache=False).last_hidden_state
    return states


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cut", range(LAYERS + 1))
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_parts_are_the_whole(
    architecture: str, cut: int, dtype: torch.dtype, tiny_backbone: Backbone, public_sentences: list[str]
) -> None:
    backbone = _random_base(architecture, dtype, tiny_backbone)
    rows = pack([backbone.document(text, 30) for text in public_sentences], 64, 8)
    inputs = {"input_ids": torch.stack([row.ids for row in rows]), **layout(rows, dtype, torch.device("cpu"))}
    assert (inputs["attention_mask"] < 0).any(), "the mask is not trivial"
    with torch.no_grad():
        whole = backbone.model.base_model(**inputs, use_cache=False).last_hidden_state
    assert torch.equal(_put_together(backbone, cut, inputs), whole)


def test_the_parts_share_the_weights_and_not_the_structure(tiny_backbone: Backbone) -> None:
    whole = tiny_backbone.model.base_model
    before = tiny_backbone.model.config.to_json_string()
    lower, upper = lower_trunk(tiny_backbone, 1), upper_trunk(tiny_backbone, 1)
    storage = {parameter.data_ptr() for parameter in whole.parameters()}
    for part in (lower, upper):
        assert {parameter.data_ptr() for parameter in part.parameters()} < storage
    upper.layers[0].mlp = torch.nn.Identity()
    assert not isinstance(whole.layers[1].mlp, torch.nn.Identity)
    assert tiny_backbone.model.config.to_json_string() == before
    assert [layer.self_attn.layer_idx for layer in whole.layers] == [0, 1]


@pytest.mark.parametrize("cut", [-1, 3])
def test_a_cut_outside_the_base_is_refused(cut: int, tiny_backbone: Backbone) -> None:
    assert depth(tiny_backbone) == 2
    with pytest.raises(ConfigError, match=f"after layer {cut} and model.base has 2 layers"):
        upper_trunk(tiny_backbone, cut)
    config = AutoConfig.for_model("gpt2", vocab_size=50, n_embd=8, n_layer=1, n_head=1)
    other = dataclasses.replace(tiny_backbone, model=AutoModelForCausalLM.from_config(config))
    with pytest.raises(ConfigError, match=r"model\.base is a 'gpt2' model.*teachers\.kind 'square'"):
        lower_trunk(other, 0)
