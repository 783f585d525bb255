"""Ordinary training on public text: AdamW, a step for each batch, and the loss on examples that it does not read.

Nothing private is read, so it costs nothing. Whoever calls it decides what an example is, and what is predicted in it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from rayprivacy.core.counting import Told

E = TypeVar("E")
LARGEST_NORM = 1.0  # of a gradient, where training is guarded


@dataclass(frozen=True)
class Objective(Generic[E]):
    """What a model learns from examples.

    Attributes:
        loss: of a model on a few examples, summed over what is predicted in them, in nats.
        predicted: how many predictions a few examples ask for.
        at_once: examples in one call of the model; it bounds memory, and leaves gradients as they are.
    """

    loss: Callable[[Any, Sequence[E]], torch.Tensor]
    predicted: Callable[[Sequence[E]], int]
    at_once: int

    def calls(self, examples: Sequence[E]) -> Iterator[Sequence[E]]:
        """The examples, call after call of the model."""
        return (examples[start : start + self.at_once] for start in range(0, len(examples), self.at_once))

    @torch.no_grad()
    def mean_loss(self, model: Any, examples: Sequence[E]) -> float:
        """Loss of a prediction, in nats."""
        total = sum(float(self.loss(model, few)) for few in self.calls(examples))
        return total / max(1, self.predicted(examples))


def fit(
    model: Any,
    objective: Objective[E],
    batches: Iterable[Sequence[E]],
    held_out: Sequence[E],
    learning_rate: float,
    told: Told,
    guarded_steps: int | None = None,
) -> dict[str, float]:
    """Train what of a model can be trained.

    Args:
        model: a Hugging Face model; it is changed.
        objective: what it learns.
        batches: the examples of each step.
        held_out: examples on which the loss is measured.
        learning_rate: of AdamW.
        told: told how many steps are done.
        guarded_steps: how many batches there are, for many steps at a high rate: the learning rate then falls linearly
            towards zero, and gradients are clipped to norm 1, so that no batch throws the model off.

    Returns:
        `loss_before` and `loss_after`: of a prediction on the held-out examples, in nats.
    """
    before = objective.mean_loss(model, held_out)
    learning = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr=learning_rate)
    for step, batch in enumerate(batches, start=1):
        optimizer.zero_grad()
        predicted = max(1, objective.predicted(batch))
        for few in objective.calls(batch):
            (objective.loss(model, few) / predicted).backward()
        if guarded_steps:
            torch.nn.utils.clip_grad_norm_(learning, LARGEST_NORM)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate * (1 - (step - 1) / guarded_steps)
        optimizer.step()
        told(step)
    return {"loss_before": before, "loss_after": objective.mean_loss(model, held_out)}
