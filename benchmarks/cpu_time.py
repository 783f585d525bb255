"""Wall and CPU seconds of a call, with those of all processes that this one has started."""

import time
from collections.abc import Callable
from typing import Any

import psutil


def timed(call: Callable[[], Any]) -> tuple[float, float]:
    """Wall seconds, and CPU seconds of this process and all below it."""
    began, cpu = time.perf_counter(), _cpu()
    call()
    return time.perf_counter() - began, _cpu() - cpu


def _cpu() -> float:
    total, own = 0.0, psutil.Process()
    for process in [own, *own.children(recursive=True)]:
        try:
            total += sum(process.cpu_times()[:4])  # its own, and those of children that it has seen end
        except psutil.Error:
            continue
    return total
