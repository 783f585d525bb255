"""A thread that calls a function again and again while the main thread works: a progress bar, a gauge, a lease."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


@contextmanager
def repeating(seconds: float, call: Callable[[], object]) -> Iterator[None]:
    """Call a function every few seconds, in a daemon thread, until the block ends.

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
