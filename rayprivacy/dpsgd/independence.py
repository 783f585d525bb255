"""Steps on public tokens before anything is reserved: what is clipped together with others does not depend on them.

`batches` gives every unit a row of the one shape there is, or a batch whose shape is a function of that unit alone.
What is left is up to the machine, the model and the loss: kernels must treat all rows of a matrix alike, no module and
no loss may mix rows (a mixture of experts, say, whose experts take as many tokens as all rows send them, or a mean
over the batch), and nothing may be kept from one batch to the next. So the very model and the very way of clipping
that will train read public tokens:

- **units**: each row of some batches is computed again in other company, and all bits of its loss and of its gradient's
  norms must agree. Rules on outliers act on rows that stand out, so the company is, by turns, random rows and rows of
  one token repeated, the row that this model finds easiest, the one that it finds hardest, rows like the one that is
  looked at, and nobody. The gradient of padding must be zero. Two shapes are tried, the one with the most rows and the
  longest that has more than one row: a longer unit fills a batch alone, where nothing can be mixed with it.
- **units in rows**: the same, of units of several lengths that stand behind each other in one row, in turns.
- **micro-batches**: within one everything may depend on everything. Its clipped mean must be the same as the first that
  is computed, after another one, after two, and after itself.
- **the gradient itself**: what one unit adds to the sum is compared with torch's own gradient of its loss. A loss that
  reads a weight outside of its module (a penalty on all weights, say) would lose that part in silence.

Every sequence of batches is computed by a copy of the loss of its own, and each batch under other seeds, so that a loss
that keeps something, or draws at random, is found. That is no proof for all shapes, nor for all losses; the tests go
through many. Each check returns the sentence that certificates quote: a run without checks has no such sentence.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.private import digest_array
from rayprivacy.dpsgd import clipping as clip
from rayprivacy.dpsgd.batches import Batch, Document, Row, physical_batches, row_of
from rayprivacy.dpsgd.clipping import Clipping, MicroBatch
from rayprivacy.dpsgd.losses import FreshLoss, seeded
from rayprivacy.models.loading import check_positions
from rayprivacy.models.trainable import any_kernel, has_no_repeatable_kernel

Losses = Callable[[Any, Any], Tensor]
_Ids = npt.NDArray[np.int32]

_SEED, _PAD = 0, 0  # public, like the tokens
_SHORT = 8  # the least width of a batch, hence the most rows
_FEW = 8  # rows of the batches in which each is also computed alone
_TRIED = "Before the first step it was tried on public tokens that {}; a trial is no proof."
_UNITS_TRIED = _TRIED.format(
    "the loss and the gradient of one unit are the same to the bit among others of several kinds and alone, and that"
    " the gradient is the one of the loss"
)
_UNCLIPPED = Clipping(1e30)
_LIGHT = 1 / 16  # weight of a row that is one of many of its unit
_PRECISE, _ROUNDED = 1e-3, 0.02  # how far a gradient may be from torch's own, relatively; the latter in bfloat16


def check_independence(
    model: Any,
    losses: Losses,
    tokens: int,
    batch_tokens: int,
    gradients: clip.UnitGradients | None = None,
    clipping: Clipping = _UNCLIPPED,
    records: int = 2,
) -> str:
    """Compute units in several companies, compare all bits, and compare one gradient with torch's own.

    The model has `requires_grad` set and is in the mode in which it will train. `tokens` is the length of the longest
    documents, `batch_tokens` of a physical batch, and `records` of a unit at most; units of two are tried where there
    are such. Refused is a gradient that differs, would differ from time to time, or is not that of the loss; and a
    module that cannot be clipped, or routes rows to experts.
    """
    check_positions(model, tokens)
    _check_experts(model, batch_tokens)
    trial = _UnitTrial(model, losses, gradients or clip.BookKeeping(model, clipping))
    draw = _PublicRows(model)
    short, *longest = sorted({min(max(2, tokens), most) for most in (_SHORT, max(_SHORT, batch_tokens // 2))})
    trial.compare_companies(draw.batch_of(short, batch_tokens), batch_tokens)
    for length in longest:
        trial.compare_companies(draw.batch_of(length, batch_tokens), batch_tokens, easy_alone=True)
    few = draw.batch_of(short, min(batch_tokens, _FEW * _SHORT))
    trial.compare_with_alone(few, min(batch_tokens, _FEW * _SHORT), min(2, records, len(few)))
    trial.compare_with_autograd(_batch([few[0]], _SHORT), clipping)
    return _UNITS_TRIED


def check_rows(
    model: Any,
    losses: Losses,
    tokens: int,
    row_tokens: int,
    gradients: clip.UnitGradients,
    clipping: Clipping = _UNCLIPPED,
    records: int = 2,
) -> str:
    """What `check_independence` does, for units behind each other in rows of `row_tokens` tokens (`batches.rows`)."""
    check_positions(model, tokens)
    _check_experts(model, max(row_tokens, 2 * _SHORT))
    trial = _UnitTrial(model, losses, gradients)
    units = _PublicRows(model).units(min(tokens, row_tokens // 2), row_tokens, records)
    trial.compare_places(units, row_tokens)
    trial.compare_with_autograd(row_of(units[:1], row_tokens, _PAD), clipping)
    return _UNITS_TRIED


def check_micro_batches(
    model: Any, losses: Losses, tokens: int, batch_tokens: int, gradients: clip.MicroBatchGradients
) -> str:
    """Compute the clipped mean of a micro-batch first of all, after others and after itself, and compare all bits."""
    draw = _PublicRows(model)
    rows = draw.rows(6, range(2, max(2, min(tokens, batch_tokens)) + 1))
    groups = [[[Document(ids, 1)] for ids in some] for some in (rows[:1], rows[1:3], rows[3:])]
    one, other, third = clip.micro_batches(groups, batch_tokens, _PAD)
    seeds = iter(range(100))

    def mean(losses: Losses, batch: MicroBatch) -> list[str]:
        seed = next(seeds)
        pieces = partial(clip.mean_losses, model, batch, lambda _, piece: _seeded_losses(seed, model, piece, losses))
        clipped = _run(lambda: gradients(pieces, batch.by_unit))
        return [digest_array(clipped.pop(parameter)().cpu().numpy()) for parameter in list(clipped)]

    fresh = FreshLoss(losses)
    first = mean(fresh.copy(), one)
    for before in ([other], [other, third], [one]):
        copy = fresh.copy()
        for batch in before:
            mean(copy, batch)
        if mean(copy, one) != first:
            raise ConfigError(
                "the clipped mean of a micro-batch depends on what was computed before it, which the noise does not"
                " hide: the model or the loss keeps something from one batch to the next, or draws at random; compute"
                " a loss from the weights and the batch alone, or choose another model.base."
            )
    return _TRIED.format("the clipped mean of a micro-batch is the same to the bit after others, and after itself")


def check_memory(model: Any) -> None:
    """Refuse a model that remembers what it has read from one batch to the next, as dynamic RoPE does."""
    if any("dynamic" in str(getattr(module, "rope_type", "")) for module in model.modules()):
        raise ConfigError(
            "model.base has rope_type 'dynamic': it remembers the longest text that it has read, so that one user's"
            " text would change the gradients of all others: choose another model.base, or another rope_scaling."
        )


def _check_experts(model: Any, batch_tokens: int) -> None:
    """Refuse a mixture of experts whose batches hold several units: how many rows an expert takes is up to all."""
    if batch_tokens < 2 * _SHORT or not hasattr(model, "config"):
        return
    experts = max(_experts(model.config.to_dict()), default=0)
    if experts > 1:
        raise ConfigError(
            f"model.base has {experts} experts, which take as many tokens as all users in a batch send them: set"
            " resources.batch_tokens to 8, so that each user is computed alone, or choose a dense model.base."
        )


def _experts(values: dict[Any, Any]) -> Iterator[int]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _experts(value)
        elif "experts" in str(name) and isinstance(value, int):
            yield int(value)


class _PublicRows:
    """Rows of public tokens: random ones, and by turns such as repeat one token, which a model finds easy."""

    def __init__(self, model: Any) -> None:
        vocabulary = model.get_input_embeddings().num_embeddings
        self._draw = partial(np.random.default_rng(_SEED).integers, 0, vocabulary)

    def rows(self, count: int, lengths: range) -> list[_Ids]:
        """Some rows, from the longest on; the first is random, and the next repeats one token."""
        return [self._row(lengths[-1 - at % len(lengths)], repeated=at % 2 == 1) for at in range(count)]

    def batch_of(self, length: int, batch_tokens: int) -> list[_Ids]:
        """The rows of a full batch whose longest has `length` tokens."""
        rows, width = _batch([np.zeros(length, np.int32)], batch_tokens).ids.shape
        return self.rows(rows, range(max(2, width - _SHORT + 1), length + 1))

    def units(self, longest: int, tokens: int, records: int) -> list[list[Document]]:
        """Units of one or two documents that fit into a row, from the longest on; every other repeats one token."""
        found: list[list[Document]] = []
        left, length = tokens - 1, max(2, longest)
        while length > 1 and length - 1 <= left:
            many = min(records, 1 + len(found) % 2, left // (length - 1))
            found.append([Document(self._row(length, repeated=len(found) % 2 == 1), 1) for _ in range(many)])
            left -= many * (length - 1)
            length = max(2, length * 3 // 4) if left >= length else left + 1
        return found

    def _row(self, length: int, repeated: bool) -> _Ids:
        drawn = self._draw(1).repeat(length) if repeated else self._draw(length)
        return np.asarray(drawn, np.int32)


class _UnitTrial:
    """Batches of one model, one loss and one way of clipping, and what each row of them comes to."""

    def __init__(self, model: Any, losses: Losses, gradients: clip.UnitGradients) -> None:
        self._model, self._fresh, self._gradients = model, FreshLoss(losses), gradients
        self._seeds = iter(range(1000))

    def compare_companies(self, rows: list[_Ids], batch_tokens: int, easy_alone: bool = False) -> None:
        """The row that stands out among all kinds, and elsewhere alone among easy or (not `easy_alone`) hard ones."""
        losses = self._fresh.copy()
        self._look(losses, _batch(rows[-1:], _SHORT))  # somebody else came first
        among = self._look(losses, _batch(rows, batch_tokens))
        easiest, hardest = _ends(among)
        companies = [(rows[easiest], _LIGHT, {hardest}), (rows[hardest], 1.0, {0, easiest})]
        for other, weight, tested in companies[: 1 if easy_alone else 2]:
            places = {len(rows) - 1 - at: rows[at] for at in tested}
            company = [places.get(at, other) for at in range(len(rows))]
            weights = [1.0 if at in places else weight for at in range(len(rows))]
            seen = self._look(losses, _batch(company, batch_tokens, weights)).flip(0)
            for at in tested:
                _require_equal(among[at], seen[at])

    def compare_with_alone(self, rows: list[_Ids], batch_tokens: int, per_unit: int) -> None:
        """Some units among others, among such as are all alike, and alone among padding, each before anybody else."""
        losses = self._fresh.copy()
        self._look(losses, _batch(rows[-1:], _SHORT))
        among = self._look(losses, _batch(rows, batch_tokens, per_unit=per_unit))
        for first in dict.fromkeys(at - at % per_unit for at in (0, *_ends(among))):
            own = slice(first, first + per_unit)
            alone = self._look(self._fresh.copy(), _batch(rows[own], batch_tokens, per_unit=per_unit))
            _require_equal(among[own], alone[:per_unit])
            padding = alone[per_unit:, 1:]  # adds nothing
            _require_equal(torch.zeros_like(padding), padding)
        equal = rows[:per_unit] * (len(rows) // per_unit)
        alike = self._look(self._fresh.copy(), _batch(equal, batch_tokens, per_unit=per_unit))
        _require_equal(among[:per_unit].repeat(len(alike) // per_unit, 1), alike)

    def compare_places(self, units: list[list[Document]], tokens: int) -> None:
        """Units of a row in another order, those that stand out among such as are easy or hard, and alone."""
        among = self._look_at_row(self._fresh.copy(), units, tokens)
        _require_equal(among, self._look_at_row(self._fresh.copy(), units[::-1], tokens).flip(0))
        ends = dict.fromkeys((0, *_ends(among)))
        for other in _ends(among):
            company = [
                units[at] if at in ends else _of_length(units[other], _length(units[at])) for at in range(len(units))
            ]
            seen = self._look_at_row(self._fresh.copy(), company[::-1], tokens).flip(0)
            for at in ends:
                _require_equal(among[at], seen[at])
        for at in ends:
            _require_equal(among[at], self._look_at_row(self._fresh.copy(), [units[at]], tokens)[0])

    def _look_at_row(self, losses: Losses, units: list[list[Document]], tokens: int) -> Tensor:
        """The loss of every unit of one row, and the squared norms of its gradient, [units, 1 + parameters]."""
        return self._look(losses, row_of(units, tokens, _PAD))

    def compare_with_autograd(self, batch: Batch | Row, clipping: Clipping) -> None:
        """What one unit adds to the sum, and torch's own gradient of its loss, clipped by its own norm."""
        model, seed, parameters = self._model, next(self._seeds), self._gradients.parameters
        clipped = _run(
            lambda: self._gradients(lambda: _seeded_losses(seed, model, batch, self._fresh.copy()), batch.by_unit)
        )
        with any_kernel():  # nothing of it is kept but the distance
            total = _seeded_losses(seed, model, batch, self._fresh.copy()).sum()
            found = torch.autograd.grad(total, parameters, allow_unused=True)
        true = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]
        squared = torch.stack([_squared(gradient) for gradient in true])[None]
        shares = clipping.coefficients(squared)[0].expand(len(true))
        off, whole = torch.zeros(2, dtype=torch.float64)
        for parameter, gradient, share in zip(parameters, true, shares, strict=True):
            expected = gradient.double() * share.double()
            off += _squared(clipped.pop(parameter)().double() - expected).cpu()
            whole += _squared(expected).cpu()
        precise = not clipping.low_precision and all(p.dtype == torch.float32 for p in model.parameters())
        if not off <= (_PRECISE if precise else _ROUNDED) ** 2 * whole:
            raise ConfigError(
                "a part of the loss's gradient would be lost, because it does not pass through a module whose gradients"
                " are clipped (a penalty on weights, say, or a product with one of them): let a loss of your own call"
                " the model for all that it needs, use resources.gradients 'bookkeeping', and choose another model.base"
                " where there is no such loss; decay of weights is training.optimizer.weight_decay."
            )

    def _look(self, losses: Losses, batch: Batch | Row) -> Tensor:
        """The loss of every row, or unit in a row, and the squared norms of its gradient, [rows, 1 + parameters]."""
        values: list[Tensor] = []

        def run() -> Tensor:
            values.append(_seeded_losses(next(self._seeds), self._model, batch, losses))
            return values[0]

        units = 1 if isinstance(batch, Batch) else batch.by_unit
        squared = _run(lambda: self._gradients.squared_norms(run, units))
        return torch.cat([values[0].detach().double()[:, None], squared], 1)


def _ends(among: Tensor) -> tuple[int, int]:
    return int(among[:, 0].argmin()), int(among[:, 0].argmax())


def _length(unit: list[Document]) -> int:
    return sum(len(document.ids) - 1 for document in unit)


def _of_length(unit: list[Document], length: int) -> list[Document]:
    """A unit of the tokens of another, as many as `length` reads of them."""
    return [Document(np.resize(unit[0].ids, length + 1), 1)]


def _batch(rows: Sequence[_Ids], batch_tokens: int, scales: Sequence[float] = (), per_unit: int = 1) -> Batch:
    """The batch of some rows of one width, in their order; a row may weigh less, as one of many of a unit."""
    units = [[Document(ids, 1) for ids in rows[at : at + per_unit]] for at in range(0, len(rows), per_unit)]
    batch = physical_batches(units, batch_tokens, _PAD)[0]
    batch.weights[: len(scales)] *= torch.tensor(scales, dtype=torch.float32)[:, None]
    return batch


def _seeded_losses(seed: int, model: Any, batch: Batch | Row, losses: Losses) -> Tensor:
    with seeded(seed, next(model.parameters()).device):
        values: Tensor = losses(model, batch)
    return values


def _squared(gradient: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(gradient, dtype=torch.float64)
    return norm.square()


def _run(act: Callable[[], Any]) -> Any:
    try:
        return act()
    except RuntimeError as error:
        if not has_no_repeatable_kernel(error):
            raise
    raise ConfigError(
        "the model or its loss uses an operation that gives other bits each time on this GPU, which the noise does not"
        " hide: choose another model.base or loss, or set resources.gpu to false."
    )


def _require_equal(one: Tensor, other: Tensor) -> None:
    if not torch.equal(one, other):
        raise ConfigError(
            "on this machine the gradient of one user depends on the others in the batch, on what was computed before,"
            " or on chance, which the noise does not hide: set resources.batch_tokens to 8, so that each is computed"
            " alone, or choose another model.base; a loss of your own must compute each row's loss from that row alone."
        )
