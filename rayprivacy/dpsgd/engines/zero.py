"""Steps with DeepSpeed's ZeRO: ranks share the optimizer (1), the gradients too (2), and the parameters too (3).

DeepSpeed keeps what it is good at, moving and sharding tensors. Clipped sums enter through its own gradient hooks
(`_surrogate`), and noise is added to the part that this rank's optimizer owns, right before it steps
(`noisy_optimizer.NoisyOptimizer`). Stage 0 shares nothing and is there for comparison.

Ranks hold different numbers of physical batches, which are private and cannot be made equal by dropping users. Below
stage 3 a rank adds up its batches by itself and there is one collective pass per step, whatever their number. In
stage 3 the forward pass is collective already, so ranks agree on the largest number, and one that has run out feeds a
dummy batch whose coefficients are 0. They also use a frozen head, which takes a fixed number of tokens at a time,
equally often: each use gathers its weights.

Trainable parameters and gradients are float32 throughout. Rounding a sum of many clipped gradients to bfloat16 could
change it by more than C when one user comes or goes, so sums are never held, or sent, in less. Activations may be
bfloat16: let `losses` use autocast.

DeepSpeed is imported here and nowhere else, when an engine is made. Ranks are summed, not averaged, and nothing looks
at gradients. What is turned off, and why:

    gradient clipping           clips the sum after users were added up, and reads its norm, which is private
    loss scaling, float16       steps that overflow are skipped, which tells something about the data
    skipping by gradient norm   ZeRO drops a step whose norm is not finite; `_never_skip` takes the norm away
    logging                     it prints what it measures
    compiled operators          they build for a minute when first used; torch's own optimizers are used instead

DeepSpeed takes gradients from hooks that fire as autograd hands them to parameters. So each parameter gets a scalar
surrogate whose derivative is defined to be its clipped sum: one backward pass through the sum of surrogates computes
one clipped sum after the other, and each is reduced, and freed, before the next. No second pass through the model.
"""

import logging
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rayprivacy.core.errors import ConfigError
from rayprivacy.dpsgd import collectives
from rayprivacy.dpsgd.batches import Batch, Row, dummy_batch
from rayprivacy.dpsgd.clipping import AnyBatch, ClippedGradients, Lazy
from rayprivacy.dpsgd.engines import state
from rayprivacy.dpsgd.engines.noisy_optimizer import Engine, NoisyOptimizer, StepNoise
from rayprivacy.dpsgd.optimizer import Schedule, make_optimizer

# Elements, not bytes. DeepSpeed's defaults (5e8) would allocate 2 GB on each rank before the first gradient.
LIMITS: dict[str, int] = {"reduce_bucket_size": 1 << 21, "allgather_bucket_size": 1 << 21}
STAGE_3_LIMITS: dict[str, int] = {
    "stage3_param_persistence_threshold": 1 << 14,
    "stage3_prefetch_bucket_size": 1 << 21,
    "sub_group_size": 1 << 28,
}
_ANY_TOKEN = 0


def find_deepspeed(device: torch.device) -> Any:
    """Import DeepSpeed for a kind of device; refused where it is not installed."""
    os.environ.setdefault("DS_ACCELERATOR", device.type)
    try:
        import deepspeed
    except ImportError:
        raise ConfigError(
            'resources.zero needs DeepSpeed, which is not installed: run pip install "rayprivacy[deepspeed]", '
            "or leave resources.zero out."
        ) from None
    # Off, because it would be compiled when first used, for 40 seconds.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    # DeepSpeed calls collectives of torch by their old names, and each call would print that.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    return deepspeed


def _settings(stage: int, offload: bool) -> dict[str, object]:
    zero: dict[str, object] = {"stage": stage, "overlap_comm": False, "contiguous_gradients": True, **LIMITS}
    if stage == 3:
        zero.update(STAGE_3_LIMITS)
    if offload:
        zero["offload_optimizer"] = {"device": "cpu"}
    found: dict[str, object] = {
        "train_micro_batch_size_per_gpu": 1,  # DeepSpeed wants a number; batches are our own
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.0,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    if stage < 3:  # stage 3 knows no sum: its mean is multiplied back
        found["gradient_allreduce_op"] = "sum"
    return found


def _never_skip(zero: Any, stage: int) -> None:
    """Take away what makes DeepSpeed's optimizer drop a step: the norm of the gradients, and the test for overflow."""
    below_3 = ("check_grad_overflow", "compute_grad_norm")
    switches = {1: below_3, 2: below_3, 3: ("_get_norm_groups",)}
    for name in switches.get(stage, ()):
        if not hasattr(zero, name):
            raise ConfigError(
                f"this version of DeepSpeed has no '{name}': install deepspeed 0.19.8, or leave resources.zero out."
            )
        setattr(zero, name, (lambda: [torch.zeros(())]) if stage == 3 else False)


def add_up(lazies: Iterable[Lazy]) -> dict[nn.Parameter, Tensor]:
    """Sums over physical batches; a batch is only asked for when the one before it is done."""
    sums: dict[nn.Parameter, Tensor] = {}
    for lazy in lazies:
        while lazy:
            parameter, clipped_sum = lazy.popitem()
            own = clipped_sum()
            sums[parameter] = sums[parameter].add_(own) if parameter in sums else own
    return sums


def _surrogate(parameters: Iterable[nn.Parameter], sums: Mapping[nn.Parameter, Callable[[], Tensor]]) -> Tensor:
    """A scalar zero whose gradient with respect to each parameter is what its function returns, or zero without one."""
    scalars = [_Surrogate.apply(each, sums.get(each)) for each in parameters]  # type: ignore[no-untyped-call]
    return torch.stack(scalars).sum()


class _Surrogate(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, parameter: nn.Parameter, clipped_sum: Callable[[], Tensor] | None) -> Tensor:
        context.clipped_sum, context.parameter = clipped_sum, parameter
        return torch.zeros((), device=parameter.device)

    @staticmethod
    def backward(context: Any, weight: Tensor) -> tuple[Tensor, None]:
        clipped_sum, parameter = context.clipped_sum, context.parameter
        context.clipped_sum = context.parameter = None
        if clipped_sum is None:
            return torch.zeros(parameter.shape, device=parameter.device), None
        return clipped_sum().to(weight.dtype).contiguous().mul_(weight), None


@contextmanager
def _full_shapes(parameters: Iterable[Any]) -> Iterator[None]:
    """Give parameters that ZeRO 3 has partitioned away their full shape, which autograd compares, without memory."""
    partitioned = [p for p in parameters if hasattr(p, "ds_shape") and p.shape != p.ds_shape]
    before = [p.data for p in partitioned]
    for parameter in partitioned:
        parameter.data = torch.empty(1, dtype=parameter.dtype, device=parameter.device).expand(parameter.ds_shape)
    try:
        yield
    finally:
        for parameter, data in zip(partitioned, before, strict=True):
            if parameter.numel() and not any(parameter.stride()):
                parameter.data = data


class ZeroEngine(Engine):
    """An engine with DeepSpeed; takes the model over, on its device, and starts from the weights of rank 0."""

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
        self._parameters = state.trainable_parameters(model)
        self._device = next(iter(self._parameters.values())).device
        self._deepspeed = find_deepspeed(self._device)
        for parameter in self._parameters.values():
            parameter.data = parameter.data.float()
        optimizer = make_optimizer(schedule.config, self._parameters.values())
        self._engine = self._deepspeed.initialize(
            model=model, optimizer=optimizer, config=_settings(stage, offload), dist_init_required=False
        )[0]
        _never_skip(self._engine.optimizer, stage)
        self._model, self._losses, self._stage = self._engine.module, losses, stage
        self._gradients = gradients
        self._noisy = NoisyOptimizer(
            self._engine.basic_optimizer,
            self._partitions(),
            {name: state.size(parameter) for name, parameter in self._parameters.items()},
            stage == 0,
            noise,
            schedule,
            scale=collectives.world() if stage == 3 else 1,
        )

    def _partitions(self) -> list[state.Partition]:
        names = {parameter: name for name, parameter in self._parameters.items()}
        if self._stage == 0:
            return state.whole(self._parameters)
        if self._stage == 3:
            return state.of_stage_3(self._engine.optimizer, names, collectives.rank())
        return state.of_stages_1_and_2(self._engine.optimizer, names)

    def _take(self, batches: Sequence[AnyBatch]) -> None:
        if self._stage == 3:
            self._reduce_each(batches)
        elif len(batches) == 1:
            self._backward(self._clipped(batches[0]))
        else:
            sums = add_up(self._clipped(batch) for batch in batches)
            self._backward({parameter: partial(sums.pop, parameter) for parameter in list(sums)})
        self._engine.step()

    def _reduce_each(self, batches: Sequence[AnyBatch]) -> None:
        passes = max(1, collectives.largest(len(batches), self._device))
        for number in range(passes):
            live = number < len(batches)
            batch = batches[number] if live else dummy_batch(_ANY_TOKEN)
            assert isinstance(batch, Batch | Row), "stage 3 takes no micro-batches"
            # The head is used as often as on the rank with the most targets.
            padded = replace(batch, least_targets=collectives.largest(batch.targets, self._device))
            lazy = self._clipped(padded, live)
            self._engine.set_gradient_accumulation_boundary(number == passes - 1)
            self._backward(lazy)

    def _backward(self, sums: Mapping[nn.Parameter, Callable[[], Tensor]]) -> None:
        if self._stage:  # otherwise a second pass would replace, not add to, what the first one left
            self._engine.optimizer.clear_backward_seen_flag()
        with _full_shapes(self._parameters.values()):
            self._engine.backward(_surrogate(self._parameters.values(), sums))

    def _spread(self) -> None:
        if self._stage in (1, 2):
            self._engine.optimizer.update_lp_params()
        elif self._stage == 3:
            self._engine.optimizer._partition_all_parameters()  # what is gathered already would stay as it is
            for group in range(len(self._engine.optimizer.fp16_groups)):
                self._engine.optimizer._reassign_or_swap_out_partitioned_parameters(group)
            self._engine.optimizer._post_step(set())

    def state_dict(self) -> dict[str, Tensor]:
        """The trainable parameters by name, gathered where they are shared."""
        return {name: self._whole(parameter) for name, parameter in self._parameters.items()}

    def _whole(self, parameter: nn.Parameter) -> Tensor:
        if self._stage < 3:
            return parameter.detach().cpu().clone()
        with self._deepspeed.zero.GatheredParameters([parameter]):
            return parameter.detach().cpu().clone()
