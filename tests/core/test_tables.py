"""Tables at any width: no cell is cut."""

import io
import re

import pytest
from rich.console import Console

from rayprivacy.core.console import WholeTable

NAMES = ["nearest_distance_mean", "[bold]", "most_frequent_label_accuracy"]
FIGURES = ["0.08412 [0.07913, 0.08944]", "", "1.234e+04 [1.1e+04, 1.3e+04]"]


@pytest.mark.parametrize("width", [200, 80, 40])
def test_every_letter_of_every_cell_is_there_and_brackets_are_no_markup(width: int) -> None:
    table = WholeTable("figure", "synthetic", "real, other users", title="Memorisation: is it repeated?")
    for name, figure in zip(NAMES, FIGURES, strict=True):
        table.add_row(name, figure, figure)
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(table)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= width
    rows = [line.split("│")[1:-1] for line in shown.splitlines() if "│" in line]
    columns = ["".join(re.sub(r"\s", "", row[place]) for row in rows) for place in range(3)]
    assert columns == ["".join(cells).replace(" ", "") for cells in (NAMES, FIGURES, FIGURES)]
    assert width < 60 or all(name in shown for name in NAMES)
