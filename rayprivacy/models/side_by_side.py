"""Use all cores of the driver for work in pieces, without changing a bit of what comes out.

Ray gives a driver one thread for products of matrices, and small products would gain little from a second. So whole
pieces run side by side instead, each on one thread, and come back in their order: the result is that of a plain loop.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Piece = TypeVar("Piece")
Result = TypeVar("Result")


def side_by_side(call: Callable[[Piece], Result], pieces: Iterable[Piece], threads: int) -> list[Result]:
    """What `call` makes of each piece, in order.

    Args:
        call: it must not depend on what else runs; most of its time should be spent in torch.
        pieces: all of them are held at once.
        threads: how many pieces are worked on at once; the caller's own thread does it all where it is 1.
    """
    if threads == 1:
        return [call(piece) for piece in pieces]
    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(call, pieces))
    finally:
        torch.set_num_threads(before)  # a part of the setting is the whole process's
