"""Tables at any width: no cell is cut, and no word is broken."""

import io
import re

import pytest
from rich.console import Console

from rayprivacy.core.tables import WholeTable

NAMES = ["nearest_distance_mean", "nearest_distance_median", "nearest_distance_p05", "most_frequent_label_accuracy"]
FIGURES = ["0.08412 [0.07913, 0.08944]", "0.1", "", "1.234e+04 [1.1e+04, 1.3e+04]"]


def _shown(width: int) -> str:
    table = WholeTable("figure", "synthetic", "real, other users", "better", title="Memorisation: is it repeated?")
    for name, figure in zip(NAMES, FIGURES, strict=True):
        table.add_row(name, figure, figure, "near the real one")
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("width", [200, 120, 80, 60, 40])
def test_every_word_of_every_cell_is_there(width: int) -> None:
    shown = _shown(width)
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= width
    words = re.findall(r"[^\s│┃]+", shown)
    for name in NAMES:
        assert words.count(name) == 1
    for figure in FIGURES:
        for word in figure.split():
            assert words.count(word) >= 2, "once for the synthetic text, and once for the real one"


def test_a_narrow_console_gets_a_paragraph_for_each_row() -> None:
    assert "│" in _shown(80)
    assert "nearest_distance_median\n  synthetic: 0.1\n  real, other users: 0.1\n" in _shown(40)


def test_text_in_brackets_is_no_markup() -> None:
    table = WholeTable("figure", "value")
    table.add_row("[bold]", "[0.1, 0.2]")
    console = Console(file=io.StringIO(), width=40, color_system=None)
    console.print(table)
    assert "[bold]" in console.file.getvalue()  # type: ignore[attr-defined]
