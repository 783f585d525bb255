"""Wall and CPU seconds of a call, with those of all processes that this one has started."""

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


def _seconds() -> Seconds:
    found, own = {}, psutil.Process()
    for process in [own, *own.children(recursive=True)]:
        try:
            found[process.pid, process.create_time()] = sum(process.cpu_times()[:2])
        except psutil.Error:
            continue
    return found
