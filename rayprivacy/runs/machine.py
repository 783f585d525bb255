"""What this machine does in a second, measured once and kept in the user's cache, for estimates of time.

The measurement is a process of its own (`runs.kernels`), so that whoever reads it imports no torch. It is kept under a
digest of the processor, the number of cores, the versions of torch and of ONNX Runtime, and the variables that switch
instructions off: another machine with the same home, and the same machine made slower, are measured by themselves.
"""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rayprivacy.core.artifacts import digest_json
from rayprivacy.core.files import read_json, user_cache, write_json
from rayprivacy.core.threads import cores
from rayprivacy.generation.engines import has_onnx
from rayprivacy.runs.effort import MODEL_KERNELS, Kernel

SWITCHES = ("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "DNNL_MAX_CPU_ISA")
MOST_SECONDS = 180  # of the measurement: it takes about six seconds of one core


@dataclass(frozen=True)
class Machine:
    """A machine, as far as estimates know it.

    Attributes:
        cpus: cores that this process may use.
        flops: floating-point operations per second of one core, by kernel and number format (see `runs.kernels`).
    """

    cpus: int
    flops: Mapping[str, float]

    def rate(self, kernel: Kernel, dtype: str) -> float:
        """Operations per second of one core.

        Args:
            kernel: what kind of work.
            dtype: the model's number format; where it is none that was timed, the quickest counts.
        """
        if kernel not in MODEL_KERNELS:
            return self.flops[kernel]
        named = f"{kernel} {dtype}"
        return self.flops.get(named) or max(rate for name, rate in self.flops.items() if name.startswith(f"{kernel} "))


def machine_name() -> str:
    """A digest of what makes this machine as fast as it is."""
    switches = {name: os.environ[name] for name in SWITCHES if name in os.environ}
    sampler = version("onnxruntime") if has_onnx() else None
    return digest_json([_processor(), os.cpu_count(), cores(), version("torch"), sampler, switches])[:16]


def this_machine(say: Callable[[str], None] = lambda sentence: None) -> Machine | None:
    """This machine: as it was measured before, or is now; None where that fails.

    Args:
        say: told a sentence before something takes seconds.
    """
    path = user_cache() / "machine" / f"{machine_name()}.json"
    try:
        return _read(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass  # not there, or damaged: it is measured again
    say("measuring this machine, once, for estimates of time: about ten seconds ...")
    try:
        answer = subprocess.run(
            [sys.executable, "-m", "rayprivacy.runs.kernels"], capture_output=True, check=True, timeout=MOST_SECONDS
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, json.loads(answer.stdout))
        return _read(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, subprocess.SubprocessError):
        return None  # an estimate is no reason to stop


def _read(path: Path) -> Machine:
    found: dict[str, Any] = read_json(path)
    flops = {str(name): float(rate) for name, rate in found["flops"].items()}
    if int(found["cpus"]) < 1 or not all(0 < rate < float("inf") for rate in flops.values()):
        raise ValueError("no machine is like that")
    return Machine(int(found["cpus"]), flops)


def _processor() -> str:
    """The processor's name; `platform` does not know it on Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
