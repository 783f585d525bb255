"""The loss that DP-SGD clips: for each row of a batch, the weighted negative log-likelihood of its tokens.

A unit's weights sum to 1 over its rows, so its loss is the mean over its tokens, whatever else is in the batch. A mean
over the batch, which Hugging Face's own loss takes, would couple the examples.

How many tokens of a batch carry loss depends on all of its units, so the head is not multiplied with all of these at
once: the shape of that product, hence its rounding, would depend on others. It takes HEAD_ROWS tokens at a time.

A loss of the user's own takes its place where one is given (`own_losses`). It must be a function of the weights and of
each row's unit alone, since one unit may change the sum of a step by its own clipped gradient and by nothing else. The
certificate names that as an assumption. But a loss is any function, and may keep what it has seen (a running mean,
say), which would scale the gradients of all who come later. `independence` refuses a loss that is seen to do so before
the first step; `FreshLoss` takes the means away: each batch is computed by a copy, fresh from the pickle with which the
loss came, and torch draws under one public seed for all batches. What a loss keeps in a module that it imports is out
of reach of both.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.nn.functional as F
from ray import cloudpickle
from torch import Tensor

from rayprivacy.core.errors import ConfigError
from rayprivacy.dpsgd.batches import Batch, Row

# Families whose logits are the head's product with the last states, and nothing else (no scaling, no soft cap).
PLAIN_HEADS = ("gpt2", "llama", "mistral", "qwen2", "qwen3")
HEAD_ROWS = 64
_SEED = 0  # public, and the same for every batch: where a batch stands among the others depends on others
RowLoss = Callable[[Any, Batch], Tensor]


def row_losses(model: Any, batch: Batch | Row, low_precision: bool = False) -> Tensor:
    """Losses in nats, float32, of a causal language model: [rows] of a batch, [units] of a row.

    `low_precision` computes under bfloat16 autocast.
    """
    device = next(model.parameters()).device
    low_precision = low_precision or torch.is_autocast_enabled(device.type)  # called by a loss of the user's own
    with torch.autocast(device.type, torch.bfloat16, enabled=low_precision):
        return _of_units(model, batch, device) if isinstance(batch, Row) else _of_rows(model, batch, device)


def _of_rows(model: Any, batch: Batch, device: torch.device) -> Tensor:
    ids, weights = batch.ids.to(device), batch.weights.to(device)
    # One line of positions for all rows would lose the axis of the examples in learnt position embeddings.
    positions = torch.arange(ids.shape[1], device=device).expand_as(ids).contiguous()
    row, place = torch.nonzero(weights[:, 1:], as_tuple=True)
    inputs: dict[str, object] = {"input_ids": ids, "position_ids": positions, "use_cache": False}
    nll = _nll(model, inputs, (row, place), ids[row, place + 1], batch.least_targets)
    return torch.zeros(len(ids), device=device).index_add(0, row, nll * weights[row, place + 1])


def _of_units(model: Any, batch: Row, device: torch.device) -> Tensor:
    weights, owners = batch.weights.to(device), batch.by_unit.owners().to(device)
    (place,) = torch.nonzero(weights, as_tuple=True)
    inputs: dict[str, object] = {
        "input_ids": batch.ids.to(device),
        "position_ids": batch.positions.to(device),
        "documents": batch.documents,
        "use_cache": False,
    }
    if batch.states is not None:
        inputs["states"] = batch.states.to(device)
    nll = _nll(model, inputs, (torch.zeros_like(place), place), batch.labels.to(device)[place], batch.least_targets)
    return torch.zeros(len(batch.by_unit.lengths), device=device).index_add(0, owners[place], nll * weights[place])


def _nll(model: Any, inputs: dict[str, object], at: tuple[Tensor, Tensor], labels: Tensor, least: int) -> Tensor:
    """Negative log-likelihoods of labels [places] behind the tokens at (row, place), float32 [places]."""
    logits = _logits(model, inputs, *at, least)
    return F.cross_entropy(logits.float(), labels, reduction="none")


def own_losses(model: Any, batch: Batch, loss: RowLoss, low_precision: bool = False) -> Tensor:
    """Losses by the user's own function, float32 [rows], of rows padded on the right.

    The function is given the batch on the model's device, and computes under bfloat16 autocast with `low_precision`.
    Rows of padding have loss 0, whatever the function returns for them: their number depends on how many units were
    sampled, and each would add a gradient of its own to the sum.
    """
    device = next(model.parameters()).device
    own = Batch(batch.ids.to(device), batch.weights.to(device), batch.rows_per_unit)
    with torch.autocast(device.type, torch.bfloat16, enabled=low_precision):
        values = loss(model, own)
    if not isinstance(values, Tensor) or values.shape != (len(own.ids),):
        raise ConfigError("the loss does not return a tensor with one number per row: return them unreduced, [rows].")
    return torch.where(own.weights.any(1), values.float(), 0.0)


def _logits(model: Any, inputs: dict[str, object], row: Tensor, place: Tensor, least: int) -> Tensor:
    """Logits at some places, [places, vocabulary]; a frozen head is spared the others (codes, padding), but `least`."""
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    head = causal.get_output_embeddings()
    if head.weight.requires_grad or causal.config.model_type not in PLAIN_HEADS:
        whole: Tensor = model(**inputs).logits
        return whole[row, place]
    states: Tensor = causal.base_model(**inputs).last_hidden_state
    few, filled = states[row, place], max(len(row), least)
    blocks = F.pad(few, (0, 0, 0, filled - len(few) + -filled % HEAD_ROWS)).split(HEAD_ROWS)
    return torch.cat([head(block) for block in blocks])[: len(few)]


class FreshLoss:
    """Losses of batches, each by a copy of its own of the function, which is anything that Ray can pickle."""

    def __init__(self, losses: Callable[[Any, Batch], Tensor]) -> None:
        self._pickle = cloudpickle.dumps(losses)

    def copy(self) -> Callable[[Any, Batch], Tensor]:
        """A loss that has seen nothing yet."""
        return cast(Callable[[Any, Batch], Tensor], cloudpickle.loads(self._pickle))

    def __call__(self, model: Any, batch: Batch) -> Tensor:
        """The losses of a batch, [rows]."""
        with seeded(_SEED, next(model.parameters()).device):
            return self.copy()(model, batch)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Let torch draw under a public seed, on the CPU and the device, and go on where it was afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
