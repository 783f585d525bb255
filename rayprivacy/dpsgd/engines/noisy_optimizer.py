"""What all engines share: an optimizer through which every weight update passes, and which adds the noise or raises.

What step t releases is (sum of clipped gradients + N(0, std_t^2 I)) / B (Abadi et al., 2016, algorithm 1), with a
public B and the std_t of the mechanism that is charged. The optimizer of each rank owns some coordinates; a hook that
runs right before its step adds keyed noise (dpsgd/noise.py), drawn on the device of the sum, to all of these, once,
correlated over steps where the mechanism says so. Which rank owns a coordinate cannot change its noise, and
`check_manifest` requires at construction that each is owned once.

The hook fails closed. It refuses to step when no step is open, when a gradient is missing or has another size, and when
a tensor is not in the manifest or was noised before; and a step that left one without noise (an optimizer that skips
steps by looking at gradients would) is an error. A step number is used once: after a failure only `load` goes back.

Noise is left out in one case: in the steps that the mechanism lists as redacted and gives no light noise
(`release.step_mechanism`). Such a step is post-processing of the noisy ones. A step that is listed as redacted, with
light noise or without, is refused unless all that it has read are redacted copies.

An engine may hand over a sum in float64 (`hand_over`). It meets its noise as it is, and is rounded to float32 with it:
rounding what is noisy already is post-processing.
"""

import hashlib
import json
import math
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rayprivacy.core.errors import ReleaseError
from rayprivacy.dpsgd import collectives
from rayprivacy.dpsgd.clipping import AnyBatch, ClippedGradients, Lazy
from rayprivacy.dpsgd.engines.state import Fragment, Partition, check_manifest, read_state, write_state
from rayprivacy.dpsgd.noise import CorrelatedNoise, KeyedNoise
from rayprivacy.dpsgd.optimizer import Schedule
from rayprivacy.release.step_mechanism import NoisySteps

_DRAWN_AT_ONCE = 1 << 22  # coordinates: bounds what the noise of a large parameter takes at a time
_PROBE = ""  # no parameter has this name


@dataclass(frozen=True)
class StepNoise:
    """The noise of every step, and what the noisy sum is divided by."""

    noise: KeyedNoise  # standard normal, by step, parameter and coordinate
    # whose `strategy` correlates it over steps, and whose `noise_std` of a step multiplies it, on the SUM of clipped
    # gradients
    mechanism: NoisySteps
    expected_batch: float  # B, public
    # alpha_k by parameter, with which noise is multiplied besides, and by which gradients were divided before they were
    # clipped; none where all parameters are alike
    scales: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for step, std in enumerate(self.stds):
            if not 0 <= std < math.inf:
                raise ReleaseError(f"std of the noise of step {step} is {std}: give sigma times the clipping norm.")
        if not 0 < self.expected_batch < math.inf:
            raise ReleaseError(f"expected_batch is {self.expected_batch}: give a finite number above 0.")
        if not all(0 < scale < math.inf for scale in self.scales.values()):
            raise ReleaseError("a scale of a layer is not positive and finite: take scales from layer_scale.")

    def scale_of(self, name: str) -> float:
        """alpha_k of a parameter; 1 where there are no scales, and refused where there are some and none of it."""
        if self.scales and name not in self.scales:
            raise ReleaseError(f"parameter '{name}' has no layer scale: train what the scales were made for.")
        return self.scales[name] if self.scales else 1.0

    @property
    def stds(self) -> list[float]:
        """Standard deviation of the noise of each step."""
        return [self.mechanism.noise_std(step) for step in range(self.mechanism.steps)]


class NoisyOptimizer:
    """An optimizer of torch whose every step is noisy; collective to construct.

    It updates the partitions, all that this rank updates, wherever its `step` is called. `sizes` are numbers of
    coordinates of the trainable parameters. `replicated`: every rank holds, noises and updates all of them. Gradients
    times `scale` are sums over all ranks. Refused are a coordinate that no rank or two ranks own, and ranks that
    disagree about the noise.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        partitions: Sequence[Partition],
        sizes: Mapping[str, int],
        replicated: bool,
        noise: StepNoise,
        schedule: Schedule,
        scale: float = 1.0,
    ) -> None:
        self._optimizer, self._partitions, self._sizes = optimizer, partitions, dict(sizes)
        self._replicated, self._noise, self._schedule, self._scale = replicated, noise, schedule, scale
        self._elements = {id(partition.tensor): partition.tensor.numel() for partition in partitions}
        self._redacted, self._free = noise.mechanism.redacted_steps, noise.mechanism.noiseless_steps
        self._stream = CorrelatedNoise(noise.noise, noise.mechanism.strategy)
        self._due: dict[int, Partition] | None = None
        self._noised: set[int] = set()
        self._step = -1
        check_manifest(self._sizes, collectives.gather(self.fragments()), replicated)
        if len(set(collectives.gather(_fingerprint(noise)))) > 1:
            raise ReleaseError("ranks differ in the noise they would draw: give all the same key, run and settings.")
        optimizer.register_step_pre_hook(self._before_step)

    def fragments(self) -> list[Fragment]:
        """What this rank owns."""
        return [piece.fragment for partition in self._partitions for piece in partition.pieces]

    @contextmanager
    def open(self, step: int, redacted: bool = False) -> Iterator[None]:
        """Within this, the optimizer takes one step, number `step`; collective.

        `redacted`: this rank reads redacted copies alone; if one does not, all are refused. So are a step that the
        mechanism does not have, one that was opened before or follows one, and a partition that is left without noise.
        """
        if step >= self._noise.mechanism.steps:
            raise ReleaseError(f"step {step} is not one of the {self._noise.mechanism.steps} that are charged: stop.")
        if step <= self._step:
            raise ReleaseError(f"step {step} was opened before: go on with {self._step + 1}, or load a saved state.")
        if step in self._redacted and collectives.largest(int(not redacted), self._partitions[0].tensor.device):
            raise ReleaseError(f"step {step} is a redacted one and was given full text: give it redacted copies alone.")
        self._step = step
        self._due = {id(partition.tensor): partition for partition in self._partitions}
        for group in self._optimizer.param_groups:
            group["lr"] = self._schedule.rate(step)
        try:
            yield
            if self._due:
                raise ReleaseError(
                    f"step {step} left {len(self._due)} of {len(self._partitions)} partitions without noise: "
                    "load the last saved state."
                )
        finally:
            self._due = None
            self._noised.clear()

    def hand_over(self, tensor: Tensor, summed: Tensor) -> None:
        """Make a sum of clipped gradients, float64, the tensor's noisy gradient, once; within `open`."""
        partition = (self._due or {}).get(id(tensor))
        if partition is None or id(tensor) in self._noised:
            raise ReleaseError(f"step {self._step} was given a sum twice, or one that is not in the noise manifest.")
        self._noised.add(id(tensor))
        self._add_noise(partition, summed)

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._due is None:
            raise ReleaseError("the optimizer was told to step while no noisy step is open: call the engine's step.")
        for group in optimizer.param_groups:
            for tensor in group["params"]:
                partition = self._due.pop(id(tensor), None)
                if partition is None:
                    raise ReleaseError(
                        f"step {self._step} would update a tensor twice, or one that is not in the noise manifest: "
                        "load the last saved state."
                    )
                if id(tensor) not in self._noised:
                    self._add_noise(partition, tensor.grad)

    @torch.no_grad()
    def _add_noise(self, partition: Partition, summed: Tensor | None) -> None:
        tensor, expected = partition.tensor, self._elements[id(partition.tensor)]
        if summed is None or summed.numel() != expected or summed.dtype not in (torch.float32, torch.float64):
            found = "no gradient" if summed is None else f"{summed.numel()} {summed.dtype} gradients"
            raise ReleaseError(f"step {self._step} has {found} for {expected} float32 coordinates: load a saved state.")
        summed = summed.contiguous()
        flat = summed.view(-1).mul_(self._scale)
        for piece in partition.pieces if self._step not in self._free else ():
            self._add(flat[piece.place], piece.fragment)
        for gap in partition.gaps:
            flat[gap] = 0
        flat.div_(self._noise.expected_batch)
        tensor.grad = summed.to(torch.float32)

    def _add(self, flat: Tensor, fragment: Fragment) -> None:
        std = self._noise.mechanism.noise_std(self._step)
        std *= self._noise.scale_of(fragment.name)
        for first in range(0, fragment.count, _DRAWN_AT_ONCE):
            part = flat[first : first + _DRAWN_AT_ONCE]
            drawn = self._stream.normal(self._step, fragment.name, fragment.start + first, len(part), part.device)
            part.add_(drawn.to(part.dtype), alpha=std)

    def save(self, folder: Path) -> None:
        """Write what this rank owns (`state.write_state`); collective."""
        write_state(folder, self._optimizer, self._partitions, self._replicated, self._step + 1)

    def load(self, folder: Path) -> None:
        """Set what this rank owns, and the number of steps done, from what any ranks saved; collective."""
        self._step = read_state(folder, self._optimizer, self._partitions, self._sizes) - 1


class Engine:
    """A model in training; all functions but `fragments` are collective.

    Losses and norms of gradients are private. They are computed inside, and leave no engine.
    """

    _model: Any
    _losses: Callable[[Any, Any], Any]
    _gradients: ClippedGradients
    _noisy: NoisyOptimizer
    in_rows = False  # whether units are to come in `Row`s

    def step(self, step: int, batches: Sequence[AnyBatch]) -> None:
        """Take one logical step on all ranks; each number, from 0, is used once.

        `batches` are physical batches of the users that were sampled on this rank, or their micro-batches where these
        are clipped; there may be none. Refused is a step that was taken before, one that would release a coordinate
        without noise, and a redacted one where a batch is not of redacted copies alone.
        """
        with self._noisy.open(step, redacted=all(batch.redacted for batch in batches)):
            self._take(batches)

    def _take(self, batches: Sequence[AnyBatch]) -> None:
        """Hand over the clipped sums of all ranks, and let the optimizer step."""
        raise NotImplementedError

    def _clipped(self, batch: AnyBatch, live: bool = True) -> Lazy:
        return self._gradients(lambda: self._losses(self._model, batch), batch.by_unit, live)

    def _spread(self) -> None:
        raise NotImplementedError

    def fragments(self) -> list[Fragment]:
        """Which coordinates this rank's optimizer owns, hence adds noise to."""
        return self._noisy.fragments()

    def save(self, folder: Path) -> None:
        """Write float32 weights and optimizer state into an existing folder, by parameter name and range."""
        self._noisy.save(folder)

    def load(self, folder: Path) -> None:
        """Go on from what any engine on any number of ranks has saved; every rank refuses what is damaged."""
        self._noisy.load(folder)
        self._spread()

    def state_dict(self) -> dict[str, Tensor]:
        """What is released: the trainable parameters by name, whole, float32, on the CPU of every rank."""
        raise NotImplementedError


def _fingerprint(noise: StepNoise) -> str:
    probe = noise.noise.normal(0, _PROBE, 0, 8).numpy().tobytes()
    scales = array("d", [*noise.stds, *noise.mechanism.strategy, noise.expected_batch]).tobytes()
    layers = json.dumps(sorted(noise.scales.items())).encode()
    return hashlib.sha256(scales + layers + probe).hexdigest()
