"""The type of a progress callback: it is called with the number of finished pieces."""

from collections.abc import Callable

Told = Callable[[int], None]


def nobody(done: int) -> None:
    """Show no progress."""
