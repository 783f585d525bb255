"""The optimizer and its learning rate; post-processing of the noisy gradient, so nothing here touches privacy.

The learning rate is a pure function of the step. A run that is resumed, on any number of ranks, finds it without any
saved state.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from rayprivacy.core.errors import ConfigError
from rayprivacy.dpsgd.settings import OptimizerConfig


@dataclass(frozen=True)
class Schedule:
    """The learning rate of every step.

    It rises in equal parts over the warm-up, without being zero, is `learning_rate` at the first step after it, and
    then stays, or falls as a line or half a cosine that would be zero one step after the last.

    >>> schedule = Schedule(OptimizerConfig(learning_rate=1.0, warmup_steps=1), steps=5)
    >>> [schedule.rate(step) for step in range(5)]
    [0.5, 1.0, 0.75, 0.5, 0.25]
    """

    config: OptimizerConfig  # kind and length of the warm-up, and the learning rate
    steps: int  # T, all steps of the run

    def __post_init__(self) -> None:
        if self.config.learning_rate is None:
            raise ConfigError("training.optimizer.learning_rate is not set: give a number above 0.")
        if self.config.warmup_steps >= self.steps:
            raise ConfigError(
                f"training.optimizer.warmup_steps is {self.config.warmup_steps} of {self.steps} steps: give fewer."
            )

    def rate(self, step: int) -> float:
        """The learning rate of a step, from 0."""
        highest, warmup = self.config.learning_rate or 0.0, self.config.warmup_steps
        if step < warmup:
            return highest * (step + 1) / (warmup + 1)
        past = min((step - warmup) / (self.steps - warmup), 1.0)
        if self.config.schedule == "linear":
            return highest * (1 - past)
        if self.config.schedule == "cosine":
            return highest * (1 + math.cos(math.pi * past)) / 2
        return highest


def make_optimizer(config: OptimizerConfig, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    """The optimizer of torch that the recipe names; its learning rate is set before each step."""
    if config.kind == "adamw":
        return torch.optim.AdamW(parameters, lr=0.0, betas=config.betas, weight_decay=config.weight_decay)
    return torch.optim.SGD(parameters, lr=0.0, momentum=config.momentum, weight_decay=config.weight_decay)
