"""What of the base is trained, and that training never depends on chance or on how activations are kept."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, OPTConfig, OPTForCausalLM

from rayprivacy.core.errors import ConfigError
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.save import save_model
from rayprivacy.models.settings import AdapterConfig
from rayprivacy.models.trainable import checkpointed, merged, trainable

IDS = torch.randint(0, 300, (3, 12), generator=torch.Generator().manual_seed(1))


def _gradients(model: Any) -> dict[str, torch.Tensor]:
    logits = model(input_ids=IDS, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), IDS[:, 1:].flatten())
    named = [(name, each) for name, each in model.named_parameters() if each.requires_grad]
    found = torch.autograd.grad(loss, [each for _, each in named])
    return {name: gradient for (name, _), gradient in zip(named, found, strict=True)}


def test_lora_trains_matrices_of_the_chosen_layers_in_float32(tiny_backbone: Backbone) -> None:
    model = trainable(tiny_backbone, AdapterConfig(rank=4, layers=1))
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    assert all("lora_" in name and ".layers.1." in name for name in trained)
    assert {each.dtype for each in trained.values()} == {torch.float32}
    whole = trainable(tiny_backbone, AdapterConfig(rank=4))
    assert sum(each.requires_grad for each in whole.parameters()) == 2 * len(trained)
    assert not any("lm_head" in name for name in trained)


def test_full_trains_every_weight_and_leaves_the_base_alone(tiny_backbone: Backbone) -> None:
    model = trainable(tiny_backbone, AdapterConfig(kind="full"))
    assert all(each.requires_grad for each in model.parameters())
    assert not any(each.requires_grad for each in tiny_backbone.model.parameters())
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    assert not torch.equal(next(model.parameters()), next(tiny_backbone.model.parameters()))


def test_too_many_layers_are_refused(tiny_backbone: Backbone) -> None:
    with pytest.raises(ConfigError, match=r"adapter\.layers is 3 and the base has 2"):
        trainable(tiny_backbone, AdapterConfig(layers=3))


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_every_run_starts_from_the_same_weights(kind: Any, tiny_backbone: Backbone) -> None:
    first, again = (trainable(tiny_backbone, AdapterConfig(kind=kind)).state_dict() for _ in range(2))
    assert all(torch.equal(first[name], again[name]) for name in first)


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_checkpointing_changes_no_gradient(kind: Any, tiny_backbone: Backbone) -> None:
    kept = trainable(tiny_backbone, AdapterConfig(kind=kind))
    again = checkpointed(trainable(tiny_backbone, AdapterConfig(kind=kind)))
    assert again.is_activation_checkpointing
    for name, gradient in _gradients(again).items():
        torch.testing.assert_close(gradient, _gradients(kept)[name])


def test_dropout_sleeps_in_every_mode(tiny_backbone: Backbone) -> None:
    config = GPT2Config(vocab_size=400, n_positions=32, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    gpt2 = GPT2LMHeadModel(config).eval()
    model = trainable(Backbone(tiny_backbone.tokenizer, 0, 0, model=gpt2), AdapterConfig(kind="full")).train()
    first, second = _gradients(model), _gradients(model)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_rates_of_dropout_that_modules_keep_for_themselves_are_zero(tiny_backbone: Backbone) -> None:
    """OPT calls dropout as a function: where activations are checkpointed, it would draw from torch's generator."""
    config = OPTConfig(
        vocab_size=400, hidden_size=32, ffn_dim=32, num_hidden_layers=1, num_attention_heads=2, word_embed_proj_dim=32,
        max_position_embeddings=64, dropout=0.3, layerdrop=0.5,
    )  # fmt: skip
    opt = OPTForCausalLM(config).eval()
    model = checkpointed(trainable(Backbone(tiny_backbone.tokenizer, 0, 0, model=opt), AdapterConfig(kind="full")))
    first, second = _gradients(model), _gradients(model)
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_the_merged_model_is_an_ordinary_one_that_computes_the_same(
    kind: Any, tiny_backbone: Backbone, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    model = trainable(tiny_backbone, AdapterConfig(kind=kind, rank=4))
    with torch.no_grad():
        for each in model.parameters():
            if each.requires_grad:
                each.add_(torch.randn(each.shape, generator=torch.Generator().manual_seed(2)) * 0.02)
    save_model(merged(model, tiny_backbone), tiny_backbone.tokenizer, tmp_path / "model", "r", "Trained in a test.")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    with torch.no_grad():
        ours, theirs = model(input_ids=IDS).logits, loaded(input_ids=IDS).logits
        base = tiny_backbone.model(input_ids=IDS).logits
    torch.testing.assert_close(theirs, ours, rtol=1e-3, atol=1e-3)
    assert not torch.allclose(theirs, base, atol=1e-2)
