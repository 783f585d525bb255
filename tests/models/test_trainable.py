"""What of the base is trained, and that training never depends on chance or on how activations are kept."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from rayprivacy.core.errors import ConfigError
from rayprivacy.dpsgd import worker
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.save import save_model
from rayprivacy.models.settings import AdapterConfig
from rayprivacy.models.trainable import checkpointed, merged, repeatable, trainable

IDS = torch.randint(0, 300, (3, 12), generator=torch.Generator().manual_seed(1))


def _gradients(model: Any) -> dict[str, torch.Tensor]:
    logits = model(input_ids=IDS, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), IDS[:, 1:].flatten())
    named = {name: each for name, each in model.named_parameters() if each.requires_grad}
    found = torch.autograd.grad(loss, [*named.values()], allow_unused=True)
    return {name: gradient for name, gradient in zip(named, found, strict=True) if gradient is not None}


def test_lora_trains_matrices_of_the_chosen_layers_from_one_start(tiny_backbone: Backbone) -> None:
    model = trainable(tiny_backbone, AdapterConfig(rank=4, layers=1))
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    assert all("lora_" in name and ".layers.1." in name for name in trained)
    assert {each.dtype for each in trained.values()} == {torch.float32}
    whole = trainable(tiny_backbone, AdapterConfig(rank=4))
    assert sum(each.requires_grad for each in whole.parameters()) == 2 * len(trained)
    again = trainable(tiny_backbone, AdapterConfig(rank=4)).state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in whole.state_dict().items())
    assert not any("lm_head" in name for name in trained)
    with pytest.raises(ConfigError, match=r"adapter\.layers is 3 and the base has 2"):
        trainable(tiny_backbone, AdapterConfig(layers=3))


def test_full_trains_every_weight_and_leaves_the_base_alone(tiny_backbone: Backbone) -> None:
    model = trainable(tiny_backbone, AdapterConfig(kind="full"))
    assert all(each.requires_grad for each in model.parameters())
    assert not any(each.requires_grad for each in tiny_backbone.model.parameters())
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    assert not torch.equal(next(model.parameters()), next(tiny_backbone.model.parameters()))


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_checkpointing_changes_no_gradient(kind: Any, tiny_backbone: Backbone) -> None:
    kept = trainable(tiny_backbone, AdapterConfig(kind=kind))
    again = checkpointed(trainable(tiny_backbone, AdapterConfig(kind=kind)))
    calls: list[Any] = []
    for model in (kept, again):
        attention = next(each for name, each in model.named_modules() if name.endswith("self_attn"))
        attention.register_forward_hook(lambda module, *_: calls.append(module))
    expected, found = _gradients(kept), _gradients(again)
    assert [len({*calls}), len(calls)] == [2, 3], "the first layer's attention is computed twice for one gradient"
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name])


SIZE = {"vocab_size": 320, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "bos_token_id": 0}
COMMON = ("gpt2", "opt", "falcon", "persimmon", "llama", "mistral", "qwen3", "gemma3_text", "bert", "gpt_neox")
OTHERS = (
    "gpt_neo", "gptj", "bloom", "phi", "phi3", "stablelm", "qwen2", "gemma", "gemma2", "cohere", "olmo", "olmo2",
    "granite", "starcoder2", "glm", "helium", "smollm3", "xglm", "biogpt", "codegen",
)  # fmt: skip


def _with_rates(family: str) -> Any:
    """A tiny model of a family with every rate of its config at 0.5."""
    config = CONFIG_MAPPING[family]()
    shape = SIZE | {"intermediate_size": 64, "num_key_value_heads": 4, "head_dim": 8, "eos_token_id": 0, "d_model": 32}
    shape |= {"max_position_embeddings": 64, "pad_token_id": 0, "ffn_dim": 64, "decoder_layers": 2, "dff": 64}
    shape |= {"decoder_attention_heads": 4, "num_decoder_layers": 2, "decoder_ffn_dim": 64, "word_embed_proj_dim": 32}
    shape |= {"num_decoder_attention_heads": 4, "attention_types": [[["global"], 2]], "rotary_dim": 4}
    rates = {name: 0.5 for name, value in vars(config).items() if "drop" in name and isinstance(value, (int, float))}
    known = {*vars(config), *config.attribute_map}
    given = {name: value for name, value in (shape | rates | {"is_decoder": True}).items() if name in known}
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(CONFIG_MAPPING[family](**given), attn_implementation="eager").eval()


@pytest.mark.parametrize("family", [*COMMON, *(pytest.param(each, marks=pytest.mark.exhaustive) for each in OTHERS)])
def test_no_rate_of_any_family_draws_in_any_mode(family: str, tiny_backbone: Backbone) -> None:
    """Some call dropout as a function, some read their config in the forward pass, some leave out layers."""
    base = _with_rates(family)
    asleep, awake = _logits(base), _logits(base.train())
    assert family in ("llama", "gemma3_text") or not torch.equal(asleep, awake), "the family has rates that are seen"
    for way in ("as it is", "in training mode", "checkpointed"):
        model = trainable(Backbone(tiny_backbone.tokenizer, 0, 0, model=base.eval()), AdapterConfig(kind="full"))
        model = checkpointed(model) if way == "checkpointed" else model.train(way == "in training mode")
        torch.manual_seed(1)
        first = _gradients(model)
        torch.manual_seed(2)
        second = _gradients(model)
        assert first
        assert all(torch.equal(first[name], second[name]) for name in first), way


def _logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=IDS, use_cache=False).logits
    return found


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_the_merged_model_is_an_ordinary_one_that_computes_the_same(
    kind: Any, tiny_backbone: Backbone, tmp_path: Path
) -> None:
    model = trainable(tiny_backbone, AdapterConfig(kind=kind, rank=4))
    with torch.no_grad():
        for each in model.parameters():
            if each.requires_grad:
                each.add_(torch.randn(each.shape, generator=torch.Generator().manual_seed(2)) * 0.02)
    save_model(merged(model, tiny_backbone), tiny_backbone.tokenizer, tmp_path / "model", "r", "Trained in a test.")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    ours, theirs, base = map(_logits, (model, loaded, tiny_backbone.model))
    torch.testing.assert_close(theirs, ours, rtol=1e-3, atol=1e-3)
    assert not torch.allclose(theirs, base, atol=1e-2)


@pytest.fixture
def no_gpu_yet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("no_gpu_yet")
def test_only_a_gpu_is_held_and_before_the_model_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cpu", "cuda"):
        assert repeatable(torch.device(name)) == torch.device(name)
        assert torch.are_deterministic_algorithms_enabled() is (name == "cuda")
    torch.use_deterministic_algorithms(False)

    def moved(_device: torch.device) -> None:
        raise InterruptedError("the model is moved to its device")

    monkeypatch.setattr(worker, "get_device", lambda: torch.device("cuda"))
    monkeypatch.setattr(worker, "trainable", lambda *_: SimpleNamespace(to=moved))
    job: Any = SimpleNamespace(model=SimpleNamespace(dtype="float32"), adapter=None)
    unused: Any = None
    with pytest.raises(InterruptedError):
        worker._engine(job, unused, unused, unused)
    assert torch.are_deterministic_algorithms_enabled()
