"""No progress bars of transformers while one of our stages loads or saves a model.

A stage reports on lines of its own, and a foreign bar would be written over them. Transformers has two kinds: most
bars obey the switch of `transformers.utils.logging`, and the one that reads GGUF files is made by tqdm itself.

Give memory that is free back to the machine, which the allocator of C keeps where threads came and went.
"""

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from transformers import modeling_gguf_pytorch_utils
from transformers.utils import logging

_GGUF: Any = modeling_gguf_pytorch_utils  # its `tqdm` is an import of its own, which type checkers hide


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Silence both kinds inside the block; afterwards other users of transformers have their bars as before."""
    shown = logging.is_progress_bar_enabled()
    bar = _GGUF.tqdm
    logging.disable_progress_bar()
    _GGUF.tqdm = partial(bar, disable=True)
    try:
        yield
    finally:
        _GGUF.tqdm = bar
        if shown:
            logging.enable_progress_bar()


def trim_memory(*, collect: bool = False) -> None:
    """Hand freed pages back, where the C library has `malloc_trim` (it is one of Linux).

    `collect` first frees what only cycles of objects hold, as models do.
    """
    if collect:
        gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
