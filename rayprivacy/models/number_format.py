"""Which number format this machine computes fast in: a fact of the hardware, measured once and kept.

Where the processor knows bfloat16 (AVX512-BF16, AMX, ARMv8.6) its products are two to six times faster than float32's;
elsewhere it is emulated, and three to seven times slower. No list of processors is kept: both products are timed.
"""

import os
import platform
import time
from pathlib import Path
from typing import Literal

import torch

from rayprivacy.core.artifacts import digest_json
from rayprivacy.core.files import user_cache, write_atomic

NumberFormat = Literal["bfloat16", "float32"]
FORMATS: tuple[NumberFormat, ...] = ("bfloat16", "float32")
WORTH = 1.2  # bfloat16 is coarser: it has to be clearly faster
_ROUNDS = 5
_SHAPE = (512, 576, 1536)  # of a product in the packaged model
_SETTINGS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY")


def fast_format() -> NumberFormat:
    """The format to compute in on this machine: measured in about a second, then read from the user's cache."""
    path = user_cache() / "number-format" / digest_json(_machine())[:32]
    try:
        if (found := path.read_text()) in FORMATS:
            return found
    except (OSError, ValueError):
        pass  # not there, or damaged: it is measured again
    speeds = {name: speed(name) for name in FORMATS}
    fast: NumberFormat = "bfloat16" if speeds["bfloat16"] > WORTH * speeds["float32"] else "float32"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, fast.encode())
    except OSError:
        pass  # a home that cannot be written to is no reason to stop
    return fast


def speed(name: NumberFormat) -> float:
    """Floating-point operations in a second of the best of some products of two matrices in a format."""
    rows, inner, columns = _SHAPE
    left = torch.ones(rows, inner, dtype=getattr(torch, name))
    right = torch.ones(columns, inner, dtype=getattr(torch, name))
    torch.nn.functional.linear(left, right)  # the first one prepares the kernel
    best = min(_seconds(left, right) for _ in range(_ROUNDS))
    return 2 * rows * inner * columns / best


def _seconds(left: torch.Tensor, right: torch.Tensor) -> float:
    began = time.perf_counter()
    torch.nn.functional.linear(left, right)
    return time.perf_counter() - began


def _machine() -> list[str]:
    """What the answer depends on: the processor, the version of torch, and the settings that hide instructions."""
    return [_processor(), torch.__version__, torch.backends.cpu.get_cpu_capability()] + [
        os.environ.get(name, "") for name in _SETTINGS
    ]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
