"""Structures as text, parse trees and JSON: read and printed without loss, names and literals, refusals."""

import json
from pathlib import Path

import pytest
from benchmark_modules import benchmark
from hypothesis import given
from hypothesis import strategies as st

from rayprivacy.core.errors import ConfigError
from rayprivacy.evaluation.trees import tree_figures
from rayprivacy.structures import trees
from rayprivacy.structures.grammar import Grammar, lispress, read_functions, read_rules

figures = benchmark("parsing_figures")  # which print what is read here
ROOT = Path(__file__).parents[3]
PLAY = frozenset({"Play"})
REQUEST = '{"intent": "Play", "slots": {"artist": "Play it", "years": [1999, true, null, {"of": "Play"}]}}'
JSON = st.recursive(
    st.one_of(st.text(max_size=4), st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=8,
)


def test_names_of_json_are_its_keys_and_the_constants_of_its_schema():
    assert trees.names(REQUEST) == ["intent", "slots", "artist", "years", "of"]
    assert trees.names(REQUEST, PLAY) == ["intent", "Play", "slots", "artist", "years", "of", "Play"]
    assert trees.names('(Yield (Find "Play"))', PLAY) == ["Yield", "Find"]
    # Literals are forgotten, and the order of keys too.
    other = '{"slots":{"years":[2001.5,true,null,{"of":"Play"}],"artist":"x"},"intent":"Play"}'
    assert (
        figures.without_literals(other, PLAY)
        == figures.without_literals(REQUEST, PLAY)
        != figures.without_literals(other)
    )
    assert figures.without_literals('{"a": true}') != figures.without_literals('{"a": false}')
    twins = ('(f x7 (x7 "a") 3)', '(f x1 (x1 "b") 4L)')
    assert {figures.without_literals(text) for text in twins} == {'(f x0 (x0 "_") 0)'}
    real = ['{"intent": "A", "slots": {"x": "1"}}', '{"intent": "B", "slots": {}}']
    synthetic = ['{"intent": "A", "slots": {}}', "no structure"]
    assert tree_figures(real, synthetic)["function_recall"] == 2 / 3  # intent, slots; not x
    assert tree_figures(real, synthetic, frozenset("AB"))["function_recall"] == 3 / 5  # and A; not B


@given(JSON)
def test_whatever_is_json_has_no_literal_afterwards(value):
    text = json.dumps([value])
    found = figures.without_literals(text)
    assert found is not None
    assert figures.without_literals(found) == found
    assert set(_leaves(json.loads(found))) <= {figures.LITERAL, True, False, None}
    assert trees.names(text) == trees.names(found) or len(trees.names(text) or []) == len(trees.names(found) or [])


def _leaves(value):
    if isinstance(value, dict | list):
        return [leaf for part in (value.values() if isinstance(value, dict) else value) for leaf in _leaves(part)]
    return [value]


@pytest.mark.parametrize("text", ["", "{", '{"a": }', "[1, 2", "(a", "null", '"a"', "{'a': 1}", "[" * 100_000])
def test_what_is_no_structure_has_no_names(text):
    assert trees.names(text) is None
    assert figures.without_literals(text) is None


def test_rules_are_read_or_refused_in_one_sentence(tmp_path):
    path = tmp_path / "rules"
    with pytest.raises(ConfigError, match=r"parses\.rules is .*cannot be read"):
        read_rules(str(path), "ebnf", "parses.rules")
    path.write_text('root ::= "a"')
    assert read_rules(str(path), "ebnf", "parses.rules") == Grammar('root ::= "a"')
    for text in ("root", "[1]"):
        path.write_text(text)
        with pytest.raises(ConfigError, match="which holds no JSON object: give a JSON Schema"):
            read_rules(str(path), "json", "parses.rules")
    packaged = read_rules(str(ROOT / "jobs" / "two_stage" / "snips.schema.json"), "json", "parses.rules").constants
    assert (len(packaged), "PlayMusic" in packaged) == (7, True)
    schema = {"anyOf": [{"properties": {"enum": {"const": "a"}}}, {"enum": ["b", 3, None]}], "const": 4}
    assert trees.constants_of(schema) == {"a", "b"}


def test_a_grammar_is_made_of_rules_and_listed_names_alone():
    first, second = lispress(["Yield", "?="]), lispress(["Yield", "?=", "Yield", "Create"])
    assert first.splitlines()[:-1] == second.splitlines()[:-1]
    assert second.splitlines()[-1] == 'name ::= "Yield" | "?=" | "Create" | "let" | "do"'
    with pytest.raises(ConfigError, match=r"parses\.functions is '/nowhere', which cannot be read"):
        read_functions("/nowhere", "parses.functions")


REAL = [
    '(Yield (Event.attendees (singleton (QueryEventResponse.results (Event.subject_? (?~= "dinner"))))))',
    "(Yield (Execute (^(Dynamic) ConfirmAndReturnAction)))",
    "(let (x0 (Execute (^(Dynamic) Act))) (do (Yield x0) (Yield (& (Event.start (^(Dynamic) item x0)) (toDays 1)))))",
    "(Yield (> (size (QueryEventResponse.results (Find (^(Event) EmptyStructConstraint)))) 0L))",
    '(Yield (refer (^((CalflowIntension (Constraint Event))) Query) :limit 2.5 (?= "a (b ^ c) \\" d")))',
]
_strings = st.text(alphabet='ab ()^":', max_size=8).map(lambda text: '"' + text.replace('"', "'") + '"')
_atoms = st.one_of(st.sampled_from(["?=", "&", "x0", "x12", "true", "-3.5L", "7", ":limit", "Event.start_?"]), _strings)
_heads = st.sampled_from(["Yield", "?~=", "&", "let", "x1"])
TREES = st.recursive(
    _heads.map(lambda head: (head,)),
    lambda inner: st.tuples(_heads, st.lists(st.one_of(_atoms, inner), max_size=3)).map(lambda p: (p[0], *p[1])),
    max_leaves=12,
)


@pytest.mark.parametrize("text", REAL)
def test_real_trees_come_back_to_the_letter(text):
    assert figures.written(trees.parse(text)) == text
    assert figures.written(trees.parse(text.replace(" ", "\n  ", 1))) == text


@given(TREES)
def test_every_tree_comes_back(tree):
    assert trees.parse(figures.written(tree)) == tree
    assert figures.anonymised(figures.anonymised(tree)) == figures.anonymised(tree)


def test_functions_are_heads_but_no_types_and_no_variables():
    named = trees.parse('(f x7 (x7 "secret") -3L 2.5 x2 true)')
    assert figures.written(figures.anonymised(named)) == '(f x0 (x0 "_") 0 0 x1 true)'
    assert trees.functions(trees.parse(REAL[1])) == ["Yield", "Execute", "ConfirmAndReturnAction"]
    assert " ".join(trees.functions(trees.parse(REAL[2]))) == "let Execute Act do Yield Yield & Event.start item toDays"
    assert trees.functions(trees.parse(REAL[4])) == ["Yield", "refer", "Query", "?="]


@pytest.mark.parametrize("text", ["", "Yield", "()", "(a", "(a))", "(a) (b)", 'a "b', '(a "b)', ")(", "(a ())"])
def test_what_is_no_tree_is_refused_and_not_quoted(text):
    assert trees.parsed(text) is None
    with pytest.raises(trees.TreeError) as refused:
        trees.parse(text)
    assert "Yield" not in str(refused.value)
    assert "b" not in str(refused.value).replace("list", "").split("or")[0].split()


def test_brackets_without_end_stop_nothing():
    assert trees.parsed("(a " * trees.MOST_LEVELS + ")" * trees.MOST_LEVELS) is None
    deep = "(a " * (trees.MOST_LEVELS - 1) + ")" * (trees.MOST_LEVELS - 1)
    assert trees.functions(trees.parse(deep)) == ["a"] * (trees.MOST_LEVELS - 1)
