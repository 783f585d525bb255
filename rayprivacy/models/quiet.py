"""What a process does around a model: no progress bars but its own, and freed memory handed back to the machine."""

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
    """Silence the bars of transformers, and that of tqdm when GGUF files are read, inside the block."""
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


@contextmanager
def no_advice() -> Iterator[None]:
    """No advice of transformers inside the block: that weights are new or left out, which we look at or ask for."""
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)


def trim_memory(*, collect: bool = False) -> None:
    """Hand back pages that the C library of Linux keeps; `collect` first frees what only cycles of objects hold."""
    if collect:
        gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
