"""A GPU that gives the same bits again.

Kernels that add with atomics add in another order each time. On an H200, in bfloat16 with all weights trained, the last
bits of a user's clipped gradient changed from run to run. Here torch is held to repeatable kernels, and refuses an
operation that has none. Bits differ between kinds of GPU, as they do between kinds of processor.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

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


@contextmanager
def any_kernel() -> Iterator[None]:
    """Admit kernels that are not repeatable, for a while, for what is not kept."""
    held = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(held)
