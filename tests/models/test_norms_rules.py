"""Which modules the recorder accepts, and that each rule, used in odd ways, still gives the gradient of each row."""

import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.gemma3.modeling_gemma3 import Gemma3TextScaledWordEmbedding
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from rayprivacy.core.errors import ConfigError
from rayprivacy.models.norms import Recorder

ROWS, TOKENS, WIDTH = 4, 5, 6


class _Reader(nn.Module):
    """An embedding, something in the middle, and one loss per row."""

    def __init__(self, middle: nn.Module, padding: int | None = None) -> None:
        super().__init__()
        self.words = nn.Embedding(11, WIDTH, padding_idx=padding)
        self.middle = middle
        self.last = nn.Linear(WIDTH, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.last(self.middle(self.words(ids))).square().sum((1, 2))


class _Twice(nn.Module):
    """One linear layer that is used twice, with a change in place in between."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, states: Tensor) -> Tensor:
        return self.layer(input=self.layer(states).mul_(0.5))


class _Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
        self.seen: list[weakref.ref[Tensor]] = []
        self.block[2].register_forward_pre_hook(lambda _, inputs: self.seen.append(weakref.ref(inputs[0])))

    def forward(self, states: Tensor) -> Tensor:
        return checkpoint(self.block, states, use_reentrant=False)


MIDDLES: dict[str, Callable[[], nn.Module]] = {
    "linear without bias": lambda: nn.Linear(WIDTH, WIDTH, bias=False),
    "layer norm": lambda: nn.LayerNorm(WIDTH, eps=1e-3),
    "layer norm without bias": lambda: nn.LayerNorm(WIDTH, bias=False),
    "torch rms": lambda: nn.RMSNorm(WIDTH),
    "torch rms with eps": lambda: nn.RMSNorm(WIDTH, eps=1e-2),
    "llama rms": lambda: LlamaRMSNorm(WIDTH),
    "qwen rms": lambda: Qwen3RMSNorm(WIDTH),
    "gemma rms": lambda: GemmaRMSNorm(WIDTH),
    "used twice": _Twice,
    "checkpointed": _Checkpointed,
}


@pytest.mark.parametrize("name", MIDDLES)
@pytest.mark.parametrize("padding", [None, 3])
def test_norms_and_sums_are_those_of_rows_alone(name: str, padding: int | None) -> None:
    torch.manual_seed(3)
    model = _Reader(MIDDLES[name](), padding)
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    ids = torch.randint(0, 5, (ROWS, TOKENS))
    recorder = Recorder(model)
    with recorder.recording():
        losses = model(ids)
    recorder.differentiate(losses)
    assert not any(module._forward_hooks for module in model.modules())
    squared = recorder.squared_norms(1)
    rows = [torch.autograd.grad(model(row[None]).sum(), recorder.parameters) for row in ids]
    expected = torch.stack([torch.stack([part.square().sum() for part in row]) for row in rows])
    torch.testing.assert_close(squared, expected.double(), rtol=1e-4, atol=1e-6)
    coefficients = torch.tensor([1.0, 0.5, 0.0, 2.0])
    sums = recorder.weighted_sums(coefficients)
    for index, parameter in enumerate(recorder.parameters):
        total = torch.stack([row[index] for row in rows]).mul(coefficients.view(-1, *[1] * parameter.dim())).sum(0)
        torch.testing.assert_close(sums[parameter](), total, rtol=1e-4, atol=1e-5, check_dtype=False)


def test_checkpointing_keeps_its_saving_of_memory() -> None:
    """The recorder must not hold inputs that checkpointing would drop and compute again."""
    middle = _Checkpointed()
    model = _Reader(middle)
    recorder = Recorder(model)
    with recorder.recording():
        losses = model(torch.zeros(ROWS, TOKENS, dtype=torch.long))
    assert [reference() for reference in middle.seen] == [None]
    recorder.differentiate(losses)
    assert len(middle.seen) == 2  # it ran again


class _SquaredRMSNorm(LlamaRMSNorm):
    def forward(self, hidden_states: Tensor) -> Tensor:
        return super().forward(hidden_states) ** 2


class _OtherEpsRMSNorm(LlamaRMSNorm):
    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.weight * nn.functional.rms_norm(hidden_states, hidden_states.shape[-1:], eps=1e-3)


class _GatedRMSNorm(LlamaRMSNorm):
    def forward(self, hidden_states: Tensor, gate: Tensor | None = None) -> Tensor:
        states = super().forward(hidden_states)
        return states if gate is None else states * gate


class _Scale(nn.Module):
    pass


def _with(module: nn.Module, name: str) -> nn.Module:
    module.register_parameter(name, nn.Parameter(torch.ones(4)))
    return module


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "a parameter of its own": (lambda: _with(_Scale(), "gain"), "_Scale"),
    "bilinear": (lambda: nn.Bilinear(2, 2, 2), "Bilinear"),
    "convolution": (lambda: nn.Conv2d(1, 1, 1), "Conv2d"),
    "attention with one matrix": (lambda: nn.MultiheadAttention(4, 2), "MultiheadAttention"),
    "embedding that scales": (lambda: Gemma3TextScaledWordEmbedding(5, 4, 0, 2.0), "Gemma3TextScaledWordEmbedding"),
    "embedding with a norm": (lambda: nn.Embedding(5, 4, max_norm=1.0), "Embedding"),
    "embedding by frequency": (lambda: nn.Embedding(5, 4, scale_grad_by_freq=True), "Embedding"),
    "sparse embedding": (lambda: nn.Embedding(5, 4, sparse=True), "Embedding"),
    "layer norm of two axes": (lambda: nn.LayerNorm([2, 3]), "LayerNorm"),
    "squared norm": (lambda: _SquaredRMSNorm(4), "_SquaredRMSNorm"),
    "norm of another eps": (lambda: _OtherEpsRMSNorm(4), "_OtherEpsRMSNorm"),
    "norm with a bias": (lambda: _with(LlamaRMSNorm(4), "bias"), "LlamaRMSNorm"),
    "batch norm": (lambda: nn.BatchNorm1d(4, affine=False), "batch normalisation"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_rule_is_refused_by_kind(name: str) -> None:
    make, kind = REFUSED[name]
    with pytest.raises(ConfigError, match=kind):
        Recorder(nn.Sequential(nn.Linear(4, 4), make()))
    if kind != "batch normalisation":
        assert len(Recorder(nn.Sequential(nn.Linear(4, 4), make().requires_grad_(False))).parameters) == 2


def test_a_gate_is_refused_when_it_is_used() -> None:
    norm = _GatedRMSNorm(WIDTH)
    recorder = Recorder(norm)
    with pytest.raises(ConfigError, match="2 inputs"), recorder.recording():
        norm(torch.ones(2, 3, WIDTH), torch.ones(2, 3, WIDTH))


def test_an_axis_that_is_no_longer_the_rows_is_refused() -> None:
    model = nn.Sequential(nn.Flatten(0, 1), nn.Linear(WIDTH, 1), nn.Unflatten(0, (ROWS, TOKENS)))
    recorder = Recorder(model)
    with recorder.recording():
        losses = model(torch.ones(ROWS, TOKENS, WIDTH)).sum((1, 2))
    with pytest.raises(ConfigError, match="shape \\[20, 1\\] for 4 rows"):
        recorder.differentiate(losses)
