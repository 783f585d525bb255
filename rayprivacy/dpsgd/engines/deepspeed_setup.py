"""Import and configuration of DeepSpeed for DP-SGD: nothing looks at gradients, and ranks are summed, not averaged.

DeepSpeed is imported here and nowhere else, when an engine is made. What is turned off, and why:

    gradient clipping           clips the sum after users were added up, and reads its norm, which is private
    loss scaling, float16       steps that overflow are skipped, which tells something about the data
    skipping by gradient norm   ZeRO drops a step whose norm is not finite; `never_skip` takes the norm away
    logging                     it prints what it measures
    compiled operators          they build for a minute when first used; torch's own optimizers are used instead
"""

import logging
import os
import warnings
from typing import Any

import torch

from rayprivacy.core.errors import ConfigError

# Elements, not bytes. DeepSpeed's defaults (5e8) would allocate 2 GB on each rank before the first gradient.
LIMITS: dict[str, int] = {"reduce_bucket_size": 1 << 21, "allgather_bucket_size": 1 << 21}
STAGE_3_LIMITS: dict[str, int] = {
    "stage3_param_persistence_threshold": 1 << 14,
    "stage3_prefetch_bucket_size": 1 << 21,
    "sub_group_size": 1 << 28,
}


def find_deepspeed(device: torch.device) -> Any:
    """Import DeepSpeed for a kind of device."""
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


def settings(stage: int, offload: bool) -> dict[str, Any]:
    """DeepSpeed's configuration."""
    zero: dict[str, Any] = {"stage": stage, "overlap_comm": False, "contiguous_gradients": True, **LIMITS}
    if stage == 3:
        zero.update(STAGE_3_LIMITS)
    if offload:
        zero["offload_optimizer"] = {"device": "cpu"}
    found: dict[str, Any] = {
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


def never_skip(zero: Any, stage: int) -> None:
    """Take away what makes DeepSpeed's optimizer drop a step: the norm of the gradients, and the test for overflow.

    A version of DeepSpeed that has other names for them is refused.
    """
    switches = {1: ("check_grad_overflow", "compute_grad_norm"), 3: ("_get_norm_groups",)}
    switches[2] = switches[1]
    for name in switches.get(stage, ()):
        if not hasattr(zero, name):
            raise ConfigError(
                f"this version of DeepSpeed has no '{name}': install deepspeed 0.19.8, or leave resources.zero out."
            )
        setattr(zero, name, (lambda: [torch.zeros(())]) if stage == 3 else False)
