"""Rows that no version of this code wrote: one sentence that sends the reader to `verify`, whatever is wrong."""

from collections.abc import Iterator
from contextlib import contextmanager

from rayprivacy.core.errors import EventError, LedgerError


@contextmanager
def decoding(what: str) -> Iterator[None]:
    """Around everything that takes the content of rows apart.

    Raises:
        LedgerError: the content is not what this code writes.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, EventError, LookupError, RecursionError, TypeError, ValueError):
        damage = LedgerError(f"{what} of the ledger cannot be read: it was altered, so run `rayprivacy ledger verify`.")
    else:
        return
    raise damage
