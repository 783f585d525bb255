"""Give memory that is free back to the machine, which the allocator of C keeps where threads came and went."""

import ctypes
import gc


def trim_memory(*, collect: bool = False) -> None:
    """Hand freed pages back, where the C library has `malloc_trim` (it is one of Linux).

    `collect` first frees what only cycles of objects hold, as models do.
    """
    if collect:
        gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
