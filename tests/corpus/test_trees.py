"""Parse trees as text: read and printed without loss, whatever is in their strings, and refused without a quotation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayprivacy.core.errors import ConfigError
from rayprivacy.structures.grammar import lispress, read_functions
from rayprivacy.structures.trees import MOST_LEVELS, TreeError, anonymised, depth, functions, parse, parsed, written

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
def test_real_trees_come_back_to_the_letter(text: str) -> None:
    assert written(parse(text)) == text
    assert written(parse(text.replace(" ", "\n  ", 1))) == text


@given(TREES)
def test_every_tree_comes_back(tree: tuple[object, ...]) -> None:
    assert parse(written(tree)) == tree  # type: ignore[arg-type]
    again = anonymised(anonymised(tree))  # type: ignore[arg-type]
    assert again == anonymised(tree)  # type: ignore[arg-type]


def test_functions_are_heads_but_no_types_and_no_variables() -> None:
    assert functions(parse(REAL[1])) == ["Yield", "Execute", "ConfirmAndReturnAction"]
    assert functions(parse(REAL[2]))[:7] == ["let", "Execute", "Act", "do", "Yield", "Yield", "&"]
    assert functions(parse(REAL[2]))[7:] == ["Event.start", "item", "toDays"]
    assert functions(parse(REAL[4])) == ["Yield", "refer", "Query", "?="]
    assert [depth(parse(text)) for text in REAL] == [6, 4, 7, 7, 6]  # types count


def test_literals_and_names_of_variables_are_forgotten() -> None:
    assert written(anonymised(parse('(f x7 (x7 "secret") -3L 2.5 x2 true)'))) == '(f x0 (x0 "_") 0 0 x1 true)'


@pytest.mark.parametrize("text", ["", "Yield", "()", "(a", "(a))", "(a) (b)", 'a "b', '(a "b)', ")(", "(a ())"])
def test_what_is_no_tree_is_refused_and_not_quoted(text: str) -> None:
    assert parsed(text) is None
    with pytest.raises(TreeError) as refused:
        parse(text)
    assert "Yield" not in str(refused.value)
    assert "b" not in str(refused.value).replace("list", "").split("or")[0].split()


def test_brackets_without_end_stop_nothing() -> None:
    assert parsed("(a " * MOST_LEVELS + ")" * MOST_LEVELS) is None
    deep = "(a " * (MOST_LEVELS - 1) + ")" * (MOST_LEVELS - 1)
    assert depth(parse(deep)) == MOST_LEVELS - 1
    assert functions(parse(deep)) == ["a"] * (MOST_LEVELS - 1)


def test_a_grammar_is_made_of_rules_and_listed_names_alone() -> None:
    first, second = lispress(["Yield", "?="]), lispress(["Yield", "?=", "Yield", "Create"])
    assert first.splitlines()[:-1] == second.splitlines()[:-1]
    assert second.splitlines()[-1] == 'name ::= "Yield" | "?=" | "Create" | "let" | "do"'
    with pytest.raises(ConfigError, match=r"parses\.functions is '/nowhere': it cannot be read"):
        read_functions("/nowhere", "parses.functions")
