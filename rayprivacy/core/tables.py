"""Tables on the console in which no cell is cut and no word is broken, at any width.

A cell that is too long for its column goes on in the next line. On a console that is too narrow even for the longest
words, each row becomes a few lines: its first cell, and below it the others, each behind the name of its column.
"""

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

_BORDER = 3  # characters that a column takes besides its cell; the table takes one more


class WholeTable:
    """A table of plain text."""

    def __init__(self, *columns: str, title: str = "") -> None:
        """An empty table.

        Args:
            columns: their names; the first column names the rows.
            title: above the table, from its left edge.
        """
        self._columns, self._title, self._rows = columns, title, list[tuple[str, ...]]()

    def add_row(self, *cells: str) -> None:
        """Add a row with one cell for each column."""
        assert len(cells) == len(self._columns)
        self._rows.append(cells)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = options.max_width - _BORDER * len(self._columns) - 1
        widths = _widths(list(zip(self._columns, *self._rows, strict=True)), room)
        yield Text.assemble((self._title, "italic"), overflow="fold") if self._title else ""
        if widths is None:
            yield from (Text(line, overflow="fold") for line in self._lines())
            return
        table = Table(title_justify="left")
        for name, width in zip(self._columns, widths, strict=True):
            table.add_column(Text(name), width=width)
        for row in self._rows:
            table.add_row(*map(Text, row))
        yield table

    def _lines(self) -> Sequence[str]:
        first, *others = self._columns
        lines = []
        for head, *cells in self._rows:
            lines.append(head or f"({first} as above)")
            lines += [f"  {name}: {cell}" for name, cell in zip(others, cells, strict=True) if cell]
        return lines


def _widths(columns: Sequence[Sequence[str]], room: int) -> list[int] | None:
    """Widths in which every cell fits by wrapping between words; None where there is no room for the longest words.

    >>> _widths([["figure", "self_bleu_4"], ["real", "0.1 [0.05, 0.2]"]], 100)
    [11, 15]
    >>> _widths([["figure", "self_bleu_4"], ["real", "0.1 [0.05, 0.2]"]], 20)
    [11, 9]
    >>> _widths([["figure", "self_bleu_4"], ["real", "0.1 [0.05, 0.2]"]], 15)
    """
    least = [max(cell_len(word) for cell in column for word in (cell.split() or [""])) for column in columns]
    most = [max(map(cell_len, column)) for column in columns]
    spare = room - sum(least)
    if spare < 0:
        return None
    widths = list(least)
    lacking = sorted((high - low, place) for place, (low, high) in enumerate(zip(least, most, strict=True)))
    for passed, (lacks, place) in enumerate(lacking):  # who lacks little gets all of it
        more = min(lacks, spare // (len(lacking) - passed))
        widths[place] += more
        spare -= more
    return widths
