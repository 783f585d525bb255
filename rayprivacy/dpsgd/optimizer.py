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

BETAS = (0.9, 0.999)  # of AdamW, as in torch


@dataclass(frozen=True)
class Schedule:
    """The learning rate of every step.

    It is `learning_rate` at the first step, and then stays, or falls as a line or half a cosine that would be zero one
    step after the last.

    Attributes:
        config: the kind of the schedule, and the learning rate.
        steps: T, all steps of the run.

    >>> schedule = Schedule(OptimizerConfig(learning_rate=1.0), steps=4)
    >>> [schedule.rate(step) for step in range(4)]
    [1.0, 0.75, 0.5, 0.25]
    """

    config: OptimizerConfig
    steps: int

    def __post_init__(self) -> None:
        if self.config.learning_rate is None:
            raise ConfigError("training.optimizer.learning_rate is not set: give a number above 0.")

    def rate(self, step: int) -> float:
        """The learning rate of a step, from 0."""
        highest, past = self.config.learning_rate or 0.0, min(step / self.steps, 1.0)
        if self.config.schedule == "linear":
            return highest * (1 - past)
        if self.config.schedule == "cosine":
            return highest * (1 + math.cos(math.pi * past)) / 2
        return highest


def make_optimizer(config: OptimizerConfig, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    """The optimizer of torch that the recipe names; its learning rate is set before each step."""
    if config.kind == "adamw":
        return torch.optim.AdamW(parameters, lr=0.0, betas=BETAS, weight_decay=config.weight_decay)
    return torch.optim.SGD(parameters, lr=0.0, momentum=config.momentum, weight_decay=config.weight_decay)
