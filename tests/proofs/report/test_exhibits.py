"""Figures are in proportion; charts and tables of a method are internal unless it says otherwise."""

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest
from run_directory import SPENT, certificate

import rayprivacy
from rayprivacy.ledger.certificate import Certificate
from rayprivacy.methods.registry import method_named, method_names
from rayprivacy.reporting.claim import account_parts
from rayprivacy.reporting.figures import ACROSS, DOWN, Part, Series, flow, length_histogram, stacked_bar
from rayprivacy.reporting.inputs import Exhibits, Histogram
from rayprivacy.runs.method import Chart, Table, exhibits_json

PACKAGE = Path(rayprivacy.__file__).parent
SHARED = {  # of a public table of words, of text that was released, and of released counts
    "N_x: how often a word comes out as itself",
    "S_x and S*_y: distinct words in 1,000 draws of each word",
    "How often a word comes out as itself, by its rank",
    "How parse trees were drawn",
    "Share of questions that is kept, by their value",
    "From passages to the questions that are kept",
    "First words of questions, beside public ones",
    "Twelve questions, drawn and not chosen",
    "Facts of most users",
    "Facts by attribute",
    "Chance to be released, by support",
    "Support of facts",
    "What a recipe may say",
    "Texts of a user",
    "Tokens of a text, by user",
    "Scripts of texts, by user",
    "Values of labels",
    "Words that many users write",
}
CHART = Chart("errors", "Errors on held-out users", "step", "errors", {"ours": [(0.0, 1.0)]})
TABLE = Table("Errors on held-out users", ("model", "errors"), [("ours", "3")])


@pytest.mark.parametrize("forgetful", [CHART, TABLE], ids=["chart", "table"])
def test_what_a_method_forgets_to_mark_is_not_shared(forgetful):
    read = Exhibits.model_validate(exhibits_json([forgetful, replace(forgetful, title="Public", internal=False)]))
    assert len([*read.charts, *read.tables]) == 2
    shared = read.shareable()
    assert [each.title for each in [*shared.charts, *shared.tables]] == ["Public"]


def test_every_exhibit_that_is_shared_is_known():
    found = set()
    sources = [text for path in PACKAGE.rglob("*.py") if re.search(r"\b(Chart|Table)\(", text := path.read_text())]
    for source in sources:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and _is_shared(node):
                found.add(
                    next(each.value for each in node.args if isinstance(each, ast.Constant) and " " in each.value)
                )
    assert found == SHARED


def _is_shared(call):
    """Whether a call makes an exhibit that is not surely internal."""
    marked = [each.value for each in call.keywords if each.arg == "internal"]
    named = isinstance(call.func, ast.Name) and call.func.id in ("Chart", "Table")
    return named and any(not (isinstance(value, ast.Constant) and value.value is True) for value in marked)


@pytest.mark.parametrize(
    ("asked", "spent", "expected"),
    [(1.5, 2.2, [1.5, 0.7, 0.8]), (1.5, 1.2, [1.2, 0.0, 1.8]), (3.0, 3.4, [3.0, 0.0, 0.0]), (1.0, 0.0, [0, 0, 3.0])],
)
def test_the_parts_of_the_account_add_up_to_the_cap(asked, spent, expected):
    changes = {"run_request": {"epsilon": asked, "delta": 1e-6}, "spent_diagnostic": SPENT | {"epsilon": spent}}
    found = [part.value for part in account_parts(Certificate.model_validate(certificate() | changes))]
    assert found == pytest.approx(expected)


def test_what_is_left_is_said_as_the_ledger_says_it():
    spent = {"spent_diagnostic": SPENT | {"epsilon": 2.9997, "left": 0.0275}}
    assert account_parts(Certificate.model_validate(certificate() | spent))[-1].shown == "0.0275"


def test_a_stacked_bar_is_in_proportion_and_escaped():
    drawn = stacked_bar("account", "a < b", [Part("x", "one & two", 1.0, "1"), Part("y", "rest", 3.0, "3")])
    assert re.findall(r' width="([\d.]+)"', drawn) == ["250.0", "750.0"]
    assert "a &lt; b" in drawn
    assert "one &amp; two: 1" in drawn


def test_histogram_bars_compare_shares_of_unequal_corpora():
    small, large = Histogram(edges=[0, 1], counts=[1, 1]), Histogram(edges=[0, 1], counts=[500, 500])
    drawn = length_histogram([Series("s", "small", small), Series("l", "large", large)])
    assert set(re.findall(r'<rect[^>]* height="([\d.]+)"', drawn)) == {"180.0"}
    assert drawn.count("50.0%") == 8  # four bars' tips and four in the description
    nothing = length_histogram([Series("s", "none", Histogram(edges=[0, 1], counts=[0, 0]))])
    assert set(re.findall(r'<rect[^>]* height="([\d.]+)"', nothing)) == {"0.0"}


@pytest.mark.parametrize("method", method_names())
@pytest.mark.parametrize("way", [ACROSS, DOWN])
def test_the_gate_stands_between_private_and_released(way, method):
    card = method_named(method).card
    before, after = ([name for name, _ in part] for part in (card.private, card.released))
    stops, drawn = ["PRIVATE", *before, "GATE", "RELEASED", *after], flow(card, way)
    body = drawn.split("</desc>")[1]
    places = [re.search(rf">[^<]*{stop}<", body) for stop in stops]
    assert all(places)
    order = [place.start() for place in places if place]
    assert order.index(max(order)) == len(stops) - 1
    gate, released = stops.index("GATE"), stops.index("RELEASED")
    assert order[gate - 1] < order[gate] < order[released + 1]


def test_the_flow_says_all_that_is_released_or_the_one_thing():
    several = method_named("generator").card
    alone = replace(several, released=several.released[:1])
    assert "Released: generator, synthetic text and report.</desc>" in flow(several, DOWN)
    assert "Released: generator.</desc>" in flow(alone, DOWN)
