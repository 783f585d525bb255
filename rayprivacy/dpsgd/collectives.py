"""The ranks of a run: the group of torch.distributed where one is initialised, otherwise one rank alone.

Every function here is collective: all ranks must call it, in the same order.
"""

from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


def grouped() -> bool:
    """Whether a process group is initialised."""
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    """This process's place in the group, from 0."""
    return dist.get_rank() if grouped() else 0


def world() -> int:
    """How many processes there are."""
    return dist.get_world_size() if grouped() else 1


def gather(value: T) -> list[T]:
    """The value of every rank, in their order, on every rank; the value must be picklable."""
    if world() == 1:
        return [value]
    values: list[Any] = [None] * world()
    dist.all_gather_object(values, value)
    return values


def wait() -> None:
    """Return when every rank is here."""
    if world() > 1:
        dist.barrier()


def add_up(tensor: Tensor) -> None:
    """Replace a tensor by the sum over ranks, in place."""
    if world() > 1:
        dist.all_reduce(tensor)


def copy_from_first(tensor: Tensor) -> None:
    """Replace a tensor by that of rank 0, in place."""
    if world() > 1:
        dist.broadcast(tensor, 0)


def largest(number: int, device: torch.device) -> int:
    """The maximum over ranks."""
    held = torch.tensor([number], device=device)
    if world() > 1:
        dist.all_reduce(held, op=dist.ReduceOp.MAX)
    return int(held)
