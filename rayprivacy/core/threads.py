"""Threads: how many cores they may use, and one that calls a function again and again beside the main thread's work."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def repeating(seconds: float, call: Callable[[], object]) -> Iterator[None]:
    """Call a function every few seconds in a daemon thread until the block ends: for a progress bar, a gauge, a lease.

    The first call comes after `seconds`. No call is under way once the block has ended, and none comes later. A call
    that raises is the last one, without a word: what it raised may quote private text, and must not stop the block.

    Args:
        seconds: between the end of one call and the begin of the next.
        call: what is called.
    """
    over = threading.Event()

    def repeat() -> None:
        with suppress(Exception):
            while not over.wait(seconds):
                call()

    thread = threading.Thread(target=repeat, name="repeating", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
