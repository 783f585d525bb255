"""Tables on the console in which no cell is cut, at any width."""

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.style import StyleType
from rich.table import Column, Table
from rich.text import Text


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
