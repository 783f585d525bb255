"""Steps with DeepSpeed's ZeRO: ranks share the optimizer (1), the gradients too (2), and the parameters too (3).

DeepSpeed keeps what it is good at, moving and sharding tensors. Clipped sums enter through its own gradient hooks
(`sums.surrogate`), and noise is added to the part that this rank's optimizer owns, right before it steps
(`noisy_optimizer.NoisyOptimizer`). Stage 0 shares nothing and is there for comparison.

Ranks hold different numbers of physical batches, which are private and cannot be made equal by dropping users. Below
stage 3 a rank adds up its batches by itself and there is one collective pass per step, whatever their number. In
stage 3 the forward pass is collective already, so ranks agree on the largest number, and one that has run out feeds a
dummy batch whose coefficients are 0. They also use a frozen head, which takes a fixed number of tokens at a time,
equally often: each use gathers its weights.

Trainable parameters and gradients are float32 throughout. Rounding a sum of many clipped gradients to bfloat16 could
change it by more than C when one user comes or goes, so sums are never held, or sent, in less. Activations may be
bfloat16: let `losses` use autocast.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from rayprivacy.core.errors import ConfigError
from rayprivacy.dpsgd import collectives
from rayprivacy.dpsgd.batches import Batch, dummy_batch
from rayprivacy.dpsgd.engines import partitions
from rayprivacy.dpsgd.engines.deepspeed_setup import find_deepspeed, never_skip, settings
from rayprivacy.dpsgd.engines.manifest import Fragment
from rayprivacy.dpsgd.engines.noisy_optimizer import NoisyOptimizer, StepNoise
from rayprivacy.dpsgd.engines.sums import add_up, full_shapes, surrogate
from rayprivacy.dpsgd.gradients import ClippedGradients, Lazy
from rayprivacy.dpsgd.microbatches import MicroBatch
from rayprivacy.dpsgd.optimizer import Schedule, make_optimizer

_ANY_TOKEN = 0


class ZeroEngine:
    """See `engine.Engine`; takes the model over, and starts from the weights of rank 0.

    The model is on the device where it is trained. `offload` keeps the optimizer's part in the memory of the host.
    """

    def __init__(
        self,
        model: Any,
        gradients: ClippedGradients,
        noise: StepNoise,
        schedule: Schedule,
        losses: Callable[[Any, Any], Any],
        stage: int,
        offload: bool,
    ) -> None:
        if not collectives.grouped():
            raise ConfigError(f"resources.zero is {stage} without a process group: let Ray Train start the workers.")
        if offload and stage == 0:
            raise ConfigError(
                "resources.offload needs resources.zero 1, 2 or 3: stage 0 keeps everything on each rank."
            )
        self._parameters = partitions.trainable_parameters(model)
        self._device = next(iter(self._parameters.values())).device
        self._deepspeed = find_deepspeed(self._device)
        for parameter in self._parameters.values():
            parameter.data = parameter.data.float()
        optimizer = make_optimizer(schedule.config, self._parameters.values())
        self._engine = self._deepspeed.initialize(
            model=model, optimizer=optimizer, config=settings(stage, offload), dist_init_required=False
        )[0]
        never_skip(self._engine.optimizer, stage)
        self._model, self._losses, self._stage = self._engine.module, losses, stage
        self._gradients = gradients
        self._noisy = NoisyOptimizer(
            self._engine.basic_optimizer,
            self._partitions(),
            {name: partitions.size(parameter) for name, parameter in self._parameters.items()},
            stage == 0,
            noise,
            schedule,
            scale=collectives.world() if stage == 3 else 1,
        )

    def _partitions(self) -> list[partitions.Partition]:
        names = {parameter: name for name, parameter in self._parameters.items()}
        if self._stage == 0:
            return partitions.whole(self._parameters)
        if self._stage == 3:
            return partitions.of_stage_3(self._engine.optimizer, names, collectives.rank())
        return partitions.of_stages_1_and_2(self._engine.optimizer, names)

    def step(self, step: int, batches: Sequence[Batch | MicroBatch]) -> None:
        """See `engine.Engine`."""
        with self._noisy.open(step, redacted=all(batch.redacted for batch in batches)):
            if self._stage == 3:
                self._reduce_each(batches)
            else:
                self._reduce_once(batches)
            self._engine.step()

    def _reduce_once(self, batches: Sequence[Batch | MicroBatch]) -> None:
        if len(batches) == 1:
            self._backward(self._clipped(batches[0]))
            return
        sums = add_up(self._clipped(batch) for batch in batches)
        self._backward({parameter: partial(sums.pop, parameter) for parameter in list(sums)})

    def _reduce_each(self, batches: Sequence[Batch | MicroBatch]) -> None:
        passes = max(1, collectives.largest(len(batches), self._device))
        for number in range(passes):
            live = number < len(batches)
            batch = batches[number] if live else dummy_batch(_ANY_TOKEN)
            assert isinstance(batch, Batch), "stage 3 takes no micro-batches"
            # The head is used as often as on the rank with the most targets.
            padded = replace(batch, least_targets=collectives.largest(batch.targets, self._device))
            lazy = self._clipped(padded, live)
            self._engine.set_gradient_accumulation_boundary(number == passes - 1)
            self._backward(lazy)

    def _clipped(self, batch: Batch | MicroBatch, live: bool = True) -> Lazy:
        return self._gradients(lambda: self._losses(self._model, batch), batch.rows_per_unit, live)

    def _backward(self, sums: Mapping[nn.Parameter, Callable[[], Tensor]]) -> None:
        if self._stage:  # otherwise a second pass would replace, not add to, what the first one left
            self._engine.optimizer.clear_backward_seen_flag()
        with full_shapes(self._parameters.values()):
            self._engine.backward(surrogate(self._parameters.values(), sums))

    def fragments(self) -> list[Fragment]:
        """See `engine.Engine`."""
        return self._noisy.fragments()

    def save(self, folder: Path) -> None:
        """See `engine.Engine`."""
        self._noisy.save(folder)

    def load(self, folder: Path) -> None:
        """See `engine.Engine`."""
        self._noisy.load(folder)
        self._spread()

    def _spread(self) -> None:
        """Let the model hold what the optimizer's partitions do."""
        if self._stage in (1, 2):
            self._engine.optimizer.update_lp_params()
        elif self._stage == 3:
            self._engine.optimizer._partition_all_parameters()  # what is gathered already would stay as it is
            for group in range(len(self._engine.optimizer.fp16_groups)):
                self._engine.optimizer._reassign_or_swap_out_partitioned_parameters(group)
            self._engine.optimizer._post_step(set())

    def state_dict(self) -> dict[str, Tensor]:
        """See `engine.Engine`."""
        return {name: self._whole(parameter) for name, parameter in self._parameters.items()}

    def _whole(self, parameter: nn.Parameter) -> Tensor:
        if self._stage < 3:
            return parameter.detach().cpu().clone()
        with self._deepspeed.zero.GatheredParameters([parameter]):
            return parameter.detach().cpu().clone()
