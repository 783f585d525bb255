"""What a call takes: wall and CPU seconds, with those of all processes that it has started, and memory."""

import multiprocessing
import resource
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil

EVERY_S = 0.5  # how often processes are asked: what one did in its last half second is not counted
Seconds = dict[tuple[int, float], float]  # of each process, by its number and when it began


def timed(call: Callable[[], Any]) -> tuple[float, float]:
    """Wall seconds, and CPU seconds of this process and all below it, those included that end meanwhile.

    Ray ends workers that have nothing to do, and does not wait for them: their seconds are in no other process's.
    """
    began, before, seconds, stop = time.perf_counter(), _seconds(), dict[tuple[int, float], float](), threading.Event()

    def watch() -> None:
        while not stop.wait(EVERY_S):
            seconds.update(_seconds())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        call()
    finally:
        wall = time.perf_counter() - began
        stop.set()
        thread.join()
    seconds.update(_seconds())
    return wall, sum(spent - before.get(process, 0.0) for process, spent in seconds.items())


def in_a_process(call: Callable[..., Any], *arguments: Any) -> Any:
    """The answer of a call in a process of its own, so that it inherits nobody's memory or threads."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(call, arguments)


def peak_mb() -> float:
    """The most memory that this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _seconds() -> Seconds:
    found, own = {}, psutil.Process()
    for process in [own, *own.children(recursive=True)]:
        try:
            found[process.pid, process.create_time()] = sum(process.cpu_times()[:2])
        except psutil.Error:
            continue
    return found
