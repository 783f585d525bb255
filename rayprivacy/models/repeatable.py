"""A GPU that gives the same bits again.

Kernels that add with atomics add in another order each time. In bfloat16, with all weights trained, that moved one
user's clipped gradient from run to run on an H200, so that a user who joins could not be told from chance to the bit.
torch is held to kernels that are repeatable here, and refuses an operation that has none. Bits differ between kinds of
GPU, as they do between kinds of processor.
"""

import os

import torch


def repeatable(device: torch.device) -> torch.device:
    """Hold this process to repeatable kernels if the device is a GPU, before anything is computed there."""
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it torch refuses products
        torch.use_deterministic_algorithms(True)
    return device


def has_no_repeatable_kernel(error: RuntimeError) -> bool:
    """Whether torch raised this because an operation has no repeatable kernel."""
    return "deterministic" in str(error)
