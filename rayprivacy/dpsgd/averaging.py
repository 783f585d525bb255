"""Averages of the weights over steps: less noise in the released model, for nothing.

The weights after each step are made of noisy gradients alone, so their average is post-processing. It is kept in the
optimizer's state, hence saved and loaded with it, and released in place of the last weights.

    ema     average of all weights so far, in which those of k steps ago weigh decay^k; at the beginning the decay is
            (1 + t) / (10 + t) at most, so that the first weights are forgotten soon (De et al., 2022, "Unlocking
            High-Accuracy Differentially Private Image Classification through Scale")
    tail    plain mean over the last steps (Polyak and Juditsky, 1992)

Both are the same update, average += share * (weights - average), with a share that depends on the step alone. So a run
that is resumed, on any number of ranks, needs to know nothing but the average and the step.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from rayprivacy.dpsgd.engines.partitions import Partition
from rayprivacy.dpsgd.settings import DpSgdConfig

_NAME = "average"  # in the optimizer's state, beside what is its own


@dataclass(frozen=True)
class Averaging:
    """Which average is released; None is the last weights themselves.

    Attributes:
        config: the kind of average, and its decay or its part of the steps.

    >>> averaging = Averaging(DpSgdConfig(steps=8, average="tail", tail=0.5))
    >>> [round(averaging.share(step), 2) for step in range(8)]
    [1.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.33, 0.25]
    """

    config: DpSgdConfig | None = None

    def share(self, step: int) -> float:
        """The share of the weights after a step, from 0, in the average after it; 1 forgets what was before."""
        config = self.config
        if config is None or config.average == "none" or step == 0:
            return 1.0
        if config.average == "ema":
            return 1 - min(config.ema_decay, (1 + step) / (10 + step))
        first = config.steps - max(1, round(config.tail * config.steps))
        return 1 / max(1, step - first + 1)


LAST_WEIGHTS = Averaging()


class Averages:
    """The averages of what one rank's optimizer updates.

    Args:
        averaging: which average; that of the last weights leaves everything as it is.
        optimizer: in whose state the averages are.
        partitions: all that it updates on this rank.
    """

    def __init__(self, averaging: Averaging, optimizer: torch.optim.Optimizer, partitions: Sequence[Partition]) -> None:
        self._averaging, self._optimizer = averaging, optimizer
        wanted = averaging.config is not None and averaging.config.average != "none"
        self._tensors = [partition.tensor for partition in partitions] if wanted else []

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take the weights after a step into the averages."""
        share = self._averaging.share(step)
        for tensor in self._tensors:
            state = self._optimizer.state[tensor]
            if share == 1:
                state[_NAME] = tensor.detach().clone()
            else:
                state[_NAME].lerp_(tensor, share)

    @contextmanager
    def in_place(self) -> Iterator[bool]:
        """Within this the tensors hold the averages; whether there are any, which is so after the first step."""
        held = [(tensor, self._optimizer.state.get(tensor, {}).get(_NAME)) for tensor in self._tensors]
        there = [(tensor, tensor.detach().clone(), average) for tensor, average in held if average is not None]
        for tensor, _, average in there:
            tensor.data.copy_(average)
        try:
            yield bool(there)
        finally:
            for tensor, weights, _ in there:
                tensor.data.copy_(weights)
