"""Norms and sums of units' gradients, by the rule of each module, are those of the gradients themselves."""

import functools
import itertools
import math
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.models.bart.modeling_bart import BartScaledWordEmbedding
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.gemma2.modeling_gemma2 import Gemma2TextScaledWordEmbedding
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.opt.modeling_opt import OPTLearnedPositionalEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from rayprivacy.core.errors import ConfigError
from rayprivacy.dpsgd.clipping import Clipping
from rayprivacy.models.norms import Recorder, terms
from rayprivacy.models.norms.parameter import ParameterGradient, weighted_sum
from rayprivacy.models.norms.rules import factor_of
from rayprivacy.models.norms.terms import Dense, Outer, Rows, Weights

ROWS, TOKENS, STATES = 4, 5, 6


class _Reader(nn.Module):
    """An embedding, something in the middle, and one loss per row."""

    def __init__(self, middle, padding=None, words=None):
        super().__init__()
        self.words = words or nn.Embedding(11, STATES, padding_idx=padding)
        self.middle = middle
        self.last = nn.Linear(STATES, 3)

    def forward(self, ids):
        return self.last(self.middle(self.words(ids))).square().sum((1, 2))


class _Twice(nn.Module):
    """One linear layer that is used twice, with a change in place in between."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(STATES, STATES)

    def forward(self, states):
        return self.layer(input=self.layer(states).mul_(0.5))


class _Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(STATES, STATES), nn.Tanh(), nn.Linear(STATES, STATES))
        self.seen: list[weakref.ref[Tensor]] = []
        self.block[2].register_forward_pre_hook(lambda _, inputs: self.seen.append(weakref.ref(inputs[0])))

    def forward(self, states):
        return checkpoint(self.block, states, use_reentrant=False)


class _OfHeads(nn.Module):
    """A norm of the states of heads, which lie across each other in memory (Gemma 3)."""

    def __init__(self):
        super().__init__()
        self.norm = LlamaRMSNorm(STATES // 2)

    def forward(self, states):
        heads = states.unflatten(-1, (2, -1)).transpose(1, 2)
        return self.norm(heads).transpose(1, 2).flatten(2)


MIDDLES: dict[str, Callable[[], nn.Module]] = {
    "linear without bias": lambda: nn.Linear(STATES, STATES, bias=False),
    "layer norm": lambda: nn.LayerNorm(STATES, eps=1e-3),
    "layer norm without bias": lambda: nn.LayerNorm(STATES, bias=False),
    "torch rms": lambda: nn.RMSNorm(STATES),
    "torch rms with eps": lambda: nn.RMSNorm(STATES, eps=1e-2),
    "llama rms": lambda: LlamaRMSNorm(STATES),
    "qwen rms": lambda: Qwen3RMSNorm(STATES),
    "gemma rms": lambda: GemmaRMSNorm(STATES),
    "rms of heads": _OfHeads,
    "used twice": _Twice,
    "checkpointed": _Checkpointed,
}


@pytest.mark.parametrize("name", MIDDLES)
@pytest.mark.parametrize("padding", [None, 3])
def test_norms_and_sums_are_those_of_rows_alone(name, padding):
    torch.manual_seed(3)
    _compare_with_rows_alone(_Reader(MIDDLES[name](), padding))


@pytest.mark.parametrize("kind", [Gemma2TextScaledWordEmbedding, BartScaledWordEmbedding])
@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize("tied", [True, False])
def test_an_embedding_that_scales_has_a_rule_also_beside_a_tied_head(kind, padding, tied):
    torch.manual_seed(3)
    model = _Reader(nn.Identity(), words=kind(11, STATES, padding, 3.3))
    model.last = nn.Linear(STATES, 11, bias=False)
    if tied:
        model.last.weight = model.words.weight
    _compare_with_rows_alone(model)
    exact = model.bfloat16()
    assert factor_of(exact.words) == torch.tensor(3.3).bfloat16().item()


def _compare_with_rows_alone(model):
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    ids = torch.randint(0, 5, (ROWS, TOKENS))
    recorder = Recorder(model)
    with recorder.recording(1):
        losses = model(ids)
    recorder.differentiate(losses)
    assert not any(module._forward_hooks for module in model.modules())
    squared = recorder.squared_norms()
    rows = [torch.autograd.grad(model(row[None]).sum(), recorder.parameters) for row in ids]
    expected = torch.stack([torch.stack([part.square().sum() for part in row]) for row in rows])
    torch.testing.assert_close(squared, expected.double(), rtol=1e-4, atol=1e-6)
    coefficients = torch.tensor([1.0, 0.5, 0.0, 2.0])
    sums = recorder.weighted_sums(coefficients)
    for index, parameter in enumerate(recorder.parameters):
        total = torch.stack([row[index] for row in rows]).mul(coefficients.view(-1, *[1] * parameter.dim())).sum(0)
        torch.testing.assert_close(sums[parameter](), total, rtol=1e-4, atol=1e-5, check_dtype=False)


def test_checkpointing_keeps_its_saving_of_memory():
    """The recorder must not hold inputs that checkpointing would drop and compute again."""
    middle = _Checkpointed()
    model = _Reader(middle)
    recorder = Recorder(model)
    with recorder.recording(1):
        losses = model(torch.zeros(ROWS, TOKENS, dtype=torch.long))
    assert [reference() for reference in middle.seen] == [None]
    recorder.differentiate(losses)
    assert len(middle.seen) == 2  # it ran again


class _SquaredRMSNorm(LlamaRMSNorm):
    def forward(self, hidden_states):
        return super().forward(hidden_states) ** 2


class _OtherEpsRMSNorm(LlamaRMSNorm):
    def forward(self, hidden_states):
        return self.weight * nn.functional.rms_norm(hidden_states, hidden_states.shape[-1:], eps=1e-3)


class _GatedRMSNorm(LlamaRMSNorm):
    def forward(self, hidden_states, gate=None):
        states = super().forward(hidden_states)
        return states if gate is None else states * gate


class _NormedEmbedding(nn.Embedding):
    def forward(self, ids):
        return nn.functional.normalize(super().forward(ids), dim=-1)


class _Capped(nn.Embedding):
    def forward(self, ids):
        return super().forward(ids).clamp(max=50)


class _Scale(nn.Module):
    pass


class _Tied(nn.Module):
    """An embedding of some kind, whose weights are those of a plain linear layer too."""

    def __init__(self, words):
        super().__init__()
        self.words = words
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = words.weight


class _Holds(nn.Module):
    """Like BERT's head: holds the bias of a layer, which is a part of it, and computes nothing with it."""

    def __init__(self, decoder):
        super().__init__()
        self.decoder, self.bias = decoder, decoder.bias


def _beside(decoder):
    """Somebody who is no part of what holds the layer may compute with its weights."""
    other = _Scale()
    other.weight = decoder.weight
    return nn.Sequential(_Holds(decoder), other)


def _with(module, name):
    module.register_parameter(name, nn.Parameter(torch.ones(4)))
    return module


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "a parameter of its own": (lambda: _with(_Scale(), "gain"), "_Scale"),
    "bilinear": (lambda: nn.Bilinear(2, 2, 2), "Bilinear"),
    "convolution": (lambda: nn.Conv2d(1, 1, 1), "Conv2d"),
    "attention with one matrix": (lambda: nn.MultiheadAttention(4, 2), "MultiheadAttention"),
    "embedding with a norm behind": (lambda: _NormedEmbedding(5, 4), "_NormedEmbedding"),
    "embedding of positions": (lambda: OPTLearnedPositionalEmbedding(5, 4), "OPTLearnedPositionalEmbedding"),
    "embedding that caps": (lambda: _Capped(5, 4), "_Capped"),
    "embedding beside a tied head": (lambda: _Tied(_NormedEmbedding(5, 4)), "_NormedEmbedding"),
    "weights that are held elsewhere": (lambda: _beside(nn.Linear(4, 5)), "_Scale"),
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
def test_what_has_no_rule_is_refused_by_kind(name):
    make, kind = REFUSED[name]
    with pytest.raises(ConfigError, match=kind):
        Recorder(nn.Sequential(nn.Linear(4, 4), make()))
    if kind != "batch normalisation":
        assert len(Recorder(nn.Sequential(nn.Linear(4, 4), make().requires_grad_(False))).parameters) == 2


def test_a_module_may_hold_parameters_of_a_part_that_has_a_rule():
    assert len(Recorder(_Holds(nn.Linear(4, 5))).parameters) == 2


def test_a_gate_and_an_axis_that_is_no_longer_the_rows_are_refused():
    model = nn.Sequential(nn.Flatten(0, 1), nn.Linear(STATES, 1), nn.Unflatten(0, (ROWS, TOKENS)))
    recorder = Recorder(model)
    with recorder.recording(1):
        losses = model(torch.ones(ROWS, TOKENS, STATES)).sum((1, 2))
    with pytest.raises(ConfigError, match="shape \\[20, 1\\] for 4 rows"):
        recorder.differentiate(losses)
    norm = _GatedRMSNorm(STATES)
    recorder = Recorder(norm)
    with pytest.raises(ConfigError, match="2 inputs"), recorder.recording(1):
        norm(torch.ones(2, 3, STATES), torch.ones(2, 3, STATES))


UNITS, VOCABULARY, WIDTH = 5, 23, 7


def _normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _outer(positions, seed):
    left, right = _normal(UNITS, positions, VOCABULARY, seed=seed), _normal(UNITS, positions, WIDTH, seed=seed + 1)
    return Outer(left, right), torch.einsum("usn,usm->unm", left.double(), right.double())


def _rows(positions, seed):
    ids = torch.randint(0, 6, (UNITS, positions), generator=torch.Generator().manual_seed(seed))
    right = _normal(UNITS, positions, WIDTH, seed=seed)
    one_hot = torch.nn.functional.one_hot(ids, VOCABULARY).double()
    term = Rows(ids, right, torch.Size([VOCABULARY, WIDTH]))
    return term, torch.einsum("usn,usm->unm", one_hot, right.double())


def _dense(_, seed):
    values = _normal(UNITS, VOCABULARY, WIDTH, seed=seed)
    return Dense(values), values.double()


MAKERS = {"outer": _outer, "rows": _rows, "dense": _dense}
MIXTURES = [(kind,) for kind in MAKERS] + [*itertools.combinations_with_replacement(MAKERS, 2)]
MIXTURES += [("outer", "outer", "rows", "rows")]


# Few positions: Gram matrices; many: the gradients themselves; 12: only the rows of a unit together are long enough.
@pytest.mark.parametrize(("positions", "rows_per_unit"), [(2, 1), (40, 1), (2, UNITS), (12, UNITS)])
@pytest.mark.parametrize("mixture", MIXTURES, ids="+".join)
def test_terms_of_one_parameter_add_up(mixture, positions, rows_per_unit):
    pairs = [MAKERS[kind](positions, seed) for seed, kind in enumerate(mixture, 10)]
    expected = torch.stack([gradient for _, gradient in pairs]).sum(0).unflatten(0, (-1, rows_per_unit)).sum(1)
    gradient = ParameterGradient.of([term for term, _ in pairs], rows_per_unit)
    torch.testing.assert_close(gradient.squared().double(), expected.square().sum((1, 2)), rtol=1e-5, atol=0)
    coefficients = torch.tensor([0.5, 0.0, 2.0, 1e-3, 1.0])[: len(expected)]
    expected_sum = torch.einsum("u,unm->nm", coefficients.double(), expected)
    found = weighted_sum([gradient], [Weights.of(coefficients)])
    torch.testing.assert_close(found.double(), expected_sum, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mixture", MIXTURES, ids="+".join)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_unit_has_a_bad_norm_and_leaves_the_sum_alone(mixture, bad):
    terms = [MAKERS[kind](3, seed)[0] for seed, kind in enumerate(mixture, 10)]
    for term in terms:
        (term.values if isinstance(term, Dense) else term.right)[1] = bad
    gradient = ParameterGradient.of(terms, 1)
    finite = gradient.squared().isfinite()
    assert finite.tolist() == [True, False, True, True, True]
    assert weighted_sum([gradient], [Weights.of(finite.float())]).isfinite().all()


@pytest.fixture(params=["on a CPU", "as on a GPU"])
def device(request, monkeypatch):
    """Products as this processor makes them, or of operands rounded to the lower dtype, as a GPU makes them."""

    def low(left, right):
        return next((side.dtype for side in (left, right) if side.dtype != torch.float32), None)

    def product(left, right):
        dtype = low(left, right) or torch.float32
        return torch.mm(left.to(dtype).float(), right.to(dtype).float())

    if request.param == "as on a GPU":
        monkeypatch.setattr(terms, "EXACT", frozenset())
        monkeypatch.setattr(terms, "operand_dtype", low)
        monkeypatch.setattr("rayprivacy.models.norms.parameter.product", product)
        monkeypatch.setattr(terms, "batched_product", lambda left, right: torch.bmm(left.float(), right.float()))
    return request.param


@pytest.mark.parametrize("scale", [1e10, 1e19, 1e20, 1e21, 1e25])
def test_a_tied_weight_whose_products_overflow_below_zero_is_no_short_one(scale, device):
    """Its head and its embedding point away from each other, so that their inner product is minus infinity."""
    head = Outer(torch.full((1, 40, 50), -0.1), torch.full((1, 40, 64), 1e18))
    rows = Rows(torch.zeros(1, 40, dtype=torch.int64), torch.full((1, 40, 64), scale), torch.Size([50, 64]))
    gradient = ParameterGradient(None, head.by_unit(1), rows.by_unit(1))
    norm = gradient.squared().sqrt().item()
    whole = weighted_sum([gradient], [Weights.of(torch.ones(1))]).double().norm().item()
    assert not math.isfinite(norm) or norm >= whole * (1 - 1e-5)
    assert math.isfinite(norm) is (scale < 1e19 or device == "on a CPU")


def _alike(units, width):
    """Two positions whose columns are alike, as those of a softmax that knows nothing: sums are rounded one way."""
    sizes = torch.rand(units, 1, 1, generator=torch.Generator().manual_seed(1)) + 0.5
    return sizes.expand(units, 1, width), torch.ones(units, 1, width)


def _mixed(units, width):
    return _normal(units, 1, width, seed=1), _normal(units, 1, width, seed=3)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(
    ("columns", "units", "width"), [(_mixed, 2000, 64), (_alike, 2000, 384), (_alike, 100, 8192), (_mixed, 20, 50_000)]
)
def test_positions_that_cancel_do_not_make_a_norm_too_small(columns, units, width):
    """Two positions of opposite gradients, thousands of times longer than their sum: a Gram sum is mostly rounding."""
    (left, change), right = columns(units, width), _normal(units, 1, 256, seed=2)
    nearly = -left * (1 + torch.logspace(-5, -2, units)[:, None, None] * change)
    outer = Outer(torch.cat([left, nearly], 1), torch.cat([right, right], 1))
    assert not outer.short
    true = (outer.left.double().sum(1).norm(dim=1) * right[:, 0].double().norm(dim=1)).square()
    found = ParameterGradient.of([outer], 1).squared().double()
    assert (found >= true * (1 - 1e-5)).all()


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(("small", "large"), [(2e-23, 1e18), (1e17, 2e-23), (2e-28, 1e18)])
def test_products_that_are_zero_in_float32_do_not_make_a_norm_zero(small, large):
    outer = Outer(torch.full((1, 100, 4096), small), torch.full((1, 100, 256), large))
    assert not outer.short
    true = 100 * small * large * math.sqrt(4096 * 256)
    assert ParameterGradient.of([outer], 1).squared().sqrt().item() >= true * (1 - 1e-5)
    padding = Outer(0 * outer.left, outer.right)
    assert not ParameterGradient.of([padding], 1).squared().any(), "of whom nothing is clipped"


def test_low_precision_operands_are_summed_in_float32():
    assert isinstance(ParameterGradient.of([_outer(40, 0)[0]], 1).dense, Dense), "small for its length"
    left, right = _normal(UNITS, 3, VOCABULARY).bfloat16(), _normal(UNITS, 3, WIDTH, seed=1).bfloat16()
    expected = torch.einsum("usn,usm->unm", left.double(), right.double())
    gradient = ParameterGradient.of([Outer(left, right)], 1)
    torch.testing.assert_close(gradient.squared().double(), expected.square().sum((1, 2)), rtol=1e-5, atol=0)
    total = weighted_sum([gradient], [Weights.of(torch.ones(UNITS))])
    assert total.dtype == torch.float32
    torch.testing.assert_close(total.double(), expected.sum(0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["flat", "per_layer", "automatic"])
def test_no_coefficient_is_rounded_up_to_more_than_the_norm(kind):
    """Numbers below 1e-38 have few digits in float32, and may be rounded up by a tenth."""
    norms = torch.logspace(-9, 46, 2000, dtype=torch.float64)
    coefficients = Clipping(1.0, kind).coefficients(norms[:, None].square()).flatten()
    assert (coefficients.double() * norms <= 1).all()
    assert (coefficients > 0).sum() > 1600


@pytest.mark.parametrize("chosen", ["high", "medium"])
def test_products_are_of_float32_whatever_the_process_has_set(chosen, monkeypatch):
    """TensorFloat32, which containers and losses set, would round operands after the norm was taken."""
    seen = []

    def watched(real, *args, **named):
        seen.append(torch.get_float32_matmul_precision())
        return real(*args, **named)

    for name in ("mm", "bmm"):
        monkeypatch.setattr(torch, name, functools.partial(watched, getattr(torch, name)))
    before = torch.get_float32_matmul_precision()
    try:
        for make in (lambda each: terms.product(each[0], each[0].T), lambda each: terms.batched_product(each, each.mT)):
            torch.set_float32_matmul_precision(chosen)
            make(torch.ones(1, 2, 2))
    finally:
        torch.set_float32_matmul_precision(before)
    assert set(seen) == {"highest"}


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("kind", ["flat", "per_layer", "automatic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_no_unit_is_longer_than_the_norm_when_its_positions_cancel(dtype, kind, monkeypatch):
    """Two positions that nearly cancel, whose operands are rounded after the norm has been taken, all the same way."""
    monkeypatch.setattr(terms, "COLUMNS", 16)  # the margin of 256 is as large as what is rounded here
    longest = 0.0
    for size in range(100, 228, 4):
        left = torch.tensor([size, 1.0 - size])[None, :, None].expand(1, 2, 256) / 128
        right = _normal(1, 1, 384, seed=size).expand(1, 2, 384)
        gradient = ParameterGradient.of([Outer(left.to(dtype), right.to(dtype))], 1)
        assert isinstance(gradient.outer, Outer)
        coefficients = Clipping(1.0, kind, low_precision=False).coefficients(gradient.squared()[:, None])
        weights = Weights.of(coefficients.flatten())
        longest = max(longest, weighted_sum([gradient], [weights]).double().norm().item())
    assert 0 < longest <= 1
