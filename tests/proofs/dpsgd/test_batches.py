"""Sampled units as padded rectangles, complete and without influence on each other; the loss of a row is its own."""

import math
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.keys import Key
from rayprivacy.dpsgd import losses
from rayprivacy.dpsgd.batches import Batch, Document, dummy_batch, physical_batches
from rayprivacy.dpsgd.batches import rows as cut_into_rows
from rayprivacy.dpsgd.sampler import PoissonSampler, Unit, unit_tag
from rayprivacy.dpsgd.settings import DpSgdConfig, EngineConfig
from rayprivacy.dpsgd.worker import _Worker
from rayprivacy.models.settings import AdapterConfig
from rayprivacy.models.trainable import trainable

PAD, KEY = 7, Key.for_tests()
Rows = list[tuple[list[int], list[float]]]  # token ids and weights
Units = list[list[Document]]


@st.composite
def _documents(draw):
    tokens = draw(st.integers(2, 40))
    ids = np.array(draw(st.lists(st.integers(0, 9), min_size=tokens, max_size=tokens)), dtype=np.int32)
    return Document(ids, draw(st.integers(0, tokens - 1)))


_units = st.lists(st.lists(_documents(), min_size=1, max_size=4), max_size=12)
_decays = st.sampled_from([0.0, 0.5, 1.0])


def _rows(unit, width, decay=0.0):
    """What a unit contributes to a batch, written down one token after the other."""
    targets = [len(document.ids) - max(document.first_target, 1) for document in unit]
    whole = math.fsum((place + 1) ** -decay for count in targets for place in range(count))
    rows = []
    for document, count in zip(unit, targets, strict=True):
        first, empty = max(document.first_target, 1), width - len(document.ids)
        weights = [0.0] * first + [(place + 1) ** -decay / whole for place in range(count)]
        rows.append((document.ids.tolist() + [PAD] * empty, weights + [0.0] * empty))
    return rows


def _rows_of(batch):
    return list(zip(batch.ids.tolist(), batch.weights.tolist(), strict=True))


def _units_of(batch):
    """Without the padding rows at the end."""
    rows = _rows_of(batch)
    found = [rows[at : at + batch.rows_per_unit] for at in range(0, len(rows), batch.rows_per_unit)]
    return [unit for unit in found if any(any(weights) for _, weights in unit)]


def _same(first, second):
    """Whether tokens agree, and weights to the rounding of float32."""
    if [ids for ids, _ in first] != [ids for ids, _ in second]:
        return False
    weights = [np.array([weights for _, weights in rows]) for rows in (first, second)]
    return np.allclose(*weights, rtol=1e-6, atol=0)


@given(_units, st.integers(8, 400), _decays)
def test_batches_hold_every_unit_whole_and_once(units, max_tokens, decay):
    left = list(units)
    for batch in physical_batches(units, max_tokens, PAD, decay):
        for found in _units_of(batch):
            matching = [at for at, unit in enumerate(left) if _same(_rows(unit, batch.ids.shape[1], decay), found)]
            assert matching
            del left[matching[0]]
    assert not left


@given(_units, st.integers(8, 400), _decays)
def test_batches_are_rectangles_that_fit(units, max_tokens, decay):
    for batch in physical_batches(units, max_tokens, PAD, decay):
        rows, width = batch.ids.shape
        assert batch.weights.shape == (rows, width)
        assert (batch.ids.dtype, batch.weights.dtype) == (torch.int64, torch.float32)
        assert rows % batch.rows_per_unit == 0
        assert width % 8 == 0
        assert rows * width <= max_tokens or rows == batch.rows_per_unit
        assert not batch.weights[:, 0].any()
        sums = batch.weights.view(-1, batch.rows_per_unit * width).sum(1)
        live = len(_units_of(batch))
        assert live
        torch.testing.assert_close(sums[:live], torch.ones(live))
        assert not sums[live:].any()
        padding = batch.ids[live * batch.rows_per_unit :]
        assert (padding == PAD).all()
        assert batch.weights[: live * batch.rows_per_unit].count_nonzero(1).all()


@given(_units, _units, st.integers(8, 400))
def test_a_unit_meets_the_same_shape_in_any_company(units, others, max_tokens):
    """Kernels are chosen by shapes, so that another shape would be other last bits of a unit's gradient."""

    def shapes(company):
        return {
            repr(unit): (*batch.ids.shape, batch.rows_per_unit)
            for batch in physical_batches(company, max_tokens, PAD)
            for unit in _units_of(batch)
        }

    together = shapes(units + others)
    for unit in units:
        ((name, alone),) = shapes([unit]).items()
        assert together[name] == alone


@given(_units, _units, st.integers(8, 400), _decays)
def test_a_unit_has_the_same_weights_in_any_company(units, others, max_tokens, decay):
    """To the last bit, or else one user would move the gradients of others."""

    def found(company):
        batches = physical_batches(company, max_tokens, PAD, decay)
        return Counter(repr(unit) for batch in batches for unit in _units_of(batch))

    assert found(units + others) == found(units) + found(others)


@pytest.mark.parametrize(("microbatches", "in_rows"), [(None, False), (None, True), (2, False)])
def test_steps_take_the_decay_of_the_recipe(microbatches, in_rows):
    """On the way from coins to batches, for clipped users and for clipped micro-batches."""
    unit = [Document(np.arange(9, dtype=np.int32), 1), Document(np.arange(5, dtype=np.int32), 2)]
    sampler = PoissonSampler(KEY, "run", 1.0, [Unit(unit_tag(KEY, "user", "one"), tuple(unit))], 2)
    settings = DpSgdConfig(token_decay=0.75, microbatches=microbatches, expected_batch=1)
    job = SimpleNamespace(training=settings, engine=EngineConfig(batch_tokens=64), parts=1)
    training = SimpleNamespace(sampler=sampler, pad=PAD, engine=SimpleNamespace(in_rows=in_rows))
    worker = _Worker(job, training)  # type: ignore[arg-type]
    (batch,) = worker._batches(0)
    if in_rows:
        (expected,) = cut_into_rows([unit], 64, PAD, 0.75)
        assert sorted(batch.weights.tolist()) == sorted(expected.weights.tolist())
        assert len(set(batch.weights.tolist())) > 2
        return
    pieces = [batch] if isinstance(batch, Batch) else batch.pieces
    rows = sorted(row for piece in pieces for row in _rows_of(piece) if any(row[1]))
    assert _same(sorted(_rows(unit, 16, 0.75)), rows)


@pytest.mark.parametrize(
    ("records", "tokens", "given", "expected"),
    [
        (1, 32, None, 256),
        (1, 160, None, 640),
        (4, 14, None, 256),
        (4, 64, None, 1024),
        (1, 2000, None, 1024),
        (1, 160, 96, 96),
    ],
)
def test_a_row_has_room_for_four_of_the_longest_units(records, tokens, given, expected):
    """By public numbers alone. A row that holds one unit of 155 tokens and no second one was a third of padding."""
    training = DpSgdConfig(max_records=records, max_tokens=tokens, expected_batch=1)
    assert EngineConfig(batch_tokens=given).row_tokens(training) == expected


def test_rows_of_long_texts_are_full():
    """On the way from coins to rows, as a worker cuts them: at most a tenth more tokens than texts have."""
    dice = np.random.default_rng(0)
    lengths = dice.integers(130, 163, 40).tolist()
    units = [
        Unit(unit_tag(KEY, "user", str(at)), (Document(np.arange(length, dtype=np.int32), 1),))
        for at, length in enumerate(lengths)
    ]
    job = SimpleNamespace(training=DpSgdConfig(max_records=1, max_tokens=160, expected_batch=1), engine=EngineConfig())
    sampler = PoissonSampler(KEY, "run", 1.0, units, 1)
    worker = _Worker(job, SimpleNamespace(sampler=sampler, pad=PAD, engine=SimpleNamespace(in_rows=True)))
    assert sum(row.ids.numel() for row in worker._batches(0)) < 1.15 * sum(lengths)


def test_padding_is_small_and_a_unit_that_is_too_large_is_a_batch_of_its_own():
    lengths = np.random.default_rng(0).integers(8, 200, 400).tolist()
    padded, few = (
        physical_batches([[Document(np.arange(length, dtype=np.int32) % 50, 2)] for length in some], most, PAD)
        for some, most in ((lengths, 256), ([100, 9, 16, 8, 101], 64))
    )
    assert sum(batch.ids.numel() for batch in padded) < 1.12 * sum(lengths)  # half a batch of each width is empty
    assert [tuple(batch.ids.shape) for batch in few] == [(1, 104), (1, 104), (4, 16), (8, 8)]


def test_a_dummy_has_rows_and_no_weight():
    batch = dummy_batch(PAD)
    assert (batch.ids.dtype, batch.weights.dtype, batch.rows_per_unit) == (torch.int64, torch.float32, 1)
    assert batch.ids.tolist() == [[PAD] * 8]
    assert batch.weights.tolist() == [[0.0] * 8]


@pytest.mark.parametrize(("tokens", "first_target"), [(0, 0), (1, 0), (1, 1), (5, 5), (5, 6), (1, -1), (1, -5)])
def test_a_document_without_a_target_is_refused(tokens, first_target):
    with pytest.raises(ConfigError, match="no token from first_target on"):
        Document(np.full(tokens, 4321, dtype=np.int32), first_target)


@pytest.fixture
def batch(tiny_backbone):
    """Three units of two documents, of different lengths, with some context in front."""
    draw = np.random.default_rng(0)
    units = [[Document(draw.integers(0, 400, size=length).astype(np.int32), 4) for length in (9, 14)] for _ in range(3)]
    return physical_batches(units, 128, tiny_backbone.end)[0]


def _by_hand(model, batch):
    logits = model(input_ids=batch.ids, use_cache=False).logits.double().log_softmax(-1)
    found = torch.zeros(len(batch.ids), dtype=torch.float64)
    for row, ids in enumerate(batch.ids.tolist()):
        for place in range(1, len(ids)):
            found[row] -= float(batch.weights[row, place]) * logits[row, place - 1, ids[place]]
    return found


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_losses_are_weighted_likelihoods_of_the_row_alone_and_both_ways_have_the_same_gradients(
    kind, batch, tiny_backbone, monkeypatch
):
    model = trainable(tiny_backbone, AdapterConfig(kind=kind))
    trained, gradients = [each for each in model.parameters() if each.requires_grad], []
    for family in ("llama", "unheard-of"):
        monkeypatch.setattr(losses, "PLAIN_HEADS", (family,))
        found = losses.row_losses(model, batch)
        torch.testing.assert_close(found.double(), _by_hand(model, batch), rtol=1e-4, atol=1e-5)
        alone = Batch(batch.ids[2:4], batch.weights[2:4], batch.rows_per_unit)
        torch.testing.assert_close(losses.row_losses(model, alone), found[2:4], rtol=1e-4, atol=1e-5)
        gradients.append(torch.autograd.grad(found.sum(), trained))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)
    low = losses.row_losses(model, batch, low_precision=True)
    assert low.dtype == torch.float32
    torch.testing.assert_close(low, found, rtol=0.05, atol=0.05)


def test_a_frozen_head_meets_one_shape_whoever_is_in_the_batch(batch, tiny_backbone, monkeypatch):
    """How many tokens carry loss depends on everybody, and the shape of a product decides how it is rounded."""
    monkeypatch.setattr(losses, "HEAD_ROWS", 8)
    model = trainable(tiny_backbone, AdapterConfig())
    shapes = set()
    model.get_base_model().get_output_embeddings().register_forward_pre_hook(lambda _, args: shapes.add(args[0].shape))
    for rows in (slice(None), slice(2, 4), slice(1)):
        losses.row_losses(model, Batch(batch.ids[rows], batch.weights[rows], batch.rows_per_unit))
    assert len(shapes) == 1
