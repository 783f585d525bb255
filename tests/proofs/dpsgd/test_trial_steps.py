"""Before the first charge every engine, adapter and loss is tried as it will train: what passes trains, all else is
refused.

The grid is the whole of (way of clipping x adapter x checkpointing x own loss x number format). Each combination is
either refused while the engine is made, or takes a step with units in it, and then one unit more moves the sum by its
bound at most.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from changing_noise import changing
from engine_cases import EXHAUSTIVE, some

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.keys import Key
from rayprivacy.dpsgd.batches import Batch, Document, physical_batches
from rayprivacy.dpsgd.clipping import micro_batches
from rayprivacy.dpsgd.engines.engine import StepNoise, make_engine
from rayprivacy.dpsgd.engines.zero import add_up
from rayprivacy.dpsgd.losses import FreshLoss, own_losses, row_losses, seeded
from rayprivacy.dpsgd.noise import KeyedNoise
from rayprivacy.dpsgd.settings import DpSgdConfig, EngineConfig, OptimizerConfig
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.settings import AdapterConfig
from rayprivacy.models.trainable import checkpointed, trainable

pytest.importorskip("opacus")

VOCABULARY, NORM, TOKENS, PAD, PUBLIC_TOKENS = 97, 1.0, 64, 0, 16
ADAM = OptimizerConfig(learning_rate=1e-4)
Loss = Callable[[Any, Batch], Any]
Unit = list[Document]
ANY = "bookkeeping"  # clips units, as Opacus does


@dataclass(frozen=True)
class Way:
    """One cell of the grid."""

    clipping: str  # `bookkeeping`, `opacus` or `microbatches`
    adapter: Any = "lora"  # or `full`
    checkpointing: bool = False  # activations are computed twice
    half: bool = False  # bfloat16

    def __str__(self):
        kept = "checkpointed" if self.checkpointing else "kept"
        return f"{self.clipping}-{self.adapter}-{kept}-{'bfloat16' if self.half else 'float32'}"


# All but one: Opacus sees no layer that is computed again, which the settings say.
CELLS = product(("bookkeeping", "opacus", "microbatches"), ("lora", "full"), (False, True), (False, True))
GRID = [Way(*cell) for cell in CELLS if cell[0::2] != ("opacus", True)]
FEW = [
    Way("bookkeeping"),
    Way("microbatches", half=True),
    Way("opacus", "full"),
    Way("bookkeeping", "full", True, True),
]


def _grid(losses, everything=1):
    """All losses in all ways; by day all of them in the first of FEW, and every third in each of the rest."""
    cells = []
    for (at, (name, loss)), way in product(enumerate(losses.items()), GRID):
        now = way in FEW and (FEW.index(way) < everything or (at + FEW.index(way)) % 3 == 0)
        cells.append(pytest.param(loss, way, id=f"{name}-{way}", marks=[] if now else EXHAUSTIVE))
    return pytest.mark.parametrize(("loss", "way"), cells)


def _model(way, base=None):
    """A tiny untied Llama that is sure of some tokens, as trained models are."""
    torch.manual_seed(0)
    size = {"vocab_size": VOCABULARY, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2}
    if base is None:
        base = transformers.LlamaForCausalLM(transformers.LlamaConfig(**size, num_attention_heads=4)).eval()
        base.lm_head.weight.data *= 60
    base = base.bfloat16() if way.half else base
    model = trainable(Backbone(None, 0, 0, model=base), AdapterConfig(kind=way.adapter, rank=4))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # as after some steps
            parameter.data.normal_(0, 0.1)
    return checkpointed(model) if way.checkpointing else model


def _engine(way, loss=row_losses, model=None, report=None, batch_tokens=TOKENS):
    micro = 4 if way.clipping == "microbatches" else None
    training = DpSgdConfig(
        expected_batch=4, clipping_norm=NORM, max_tokens=PUBLIC_TOKENS, microbatches=micro, optimizer=ADAM
    )
    gradients: Any = ANY if micro else way.clipping
    settings = EngineConfig(gradients=gradients, gradient_checkpointing=way.checkpointing, batch_tokens=batch_tokens)
    noise = StepNoise(KeyedNoise(Key.for_tests(), "run"), changing((0.0,) * 100, NORM), 4.0)
    losses = partial(own_losses, loss=loss, low_precision=way.half)
    model = _model(way) if model is None else model
    return make_engine(model, training, noise, settings, losses, way.half, report or (lambda _: None))


def _units(count=5):
    random = np.random.default_rng(3)
    return [[Document(random.integers(1, VOCABULARY, 4 + 3 * at).astype(np.int32), 1)] for at in range(count)]


def _batches(way, units):
    """The batches of a step; of four micro-batches, a new unit joins the first."""
    if way.clipping != "microbatches":
        return list(physical_batches(units, TOKENS, PAD))
    held = [[unit for at, unit in enumerate(units) if at % 4 == number] for number in range(4)]
    return list(micro_batches([group for group in held if group], TOKENS, PAD))


def _sum(engine, batches):
    sums = add_up(engine._clipped(batch) for batch in batches)
    return torch.cat([sums[parameter].double().flatten() for parameter in engine._gradients.parameters])


@pytest.mark.parametrize("way", some(GRID, *FEW))
def test_what_is_accepted_takes_a_step_and_one_unit_moves_it_by_its_bound(way):
    said: list[str] = []
    engine, units = _engine(way, report=said.append), _units()
    assert ["tried on public tokens" in sentence for sentence in said] == [True]
    engine.step(0, _batches(way, units))
    before = _sum(engine, _batches(way, units[:-1]))
    for newcomer in (units[-1], [Document(np.full(9, 5, np.int32), 1)], [Document(np.array([1, 2], np.int32), 1)]):
        moved = float((_sum(engine, _batches(way, [*units[:-1], newcomer])) - before).norm())
        bound = 2 * NORM if way.clipping == "microbatches" else NORM
        assert 0 < moved <= bound * (1 + 1e-5)


def test_what_can_take_no_step_is_refused_where_it_is_read():
    with pytest.raises(ConfigError, match="Opacus sees no layer that is computed again, so leave one of them out"):
        EngineConfig.parse({"gradients": "opacus", "gradient_checkpointing": True})


class _Kept:
    """The loss as a share of a number that it keeps: of the first one that was seen, or of their running mean."""

    number: float | None = None

    def __init__(self, old):
        self.old = old

    def __call__(self, model, batch):
        own = row_losses(model, batch)
        now = float(own.detach().sum() / batch.weights.sum())
        self.number = now if self.number is None else self.old * self.number + (1 - self.old) * now
        return own / self.number


def _kept_by_a_function():
    seen: list[float] = []

    def loss(model, batch):
        own = row_losses(model, batch)
        seen.append(1.0)
        return own / len(seen)

    return loss


def _mixing(change):
    """The losses of rows, changed by those of all rows, of all rows with text, or by the batch."""

    def loss(model, batch):
        own = row_losses(model, batch)
        return change(own, own.detach(), own.detach()[batch.weights.any(1)], batch)

    return loss


KEEPING: dict[str, Loss] = {
    "share_of_the_first": _Kept(old=1.0),
    "running_mean": _Kept(old=0.9),
    "a_list_of_a_closure": _kept_by_a_function(),
    "at_random": _mixing(lambda own, *_: own * torch.rand(len(own))),
    "one_mask_for_all": _mixing(lambda own, *_: own * torch.rand(1)),  # batches alone differ
}


@_grid(KEEPING, everything=2)
def test_a_loss_that_keeps_something_or_draws_is_refused(loss, way):
    with pytest.raises(ConfigError, match=r"depends on (the others in the batch|what was computed before it)"):
        _engine(way, loss)


MIXERS: dict[str, Callable[..., torch.Tensor]] = {
    "_capped": lambda own, seen, real, _: torch.minimum(own, 2 * real.median()),
    "_below_a_quantile": lambda own, seen, real, _: torch.minimum(own, real.quantile(0.9)),
    "_without_the_hardest": lambda own, seen, real, _: torch.where(seen < seen.max(), own, 0.0),
    "_without_the_easiest": lambda own, seen, real, _: torch.where(seen > real.min(), own, 0.0),
    "_to_a_norm_of_the_batch": lambda own, seen, real, _: own * (6 / seen.norm()).clamp(max=1),
    # Rows that are further than two deviations above the mean count for a tenth.
    "_outliers_down": lambda own, seen, real, _: torch.where(
        seen > real.mean() + 2 * real.std(correction=0), own / 10, own
    ),
    # A text that stands in the batch twice counts for half.
    "_no_repeats": lambda own, seen, real, batch: own / (batch.ids[:, None] == batch.ids[None]).all(2).sum(1),
    "_temperature": lambda own, seen, real, _: own * seen.softmax(0),
    # The value of each row is its own; its gradient is scaled by the others.
    "_gradient_alone": lambda own, seen, real, _: own + (own - seen) * seen.mean(),
    # The norm of every gradient stays; its sign is the others'.
    "_sign_of_the_batch": lambda own, seen, real, _: own * torch.where(seen.mean() > seen[0], 1.0, -1.0),
    # Units of several rows are compared with each other; those of one row are not.
    "_contrast_of_units": lambda own, seen, real, batch: own if batch.rows_per_unit == 1 else own - own.mean(),
}


@_grid({name: _mixing(change) for name, change in MIXERS.items()})
def test_a_loss_that_mixes_rows_when_somebody_stands_out_is_refused(loss, way):
    """Within a micro-batch, which is clipped as one, everything may depend on everything."""
    if way.clipping == "microbatches":
        _engine(way, loss).step(0, _batches(way, _units()))
        return
    with pytest.raises(ConfigError, match="depends on the others in the batch"):
        _engine(way, loss)


def _penalty(model, batch):
    return row_losses(model, batch) + 10 * sum(p.square().sum() for p in model.parameters() if p.requires_grad)


def _product_with_a_weight(model, batch):
    own = row_losses(model, batch)
    weight = next(parameter for parameter in model.parameters() if parameter.requires_grad)
    return own * (1 + 10 * weight.float().sum())


@_grid({"_penalty": _penalty, "_product_with_a_weight": _product_with_a_weight})
def test_a_gradient_that_would_be_lost_is_refused(loss, way):
    """Plain autograd, which micro-batches are clipped by, loses nothing."""
    if way.clipping == "microbatches":
        _engine(way, loss).step(0, _batches(way, _units()))
        return
    with pytest.raises(ConfigError, match="a part of the loss's gradient would be lost"):
        _engine(way, loss)


@pytest.mark.parametrize("kind", ["flat", "per_layer", "automatic"])
@pytest.mark.parametrize("low", [False, True])
def test_each_kind_of_clipping_is_compared_with_autograd(kind, low):
    training = DpSgdConfig(clipping_norm=1e-3, max_tokens=PUBLIC_TOKENS, clipping=kind, optimizer=ADAM)
    noise = StepNoise(KeyedNoise(Key.for_tests(), "run"), changing((0.0,) * 100, 1e-3), 4.0)
    model, engine = _model(Way(ANY, "full", half=low)), EngineConfig(batch_tokens=TOKENS)
    make_engine(model, training, noise, engine, partial(own_losses, loss=row_losses, low_precision=low), low)
    with pytest.raises(ConfigError, match="would be lost"):
        make_engine(model, training, noise, engine, partial(own_losses, loss=_penalty, low_precision=low), low)


EXPERTS_BY_DAY = (("bookkeeping", 64), ("bookkeeping", 128), ("opacus", 64), ("microbatches", 64))


def _experts(width):
    shape = {"hidden_size": width, "moe_intermediate_size": width, "num_experts": 4, "num_experts_per_tok": 2}
    size = {"vocab_size": VOCABULARY, "intermediate_size": 2 * width, "num_hidden_layers": 2, "head_dim": width // 4}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    return transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**size, **shape, **heads)).eval()


@pytest.mark.parametrize(
    ("clipping", "width"), some(product(("bookkeeping", "opacus", "microbatches"), (64, 128)), *EXPERTS_BY_DAY)
)
def test_experts_are_refused_unless_a_batch_holds_one_unit(clipping, width):
    way = Way(clipping)
    make = partial(_engine, way)
    if clipping == "microbatches":
        make(model=_model(way, _experts(width))).step(0, _batches(way, _units()))
        return
    with pytest.raises(ConfigError, match="4 experts, which take as many tokens as all users in a batch"):
        make(model=_model(way, _experts(width)))
    alone = make(model=_model(way, _experts(width)), batch_tokens=8)
    alone.step(0, list(physical_batches(_units(), 8, PAD)))


def test_a_loss_is_a_copy_for_every_batch_under_the_same_seeds():
    """Even a loss that escaped the check carries nothing from one batch to the next."""
    model, (batch, *_) = _model(Way(ANY)), physical_batches(_units(1), TOKENS, PAD)
    before = torch.get_rng_state()
    for loss in KEEPING.values():
        fresh = FreshLoss(loss)
        assert torch.equal(fresh(model, batch), fresh(model, batch))
    assert torch.equal(torch.get_rng_state(), before)
    drawn = []
    for seed in (0, 0, 1):
        with seeded(seed, torch.device("cpu")):
            drawn.append(float(torch.rand(1)))
    assert drawn[0] == drawn[1] != drawn[2]
