"""What a process shows and how it uses its cores: tables, progress, threads."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.style import StyleType
from rich.table import Column, Table
from rich.text import Text

SPINS = "2000"
Told = Callable[[int], None]  # of progress: called with the number of finished pieces


def nobody(done: int) -> None:
    """Show no progress."""


class WholeTable(Table):
    """A table of plain text, without markup: what is too long for its column goes on in the next line."""

    def __init__(self, *columns: str, title: str = "") -> None:
        folding = (Column(Text(name), overflow="fold") for name in columns)
        super().__init__(*folding, title=Text(title) if title else None, title_justify="left")

    def add_row(
        self, *renderables: RenderableType | None, style: StyleType | None = None, end_section: bool = False
    ) -> None:
        """Add a row with one cell for each column; the first names the row."""
        texts = (Text(cell) if isinstance(cell, str) else cell for cell in renderables)
        super().add_row(*texts, style=style, end_section=end_section)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        names = self.columns[0]
        names.no_wrap = max((len(str(cell)) for cell in names.cells), default=0) <= options.max_width // 2
        yield from super().__rich_console__(console, options)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def share_cores() -> None:
    """Let torch's waiting threads sleep rather than keep a core from others, unless the environment says otherwise;
    OpenMP reads it when torch is imported. Steps take 0.64 of the time on shared cores (benchmarks/threads.py).
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)


@contextmanager
def repeating(seconds: float, call: Callable[[], object]) -> Iterator[None]:
    """Call a function every few seconds in a daemon thread in the block; an error, maybe private, ends it silently."""
    over = threading.Event()

    def repeat() -> None:
        with suppress(Exception):
            while not over.wait(seconds):
                call()

    thread = threading.Thread(target=repeat, name="repeating", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
