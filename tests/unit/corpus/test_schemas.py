"""Keywords of JSON Schemas: what the installed packages do not enforce is refused by name, and the rest is enforced."""

import json
import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from rayprivacy.core.errors import ConfigError
from rayprivacy.structures.grammar import Grammar, read_rules
from rayprivacy.structures.masks import LlguidanceMatcher, XgrammarMatcher, check_grammar
from rayprivacy.structures.schemas import unenforced

xgrammar = pytest.importorskip("xgrammar")
llguidance = pytest.importorskip("llguidance")
INT, TEXT = {"type": "integer"}, {"type": "string"}
DEFS = {"$defs": {"I": INT, "a/b": INT, "named": {"$anchor": "anchor", **INT}}, "definitions": {"I": INT}}
XY = {"type": "object", "properties": {"x": INT, "y": INT}, "additionalProperties": False}


def _whole(schema):
    properties = {"a": schema, "b": INT}
    return {"type": "object", "properties": properties, "required": ["a"], "additionalProperties": False, **DEFS}


# A schema, and values that break it at one keyword.
BROKEN = [
    *((each, [12, 1.5, {"q": 1}]) for each in (TEXT, {"enum": ["r", 1]}, {"const": "r"}, {"type": ["string", "null"]})),
    *(
        ({"$ref": place}, ["x"])
        for place in ("#/$defs/I", "#/definitions/I", "#/properties/b", "/$defs/I", "I", "#anchor")
    ),
    *(
        ({"$ref": place}, ["x"])
        for place in ("other.json#/$defs/I", "https://x.org/s.json", "#/$defs/a~1b", "#/$defs/Z")
    ),
    ({"$ref": "#/$defs/I", "minimum": 5}, [1, "x"]),
    ({"$dynamicRef": "#I"}, ["x"]),
    ({"$recursiveRef": "#"}, ["x"]),
    ({"allOf": [INT, {"minimum": 5}]}, [1, "x"]),
    ({"allOf": [{"minimum": 5, **INT}]}, [1, "x"]),
    ({"allOf": [{"minimum": 5}], **INT}, [1, "x"]),
    ({"anyOf": [{"minimum": 5}, {"maximum": 1}], **INT}, [3, "x"]),
    ({"anyOf": [{"const": "abc"}, {"const": "b"}], "maxLength": 2, **TEXT}, ["abc"]),
    ({"oneOf": [INT, {"minimum": 5, **INT}]}, [7]),
    ({"oneOf": [INT, {"type": "number", "minimum": 3}]}, [7]),
    ({"oneOf": [{"const": "a"}, {"enum": ["b", "a"]}]}, ["a"]),
    ({"oneOf": [INT, TEXT]}, [None, [1]]),
    ({"oneOf": [{"properties": {"k": {"const": k}}, "type": "object"} for k in "ab"]}, [{}]),
    ({"oneOf": [{"properties": {"k": {"const": k}}, "type": "object", "required": ["k"]} for k in "ab"]}, [{}]),
    ({"not": {"const": "r"}, **TEXT}, ["r"]),
    ({"if": {"minimum": 5}, "then": {"maximum": 9}, "else": {"maximum": 1}, **INT}, [12, 3]),
    *(({"minimum": 5, **kind}, [1]) for kind in (INT, {"type": "number"}, {}, {"type": ["integer", "null"]})),
    *(({"exclusiveMaximum": 5, **kind}, [5, 7]) for kind in (INT, {"type": "number"}, {})),
    *(({"multipleOf": each, **INT}, [7]) for each in (5, 0.75)),
    ({"multipleOf": 0.5, "type": "number"}, [1.25]),
    ({"multipleOf": 3, "minimum": 4, **INT}, [7]),
    *(({word: 2, **kind}, [bad]) for word, bad in (("minLength", "a"), ("maxLength", "abc")) for kind in (TEXT, {})),
    *(
        ({"pattern": "^[a-c]+$", word: 2, **TEXT}, [bad, "x"])
        for word, bad in (("minLength", "a"), ("maxLength", "abc"))
    ),
    *(
        ({"pattern": pattern, **TEXT}, ["x"])
        for pattern in ("^a$", r"^\d{2}$", "^(?=a)x$", "^(?!x)x$", "y^x", r"\bx\d")
    ),
    ({"pattern": "^a$"}, ["x"]),
    *(({"format": each, **TEXT}, []) for each in ("regex", "phone", "iri")),
    ({"format": "email", "pattern": "^a", **TEXT}, ["b@b.co"]),
    ({"format": "email", "maxLength": 6, **TEXT}, ["aaa@b.co"]),
    ({"format": "date"}, ["x"]),
    ({"enum": ["r", 1], **TEXT}, [1]),
    ({"enum": ["r", "rr"], "maxLength": 1}, ["rr"]),
    ({"const": 1, **TEXT}, [1]),
    ({"type": "array", "items": INT, "minItems": 2, "maxItems": 3}, [[1], [1, 2, 3, 4], ["x", "y"]]),
    ({"type": "array", "items": INT, "uniqueItems": True}, [[1, 1]]),
    ({"type": "array", "prefixItems": [INT, TEXT], "items": False}, [["a", 1], [1, "a", 2]]),
    ({"type": "array", "items": INT, "contains": {"const": 1}}, [[2]]),
    ({"type": "array", "prefixItems": [INT], "unevaluatedItems": False}, [[1, 2]]),
    ({**XY, "required": ["x"]}, [{}, {"y": 1}, {"x": "a"}, {"x": 1, "z": 1}]),
    ({**XY, "required": ["z"]}, [{"x": 1}]),
    ({"required": ["z"]}, [{}]),
    ({**XY, "minProperties": 1}, [{}]),
    ({**XY, "maxProperties": 1}, [{"x": 1, "y": 1}]),
    ({**XY, "dependentRequired": {"x": ["y"]}}, [{"x": 1}]),
    ({**XY, "dependentSchemas": {"x": {"required": ["y"]}}}, [{"x": 1}]),
    ({**XY, "dependencies": {"x": ["y"]}}, [{"x": 1}]),
    ({**XY, "propertyNames": {"pattern": "^x$"}}, [{"y": 1}]),
    ({"type": "object", "additionalProperties": INT}, [{"x": "a"}]),
    ({"type": "object", "properties": {"xa": TEXT}, "patternProperties": {"^x": INT}}, [{"xa": "b"}]),
    ({"type": "object", "properties": {"x": INT}, "unevaluatedProperties": False}, [{"x": 1, "y": 1}]),
    *(({word: 5, **INT}, ["x"]) for word in ("minimun", "divisibleBy", "nullable", "contentEncoding", "extends")),
    ({"anyOf": []}, [1]),
    ({"type": []}, [1]),
    ({"type": "object", "required": 5}, []),
]


@pytest.fixture(
    scope="module", params=[(XgrammarMatcher, True), (LlguidanceMatcher, False)], ids=["xgrammar", "llguidance"]
)
def package(request, tiny_backbone):
    kind, alone = request.param
    return lambda schema: kind(Grammar(json.dumps(schema), "json"), tiny_backbone, tiny_backbone.head.shape[0]), alone


@pytest.mark.parametrize(("schema", "values"), BROKEN, ids=lambda each: json.dumps(each)[:60])
def test_what_breaks_a_keyword_is_not_accepted_or_the_keyword_is_refused_by_name(package, schema, values):
    matcher_of, alone = package
    refused = unenforced(_whole(schema), choices_alone=alone)
    if refused:
        assert any(f"'{word}'" in refused for word in schema) or "a keyword has a value" in refused
        return
    matcher = matcher_of(_whole(schema))
    try:
        wrong = [value for value in values if matcher.accepts(json.dumps({"a": value}))]
    except (RuntimeError, ValueError):
        return  # the package refuses by itself
    assert wrong == []


NAMES = st.sampled_from("xyz")
LEAVES = st.one_of(
    st.sampled_from([{}, True, INT, TEXT, {"type": "null"}, {"type": ["boolean", "integer"]}, {"$ref": "#/$defs/I"}]),
    st.fixed_dictionaries({}, optional={word: st.integers(-9, 9) for word in ("minimum", "maximum", "multipleOf")}).map(
        lambda words: {
            **INT,
            **{word: abs(value) + 1 if word == "multipleOf" else value for word, value in words.items()},
        }
    ),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["string", ["string", "integer"]])},
        optional={
            "minLength": st.integers(0, 3),
            "maxLength": st.integers(0, 5),
            "pattern": st.sampled_from(["^a+$", "^b?$"]),
        },
    ),
    st.lists(st.sampled_from(["r", "g", 1, None, True]), min_size=1, max_size=3, unique_by=repr).map(
        lambda v: {"enum": v}
    ),
)


def _nodes(inner):
    named = st.dictionaries(NAMES, inner, min_size=1, max_size=3)
    return st.one_of(
        st.builds(
            lambda words, more: {"type": "object", "properties": words, **more},
            named,
            st.fixed_dictionaries(
                {},
                optional={
                    "required": st.lists(NAMES, unique=True, max_size=2),
                    "additionalProperties": st.booleans() | inner,
                    "minProperties": st.integers(0, 2),
                    "maxProperties": st.integers(1, 3),
                },
            ),
        ),
        st.builds(lambda each, least: {"type": "array", "items": each, "minItems": least}, inner, st.integers(0, 2)),
        st.builds(
            lambda word, each, more: {word: each, **more},
            st.sampled_from(["anyOf", "oneOf", "allOf"]),
            st.lists(inner, min_size=1, max_size=3),
            st.sampled_from([{}, {}, {"type": "object"}, {"title": "it"}]),
        ),
    )


SCHEMAS = st.recursive(LEAVES, _nodes, max_leaves=6)
LETTERS = [*map(chr, range(32, 127)), "\u00e9"]


def _written(schema, draws=6, longest=80):
    """Texts that masks of xgrammar let a drawing of letters write, as far as they come to an end."""
    tokens = xgrammar.TokenizerInfo([*LETTERS, "<end>"], stop_token_ids=[len(LETTERS)])
    grammar = xgrammar.Grammar.from_json_schema(json.dumps(schema), any_whitespace=False, separators=(", ", ": "))
    compiled = xgrammar.GrammarCompiler(tokens, max_threads=1).compile_grammar(grammar)
    dice, mask = random.Random(1), xgrammar.allocate_token_bitmask(1, len(LETTERS) + 1)
    for _ in range(draws):
        matcher, text = xgrammar.GrammarMatcher(compiled), ""
        while len(text) < longest:
            matcher.fill_next_token_bitmask(mask)
            bits = np.unpackbits(mask.numpy().view(np.uint8), bitorder="little")[: len(LETTERS) + 1]
            allowed = np.flatnonzero(bits).tolist()
            ending = [token for token in allowed if token == len(LETTERS) or LETTERS[token] in '"}],:']
            token = dice.choice(ending if ending and dice.random() < 0.5 else allowed)
            if token == len(LETTERS):
                yield text
                break
            matcher.accept_token(token)
            text += LETTERS[token]


def _unique(pairs):
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(SCHEMAS)
def test_what_xgrammar_writes_under_a_schema_that_is_not_refused_follows_it(schema):
    whole = _whole(schema)
    if unenforced(whole, choices_alone=True):
        return
    try:
        texts = list(_written(whole))
    except RuntimeError:
        return  # xgrammar refuses by itself
    for text in texts:
        try:
            value = json.loads(text, object_pairs_hook=_unique)
        except AssertionError:
            continue  # a key of its own choice twice: read, the last one counts
        assert Draft202012Validator(whole).is_valid(value), text


def test_what_is_usual_is_not_refused():
    """What pydantic and people write: optional fields, references, choices with a discriminator, annotations."""
    either = [{"$ref": f"#/$defs/{name}"} for name in ("Play", "Stop")]
    kinds = {
        name: {
            "title": name,
            "type": "object",
            "properties": {
                "kind": {"const": name, "type": "string", "default": name},
                "count": {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "null"}], "default": None},
                "title": {"type": "string", "maxLength": 9, "examples": ["a"]},
            },
            "required": ["kind"],
            "additionalProperties": False,
        }
        for name in ("Play", "Stop")
    }
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$defs": kinds, "anyOf": either}
    for alone in (True, False):
        assert unenforced(schema, choices_alone=alone) == ""
        assert (
            unenforced({"oneOf": list(kinds.values()), "discriminator": {"propertyName": "kind"}}, choices_alone=alone)
            == ""
        )


def test_a_refusal_names_the_key_the_keyword_and_its_place(tmp_path):
    path = tmp_path / "rules.json"
    path.write_text(json.dumps(_whole({"allOf": [INT, {"minimum": 5}]})), encoding="utf-8-sig")
    with pytest.raises(ConfigError, match=r"parses\.rules .*'allOf' of several at #/properties/a is not enforced"):
        check_grammar(read_rules(str(path), "json", "parses.rules"), "parses.rules")
    path.write_text('{"type": "object", "type": "array"}')
    with pytest.raises(ConfigError, match="no key twice"):
        read_rules(str(path), "json", "parses.rules")
