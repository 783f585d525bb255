"""Use the cores of the driver for work in pieces, without changing a bit of what comes out.

Ray gives a driver one thread for products of matrices, and small products would gain little from a second. So whole
pieces run side by side instead, each on one thread, and come back in their order: the result is that of a plain loop.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from rayprivacy.core.threads import cores

MOST = 4  # each thread may hold a model, or 200 MB of logits: memory must not grow with the machine
Piece = TypeVar("Piece")
Result = TypeVar("Result")


def driver_threads() -> int:
    """How many pieces a stage of the driver works on at once."""
    return min(cores(), MOST)


def side_by_side(call: Callable[[Piece], Result], pieces: Iterable[Piece], threads: int) -> list[Result]:
    """The result of `call` for each piece, in order, and to the bit the same for any number of threads.

    `call` must not depend on what else runs, and should spend most of its time in torch. All pieces are held at once.
    Torch has one thread for each piece, also where one follows the other: with two it would add up in another order.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # threads that begin now have it too
    try:
        if threads == 1:
            return [call(piece) for piece in pieces]
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(call, pieces))
    finally:
        torch.set_num_threads(before)
