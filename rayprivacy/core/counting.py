"""Who is told how many pieces of work are finished, by code that knows neither a run nor a console."""

from collections.abc import Callable

Told = Callable[[int], None]


def nobody(done: int) -> None:
    """Is told, and does nothing."""
