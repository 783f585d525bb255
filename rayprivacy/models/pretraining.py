"""Training without privacy: a loop of steps, a fit to public examples, and the pretraining of a base model.

Pretraining moves all weights on further public text, so that private steps begin nearer to their end:

    public texts, in an order that a public seed draws -> a tenth of them held out
    the others -> token ids, packed into rows of one length -> AdamW on next tokens -> the same model, other weights

Weights are trained in float32, because a step is far smaller than the spacing of bfloat16 numbers, and rounded to the
base's number format at the end; products are computed in that format. Equal inputs give equal bits on one machine.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from rayprivacy.core.console import Told, nobody
from rayprivacy.core.errors import ConfigError
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.features import Row, layout, pack, predicts
from rayprivacy.models.settings import AdapterConfig, PretrainConfig
from rayprivacy.models.trainable import merged, trainable

E = TypeVar("E")
LARGEST_NORM = 1.0  # of a gradient, where training is guarded
SEED = 0  # public: of which examples are held out, and of the order of the others
HELD_OUT = 0.1  # of public texts: their loss is measured
CALL_TOKENS = 1024  # in one call of the model: 200 MB of logits with 49,152 tokens
_GROUP = 64  # documents that are packed together: time grows with the number of rows that each is offered to
PublicText = str | list[int]


def descend(
    optimizer: torch.optim.Optimizer,
    losses: Iterable[Iterable[torch.Tensor]],
    progress: Told = nobody,
    *,
    falling_over: int | None = None,
    largest_norm: float | None = None,
) -> None:
    """Take a step for each of `losses`, which come in parts that are added up; one part at a time is computed.

    The learning rate is the optimizer's, and falls linearly to zero over `falling_over` steps where that is given. A
    gradient longer than `largest_norm` is clipped to it.
    """
    rates = [group["lr"] for group in optimizer.param_groups]
    for step, parts in enumerate(losses):
        optimizer.zero_grad()
        for part in parts:
            part.backward()
        if largest_norm is not None:
            trained = [each for group in optimizer.param_groups for each in group["params"]]
            torch.nn.utils.clip_grad_norm_(trained, largest_norm)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * (1 - step / falling_over) if falling_over else rate
        optimizer.step()
        progress(step + 1)


@dataclass(frozen=True)
class Objective(Generic[E]):
    """What a model learns from examples; a caller decides what an example is, and what is predicted in it."""

    loss: Callable[[Any, Sequence[E]], torch.Tensor]  # on a few examples, summed over what is predicted, in nats
    predicted: Callable[[Sequence[E]], int]  # how many predictions a few examples ask for
    at_once: int  # examples in one call of the model; it bounds memory, and leaves gradients as they are

    def summed(self, model: Any, examples: Sequence[E]) -> Iterator[torch.Tensor]:
        """The losses of the examples, call after call of the model."""
        return (self.loss(model, examples[at : at + self.at_once]) for at in range(0, len(examples), self.at_once))

    def parts(self, model: Any, examples: Sequence[E]) -> Iterator[torch.Tensor]:
        """The mean loss of a prediction, in one part for each call of the model."""
        predicted = max(1, self.predicted(examples))
        return (summed / predicted for summed in self.summed(model, examples))

    @torch.no_grad()
    def mean_loss(self, model: Any, examples: Sequence[E]) -> float:
        """Loss of a prediction, in nats."""
        return sum(map(float, self.summed(model, examples))) / max(1, self.predicted(examples))


def fit(
    model: Any,
    objective: Objective[E],
    batches: Iterable[Sequence[E]],
    held_out: Sequence[E],
    learning_rate: float,
    progress: Told,
    block: str,
    guarded_steps: int | None = None,
) -> dict[str, float]:
    """Train by AdamW what of a model can be trained; the losses before and after are of a held-out prediction, in nats.

    `guarded_steps`, the number of batches, is for many steps at a high rate: the learning rate falls linearly towards
    zero, and gradients are clipped to norm 1, so that no batch throws the model off. Training that diverges is refused
    in the name of the recipe's block.
    """
    before = objective.mean_loss(model, held_out)
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=learning_rate)
    losses = (objective.parts(model, batch) for batch in batches)
    largest_norm = LARGEST_NORM if guarded_steps else None
    descend(optimizer, losses, progress, falling_over=guarded_steps, largest_norm=largest_norm)
    after = objective.mean_loss(model, held_out)
    if not math.isfinite(after):
        raise ConfigError(f"{block}.learning_rate is {learning_rate:g}, and training diverges: lower it.")
    return {"loss_before": before, "loss_after": after}


def held_out(texts: Sequence[E], most: int | None = None) -> tuple[list[E], list[E]]:
    """A tenth of the texts, at least one and at most `most`, and the others, in an order that `SEED` draws."""
    order = np.random.default_rng(SEED).permutation(len(texts)).tolist()
    held = max(1, min(int(HELD_OUT * len(texts)), most or len(texts)))
    return [texts[place] for place in order[:held]], [texts[place] for place in order[held:]]


def endlessly(examples: Sequence[E], dice: np.random.Generator) -> Iterator[E]:
    """Examples in an order that the dice draw: all of them once before any comes again."""
    while True:
        yield from (examples[place] for place in dice.permutation(len(examples)))


def pretrained(
    backbone: Backbone, texts: Sequence[PublicText], config: PretrainConfig, held_rows: int, progress: Told
) -> tuple[Any, dict[str, float]]:
    """The model after training, in the base's number format; and its loss on held-out text before and after.

    The texts, at least two, are public: text, or token ids `start, ..., end`, without `end` where a text goes on. The
    loss is measured on at most `held_rows` rows.
    """
    most = getattr(backbone.model.config, "max_position_embeddings", None)
    if most is not None and config.max_tokens > most:
        raise ConfigError(f"pretrain.max_tokens is {config.max_tokens}, and the base model takes {most}: lower it.")
    held, others = (_rows(backbone, part, config.max_tokens) for part in held_out(texts))
    rows = list(itertools.islice(others, config.steps * config.batch))
    model = trainable(backbone, AdapterConfig(kind="full"))
    objective = Objective(_loss_in(backbone.model.dtype), _predicted, max(1, CALL_TOKENS // config.max_tokens))
    drawn = endlessly(rows, np.random.default_rng(SEED))
    batches = (list(itertools.islice(drawn, config.batch)) for _ in range(config.steps))
    first = list(itertools.islice(held, held_rows))
    figures = fit(model, objective, batches, first, config.learning_rate, progress, "pretrain")
    return merged(model, backbone), figures


def _rows(backbone: Backbone, texts: Iterable[PublicText], row_tokens: int) -> Iterator[Row]:
    documents = (
        backbone.document(text, row_tokens - 2) if isinstance(text, str) else text[:row_tokens] for text in texts
    )
    while group := list(itertools.islice(documents, _GROUP)):
        yield from pack(group, row_tokens, len(group))


def _predicted(rows: Sequence[Row]) -> int:
    return sum(int(predicts(row.segment).sum()) for row in rows)


def _loss_in(dtype: torch.dtype) -> Any:
    """The loss of a few rows, with the products of the model computed in a number format."""

    def loss(model: Any, rows: Sequence[Row]) -> torch.Tensor:
        ids, keep = torch.stack([row.ids for row in rows]), predicts(torch.stack([row.segment for row in rows]))
        with torch.autocast(model.device.type, dtype, enabled=dtype != torch.float32):
            logits = model(input_ids=ids, **layout(rows, dtype, ids.device)).logits
        return torch.nn.functional.cross_entropy(logits[:, :-1][keep].float(), ids[:, 1:][keep], reduction="sum")

    return loss
