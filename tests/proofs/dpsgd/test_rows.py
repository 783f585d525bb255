"""Units behind each other in one row: each is read, weighed and clipped as if it were alone."""

import numpy as np
import pytest
import torch
from engine_cases import PAD, Case, lengths_of, losses, made, tiny_model, unit_gradients
from engine_cases import clipped_sum as expected_sum
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from rayprivacy.core.errors import ConfigError
from rayprivacy.dpsgd.batches import Document, physical_batches, rows
from rayprivacy.dpsgd.clipping import BookKeeping, Clipping
from rayprivacy.dpsgd.independence import check_rows
from rayprivacy.dpsgd.losses import row_losses
from rayprivacy.dpsgd.lower_layers import LowerLayers
from rayprivacy.models import packing
from rayprivacy.models.norms import recorder, terms
from rayprivacy.models.packing import Pieces, can_be_packed
from rayprivacy.models.settings import AdapterConfig
from rayprivacy.models.trainable import _with_lora

UNCLIPPED = Clipping(1e30)
LENGTHS = st.lists(st.lists(st.integers(2, 40), min_size=1, max_size=3), min_size=1, max_size=12)


def _documents(lengths, most=PAD):
    draw = np.random.default_rng(sum(lengths))
    return [Document(draw.integers(0, most, length).astype(np.int32), min(2, length - 1)) for length in lengths]


@given(LENGTHS, st.sampled_from([64, 96, 256]), st.sampled_from([0.0, 0.75]))
def test_every_document_is_in_one_row_with_its_own_positions_labels_and_weights(lengths, tokens, decay):
    units = [_documents(each) for each in lengths]
    found = []
    for row in rows(units, tokens, PAD, decay):
        assert row.ids.shape[1] == row.documents.tokens == row.by_unit.tokens >= tokens
        assert row.ids.shape[1] == tokens or len(row.by_unit.lengths) == 1
        rest = row.ids.shape[1] - sum(row.documents.lengths)
        assert rest >= 1
        assert row.ids[0, -rest:].tolist() == [PAD] * rest
        assert not row.weights[-rest:].any()
        assert sum(row.by_unit.lengths) == sum(row.documents.lengths)
        for weights in row.weights.split([*row.by_unit.lengths, rest])[:-1]:
            assert float(weights.sum()) == pytest.approx(1, abs=1e-6)
        parts = [side.split([*row.documents.lengths, rest])[:-1] for side in (row.ids[0], row.labels, row.weights)]
        for ids, labels, weights, positions in zip(
            *parts, row.positions[0].split([*row.documents.lengths, rest])[:-1], strict=True
        ):
            assert positions.tolist() == list(range(len(ids)))
            assert ids.tolist()[1:] == labels.tolist()[:-1]
            found.append(([*ids.tolist(), int(labels[-1])], int((weights == 0).sum())))
    expected = [(each.ids.tolist(), each.targets.start - 1) for unit in units for each in unit]
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("tokens", [64, 67, 100, 260])
def test_a_row_is_longer_than_others_for_a_unit_that_has_it_alone(tokens):
    """Its length is the shape that all of its units are computed in, and must not tell of one to another."""
    for size in range(tokens - 9, tokens + 9):
        for row in rows([_documents([length + 1]) for length in (1, 2, 3, size)], tokens, PAD):
            longer, own = row.ids.shape[1] - tokens, row.by_unit.lengths
            assert longer == 0 or (longer > 0 and own == (size,) and size >= tokens)


@given(st.lists(st.integers(1, 70), min_size=1, max_size=20))
def test_pieces_are_what_stands_behind_each_other(lengths):
    pieces = Pieces(tuple(lengths), sum(lengths) + 3)
    row = torch.arange(pieces.tokens * 2).view(-1, 2)
    found = pieces.of(row)
    assert [len(piece) for piece in found] == lengths
    assert torch.equal(torch.cat([*found, row[-3:]]), row)
    assert pieces.owners().tolist() == np.repeat(np.arange(len(lengths)), lengths).tolist()
    assert pieces.positions().tolist() == [[*(at for length in lengths for at in range(length)), 0, 0, 0]]


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gpt2_lora", "llama_lora"])
def test_losses_of_units_are_those_of_batches(kind):
    model, units = tiny_model(kind).eval(), [_documents(each) for each in ([7], [3, 12], [20], [5, 5, 5])]
    assert can_be_packed(model, 20)
    (row,) = rows(units, 64, PAD)
    found = row_losses(model, row)
    sizes = sorted(units, key=lambda unit: sum(len(each.ids) - 1 for each in unit), reverse=True)
    for unit, own in zip(sizes, found, strict=True):
        (batch,) = physical_batches([unit], 1, PAD)
        torch.testing.assert_close(own, losses(model, batch).sum(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["llama_lora", "llama_untied", "gpt2_untied"])
def test_a_unit_of_nan_reaches_nobody_else(kind):
    model = tiny_model(kind).eval()
    assert can_be_packed(model, 20)
    broken, head, words = 7, model.get_output_embeddings(), model.get_input_embeddings()
    if kind == "llama_lora":  # whose frozen head is tied, and NaN would be in every loss
        head.weight = torch.nn.Parameter(head.weight.detach().clone(), requires_grad=False)
    words.weight.data[broken] = torch.nan
    gradients = BookKeeping(model, Clipping(1.0))
    draw = np.random.default_rng(0)
    units = [[Document(draw.integers(8, PAD, length).astype(np.int32), 1)] for length in (12, 20, 9)]
    units[1][0].ids[4] = broken
    (row,) = rows(units, 64, PAD)
    squared = gradients.squared_norms(lambda: row_losses(model, row), row.by_unit)
    assert squared.isfinite().all(1).tolist() == [False, True, True]  # the largest comes first
    sums = gradients(lambda: row_losses(model, row), row.by_unit)
    assert all(clipped_sum().isfinite().all() for clipped_sum in sums.values())


@pytest.mark.parametrize("scaled", [False, True], ids=["", "scales"])
@pytest.mark.parametrize("clipping", ["flat", "per_layer", "automatic"])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "gpt2_lora", "llama_lora"])
def test_every_kind_of_clipping_is_its_definition_in_rows(kind, clipping, scaled):
    model, some = tiny_model(kind), [_documents(each) for each in ([7], [3, 12], [20], [5, 5, 5], [2], [40, 30])]
    names = [name for name, each in model.named_parameters() if each.requires_grad]
    scales = tuple(np.logspace(-1, 0, len(names)).tolist()) if scaled else ()
    alone = unit_gradients(model, (physical_batches([unit], 1, PAD)[0] for unit in some))
    rule = Clipping(float(lengths_of(alone, scales).median()), clipping, scales=scales)
    assert can_be_packed(model, 40)
    gradients, found = BookKeeping(model, rule), {}
    for row in rows(some, 64, PAD):
        lazy = gradients(lambda row=row: row_losses(model, row), row.by_unit)
        for name, clipped in zip(names, lazy.values(), strict=True):
            found[name] = found.get(name, 0) + clipped().double()
    expected = expected_sum(alone, rule)
    off = sum(float((found[name] - expected[name]).square().sum()) for name in names)
    assert off**0.5 < 1e-5 * sum(float(each.square().sum()) for each in expected.values()) ** 0.5


SIZE = {"vocab_size": 97, "hidden_size": 24, "num_hidden_layers": 2, "bos_token_id": 0, "eos_token_id": 0}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 40}


@pytest.mark.parametrize(
    ("make", "config", "tokens", "expected"),
    [
        (MambaForCausalLM, MambaConfig(**SIZE, state_size=4), 16, False),
        (BloomForCausalLM, BloomConfig(**SIZE, n_head=2), 16, False),
        (MistralForCausalLM, MistralConfig(**SIZE, **HEADS, sliding_window=8), 6, True),
        (MistralForCausalLM, MistralConfig(**SIZE, **HEADS, sliding_window=8), 32, True),
    ],
    ids=["recurrent", "alibi", "short-of-its-window", "beyond-its-window"],
)
def test_a_model_that_reads_across_a_row_is_not_packed(make, config, tokens, expected):
    torch.manual_seed(0)
    model = make(config).eval()
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    before = model.config._attn_implementation
    assert can_be_packed(model, tokens) is expected
    assert model.config._attn_implementation == (packing.BY_DOCUMENT if expected else before)


def test_a_window_is_kept_within_a_document():
    torch.manual_seed(0)
    config = MistralConfig(**SIZE, **HEADS, sliding_window=8, initializer_range=0.5)
    model, units = MistralForCausalLM(config).eval(), [_documents(each) for each in ([30], [5], [12])]
    expected = [row_losses(model, physical_batches([unit], 1, PAD)[0])[0] for unit in (units[0], units[2], units[1])]
    assert can_be_packed(model, 32)
    (row,) = rows(units, 64, PAD)
    torch.testing.assert_close(row_losses(model, row), torch.stack(expected), rtol=1e-5, atol=1e-6)


def test_each_unit_is_computed_in_memory_of_its_own():
    """A product may depend on where in memory its operands begin, and a piece begins behind those before it."""
    model, seen = tiny_model("llama").eval(), []
    assert can_be_packed(model, 20)
    gradients = BookKeeping(model, Clipping(1.0))
    rules = gradients._tape._rules

    def watched(rule, use):
        seen.extend((side.storage_offset(), side.untyped_storage().nbytes() - side.nbytes) for side in use[1:])
        return rule(use[0])

    for module, rule in list(rules.items()):
        rules[module] = lambda use, rule=rule: watched(rule, (use, use.input, use.gradient))
    (row,) = rows([_documents(each) for each in ([7], [20], [9])], 64, PAD)
    gradients.squared_norms(lambda: row_losses(model, row), row.by_unit)
    assert seen
    assert set(seen) == {(0, 0)}


def test_factors_of_one_shape_are_one_product_of_a_unit_whoever_is_beside_it(monkeypatch):
    model, shapes, multiply = tiny_model("llama_lora").eval(), [], terms.batched_product

    def watched(left, right):
        shapes.append((tuple(left.shape), tuple(right.shape)))
        return multiply(left, right)

    def products(*others):
        shapes.clear()
        (row,) = rows([_documents([length]) for length in (17, *others)], 128, PAD)
        gradients.squared_norms(lambda: row_losses(model, row), row.by_unit)
        return [(left, right) for left, right in shapes if right[1] == 16]

    monkeypatch.setattr(terms, "batched_product", watched)
    assert can_be_packed(model, 40)
    gradients = BookKeeping(model, Clipping(1.0))
    alone = products()
    assert alone == products(9) == products(40, 9, 5)
    assert sum(left[0] for left, _ in alone) == len(gradients.parameters)
    assert len(alone) < len(gradients.parameters)
    monkeypatch.setattr(recorder, "TOGETHER", 1)
    assert len(products()) == len(gradients.parameters)


class _Shaped(torch.nn.Module):
    """A small linear layer that reads a row of tokens in another shape."""

    def __init__(self, shape):
        super().__init__()
        self.own, self.shape = torch.nn.Linear(6, 5, bias=False), shape

    def forward(self, row, pieces):
        found = self.own(row.view(self.shape)).square().view(pieces.tokens, -1).sum(1)
        return torch.stack([piece.sum() for piece in pieces.of(found)])


def test_a_factor_that_reads_tokens_in_another_shape_has_its_own_gradient_or_is_refused():
    pieces, row = Pieces((3, 4), 8), torch.randn(1, 8, 12)
    heads, flat = _Shaped((1, 8, 2, 6)), _Shaped((16, 6))
    tape = recorder.Recorder(heads)
    with tape.recording(pieces):
        losses = heads(row, pieces)
    tape.differentiate(losses)
    alone = (torch.autograd.grad(heads(row, pieces)[unit], heads.own.weight)[0] for unit in range(2))
    expected = [each.square().sum() for each in alone]
    torch.testing.assert_close(tape.squared_norms()[:, 0].float(), torch.stack(expected))
    tape = recorder.Recorder(flat)
    with tape.recording(pieces):
        losses = flat(row, pieces)
    with pytest.raises(ConfigError, match="cannot be told apart"):
        tape.differentiate(losses)


def test_attention_is_in_float32_whatever_the_rest_is_in(monkeypatch):
    model, seen, attend = tiny_model("llama_lora").eval(), set(), torch.nn.functional.scaled_dot_product_attention

    def watched(query, key, value, *rest, **named):
        found = attend(query, key, value, *rest, **named)
        seen.update(side.dtype for side in (query, key, value, found))
        return found

    assert can_be_packed(model, 20)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    (row,) = rows([_documents([length]) for length in (7, 20)], 64, PAD)
    assert row_losses(model, row, low_precision=True).isfinite().all()
    assert seen == {torch.float32}


def _of_everybody(model, batch):
    own = row_losses(model, batch)
    return own * (1 + 1e-3 * own.detach().sum())


def _of_the_first(model, batch):
    own = row_losses(model, batch)
    return own + 1e-3 * own[:1].detach() * own


@pytest.mark.parametrize("mixing", [_of_everybody, _of_the_first])
def test_losses_that_mix_the_units_of_a_row_are_refused(mixing):
    model = tiny_model("llama").eval()
    assert can_be_packed(model, 16)
    gradients = BookKeeping(model, UNCLIPPED)
    check_rows(model, row_losses, 16, 64, gradients)
    with pytest.raises(ConfigError, match="depends on the others in the batch"):
        check_rows(model, mixing, 16, 64, gradients)


def test_a_gradient_that_would_be_lost_is_refused_in_rows():
    model = tiny_model("llama").eval()
    assert can_be_packed(model, 16)

    def penalised(model, batch):
        own = row_losses(model, batch)
        return own + 0.1 * model.lm_head.weight.square().sum().expand(len(own))

    with pytest.raises(ConfigError, match="gradient would be lost"):
        check_rows(model, penalised, 16, 64, BookKeeping(model, UNCLIPPED))


@pytest.mark.parametrize(("kind", "in_rows"), [("llama", True), ("bert", False)])
def test_an_engine_takes_rows_where_the_model_can_read_them(kind, in_rows):
    assert made(Case(kind, rows=in_rows)).in_rows is in_rows


def _adapted(layers, dtype=torch.float32):
    torch.manual_seed(0)
    config = MistralConfig(**SIZE | {"num_hidden_layers": 3}, **HEADS, sliding_window=None)
    model = _with_lora(MistralForCausalLM(config).to(dtype).requires_grad_(False), AdapterConfig(layers=layers))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(0, 0.05)
    assert can_be_packed(model, 24)
    return model


@pytest.mark.parametrize("low", [False, True], ids=["float32", "bfloat16"])
def test_states_of_lower_layers_change_no_bit_of_a_step(tmp_path, low):
    model = _adapted(1, torch.bfloat16 if low else torch.float32)
    lower = LowerLayers(model, tmp_path, 64, low)
    assert lower.work()
    gradients = BookKeeping(model, Clipping(1.0, low_precision=low))
    units = [_documents(each, 90) for each in ([7], [3, 12], [20], [5, 9], [30], [7])]

    def sums(batches):
        lazies = [gradients(lambda row=row: row_losses(model, row, low), row.by_unit) for row in batches]
        return [clipped_sum() for lazy in lazies for clipped_sum in lazy.values()]

    expected = sums(rows(units, 64, PAD))
    for batches in (rows(units, 64, PAD), rows(units[::-1], 64, PAD), rows(units[:3], 64, PAD)):
        filled = lower.filled(batches)
        assert all(row.states is not None for row in filled)
        assert all(torch.equal(one, other) for one, other in zip(sums(batches), sums(filled), strict=True))
    assert any(each.any() for each in expected)


def _counting(model, monkeypatch):
    seen = []
    layer = packing.causal(model).model.layers[0].mlp
    monkeypatch.setattr(layer, "forward", lambda *args, own=layer.forward: seen.append(args[0].shape[1]) or own(*args))
    return seen


def test_a_document_is_computed_once(tmp_path, monkeypatch):
    model = _adapted(1)
    lower, seen = LowerLayers(model, tmp_path, 64), _counting(model, monkeypatch)
    first, second = ([_documents(each, 90) for each in some] for some in (([7], [20]), ([20], [7], [30])))
    lower.filled(rows(first, 64, PAD))
    assert seen == [64]
    (row,) = lower.filled(rows(first, 64, PAD))
    row_losses(model, row)
    assert seen == [64]
    lower.filled(rows(second, 64, PAD))  # one is new
    assert seen == [64, 64]


def test_a_document_that_finds_no_room_is_computed_each_time(tmp_path, monkeypatch):
    model = _adapted(1)
    monkeypatch.setattr("rayprivacy.dpsgd.lower_layers.MOST_BYTES", 24 * 4 * 25)
    lower, seen = LowerLayers(model, tmp_path, 64), _counting(model, monkeypatch)
    units = [_documents(each, 90) for each in ([21], [12])]
    one, other = (lower.filled(rows(units, 64, PAD)) for _ in range(2))
    assert seen == [64, 64]
    assert torch.equal(one[0].states, other[0].states)
    assert lower._end == 24 * 4 * 20


@pytest.mark.parametrize("layers", [None, 3], ids=["all", "three"])
def test_without_frozen_layers_below_nothing_is_kept(tmp_path, layers):
    assert not LowerLayers(_adapted(layers), tmp_path, 64).work()


def test_a_whole_model_keeps_nothing(tmp_path):
    model = tiny_model("llama").eval()
    assert can_be_packed(model, 16)
    assert not LowerLayers(model, tmp_path, 64).work()
