"""Charts and tables of a method are internal unless it says otherwise; those that say so are listed here."""

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest

import rayprivacy
from rayprivacy.reporting.inputs import Exhibits
from rayprivacy.runs.method import Chart, Table, exhibits_json

PACKAGE = Path(rayprivacy.__file__).parent
SHARED = {  # of a public table of words, and of text that was released
    "N_x: how often a word comes out as itself",
    "S_x and S*_y: distinct words in 1,000 draws of each word",
    "How often a word comes out as itself, by its rank",
    "How parse trees were drawn",
}
CHART = Chart("errors", "Errors on held-out users", "step", "errors", {"ours": [(0.0, 1.0)]})
TABLE = Table("Errors on held-out users", ("model", "errors"), [("ours", "3")])


@pytest.mark.parametrize("forgetful", [CHART, TABLE], ids=["chart", "table"])
def test_what_a_method_forgets_to_mark_is_not_shared(forgetful: Chart | Table) -> None:
    read = Exhibits.model_validate(exhibits_json([forgetful, replace(forgetful, title="Public", internal=False)]))
    assert len([*read.charts, *read.tables]) == 2
    shared = read.shareable()
    assert [each.title for each in [*shared.charts, *shared.tables]] == ["Public"]


def test_every_exhibit_that_is_shared_is_known() -> None:
    found = set()
    sources = [text for path in PACKAGE.rglob("*.py") if re.search(r"\b(Chart|Table)\(", text := path.read_text())]
    for source in sources:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and _is_shared(node):
                found.add(
                    next(each.value for each in node.args if isinstance(each, ast.Constant) and " " in each.value)
                )
    assert found == SHARED


def _is_shared(call: ast.Call) -> bool:
    """Whether a call makes an exhibit that is not surely internal."""
    marked = [each.value for each in call.keywords if each.arg == "internal"]
    named = isinstance(call.func, ast.Name) and call.func.id in ("Chart", "Table")
    return named and any(not (isinstance(value, ast.Constant) and value.value is True) for value in marked)
