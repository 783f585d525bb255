"""The batches of the next step are made while a step runs: reading and padding hide behind the forward pass."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")


def ahead(steps: Sequence[int], make: Callable[[int], T]) -> Iterator[tuple[int, T]]:
    """Each step with what `make` returns for it, in order; one more thread makes the next one meanwhile.

    >>> list(ahead(range(3), lambda step: step * step))
    [(0, 0), (1, 1), (2, 4)]

    `make` is called once for each step, in their order; its error is raised at that step.
    """
    with ThreadPoolExecutor(1, "ahead") as thread:
        coming = [thread.submit(make, step) for step in steps[:1]]
        for step, following in pairwise((*steps, None)):
            made = coming.pop().result()
            if following is not None:
                coming.append(thread.submit(make, following))
            assert step is not None
            yield step, made
