"""What a package that makes grammars of JSON Schemas does not enforce: it would let other texts pass for right ones.

xgrammar leaves out, with a line in its own log or without one, what it does not know. Of `$ref`, `const`, `enum`,
`anyOf`, `oneOf` and `allOf` it looks at the first alone, and of keywords about one type only at those whose type is
named. llguidance refuses by itself what it knows and does not support. Neither says anything of a keyword that it has
never heard of, such as a misspelt one. So whatever is not on the lists below is refused; the lists are what tests find
enforced by the installed packages.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

_SAYS_NOTHING = re.compile(
    r"x-.*|title|description|default|examples|\$(comment|schema|id|anchor|defs)|definitions|deprecated|readOnly|writeOnly"
    r"|discriminator"
)
_CHOICES = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
_OF_TYPE = {
    "object": ("properties", "required", "additionalProperties", "minProperties", "maxProperties"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
_ENFORCED = frozenset({"type", *_CHOICES, *(word for words in _OF_TYPE.values() for word in words)})
_MORE = frozenset({"patternProperties"})  # that llguidance enforces, and xgrammar not beside others
_IMPLIES = {"properties": "object", "additionalProperties": "object", "items": "array", "prefixItems": "array"}
_FORMATS = re.compile(
    r"date|time|date-time|duration|email|hostname|ipv4|ipv6|uuid|uri|uri-(reference|template)|(relative-)?json-pointer"
)
_TYPES = {dict: "object", list: "array", str: "string", int: "number", float: "number"}
_RANGE = _OF_TYPE["number"][:4]
_WITHIN = re.compile(r"#(/(\$defs|definitions|properties)/[^/~%]+)*")
_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]")
# What JSON writes with a backslash in front, or xgrammar does not know; an anchor that is not at an end.
_UNSAFE = re.compile(r"\\(?![dwsDWS.\-+*?()\[\]{}|^$/])")
_INSIDE = re.compile(r"(?<!\\)(?:(?<=.)\^|\$(?=.))", re.DOTALL)


def unenforced(schema: Any, *, choices_alone: bool) -> str:
    """The first keyword that is not enforced, with its place, as a sentence begins; "" where all are.

    With `choices_alone` the package is xgrammar, which see above.

    >>> unenforced({"type": "array", "uniqueItems": True}, choices_alone=True)
    "'uniqueItems' at # is not enforced"
    """
    try:
        return next((f"{fault} is not enforced" for fault in _faults(schema, "#", choices_alone)), "")
    except (TypeError, AttributeError, RecursionError):  # such as `required: 5`
        return "a keyword has a value of a kind that it cannot have, or schemas are too deep in each other"


def _faults(schema: Any, at: str, strict: bool) -> Iterator[str]:
    if not isinstance(schema, dict):
        return
    words = [word for word in schema if not _SAYS_NOTHING.fullmatch(word)]
    for word in words:
        if word not in _ENFORCED and (strict or word not in _MORE):
            yield f"'{word}' at {at}"
    if "$id" in schema and at != "#":
        yield f"'$id' at {at}"
    if strict:
        choice = next((word for word in _CHOICES if word in schema), None)
        found = _of_types(schema, words) if choice is None else _of_choice(schema, choice, words)
        yield from (f"{fault} at {at}" for fault in found)
    for name, inner in _inner(schema):
        yield from _faults(inner, f"{at}/{name}", strict)


def _inner(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The schemas right inside of one, with the way to each."""
    for word in ("properties", "patternProperties", "$defs", "definitions"):
        if isinstance(named := schema.get(word), dict):
            yield from ((f"{word}/{name}", each) for name, each in named.items())
    for word in ("anyOf", "oneOf", "allOf", "prefixItems"):
        if isinstance(listed := schema.get(word), list):
            yield from ((f"{word}/{place}", each) for place, each in enumerate(listed))
    yield from ((word, schema[word]) for word in ("items", "additionalProperties") if word in schema)


def _of_choice(schema: dict[str, Any], choice: str, words: Sequence[str]) -> Iterator[str]:
    """What is wrong with a schema that is one of the choices."""
    said = schema[choice]
    listed = said if isinstance(said, list) and choice != "const" else [said]
    for word in words:
        fits = word == "type" and choice in ("const", "enum") and _fit(listed, schema["type"])
        if word != choice and not fits:
            yield f"'{word}' beside '{choice}'"
    if choice == "$ref" and not _WITHIN.fullmatch(str(said)):
        yield f"'$ref' to {str(said)!r}, which is not '#' nor of the form '#/$defs/NAME',"
    if choice == "allOf" and len(listed) != 1:
        yield "'allOf' of several"
    if choice == "anyOf" and not listed:
        yield "'anyOf' of none"
    if choice == "oneOf" and not (listed and all(_apart(*pair) for pair in combinations(listed, 2))):
        yield "'oneOf' of what may be both (use 'anyOf')"


def _of_types(schema: dict[str, Any], words: Sequence[str]) -> Iterator[str]:
    """What is wrong with a schema that says which type a value has."""
    types = _types(schema)
    if types == set():
        yield "'type' of none"
    for kind, own in _OF_TYPE.items():
        said = [word for word in own if word in words]
        if said and types is None:
            yield f"'{said[0]}' without 'type'"
        elif said and kind in (types or ()) and kind in _RULES:
            yield from _RULES[kind](schema, said)


def _of_object(schema: dict[str, Any], said: Sequence[str]) -> Iterator[str]:
    unlisted = [name for name in schema.get("required", ()) if name not in schema.get("properties", {})]
    if unlisted:
        yield f"'required' of {unlisted[0]!r}, which 'properties' has not,"
    if schema.get("minProperties") and schema.get("additionalProperties", False) is not False:
        yield "'minProperties' beside 'additionalProperties'"


def _of_string(schema: dict[str, Any], said: Sequence[str]) -> Iterator[str]:
    lengths = [word for word in said if word in ("minLength", "maxLength")]
    if len({*said} - {*lengths}) + bool(lengths) > 1:
        yield f"'{said[0]}' beside '{said[-1]}'"
    if "format" in said and not _FORMATS.fullmatch(schema["format"]):
        yield f"'format' {schema['format']!r}"
    if "pattern" in said and not _is_plain(str(schema["pattern"])):
        yield "'pattern' with a quote, a line break, a look around or an anchor inside"


def _of_number(schema: dict[str, Any], said: Sequence[str]) -> Iterator[str]:
    if "multipleOf" not in said:
        return
    if "number" in _listed(schema.get("type")) or not isinstance(schema["multipleOf"], int):
        yield "'multipleOf' of a number that is no integer"
    if any(word in said for word in _RANGE):
        yield f"'multipleOf' beside '{said[0]}'"


_RULES = {"object": _of_object, "string": _of_string, "number": _of_number}


def _listed(said: Any) -> list[Any]:
    return said if isinstance(said, list) else [said]


def _types(schema: Any) -> set[str] | None:
    """The types that a value may have, integers as numbers; None where none is said."""
    if not isinstance(schema, dict):
        return None
    if (constants := _constants(schema)) is not None:
        return {_type_of(value) for value in constants}
    if "type" not in schema:
        return {kind for word, kind in _IMPLIES.items() if word in schema} or None
    return {"number" if kind == "integer" else str(kind) for kind in _listed(schema["type"])}


def _constants(schema: Any) -> list[Any] | None:
    """The values that a schema lists, if it does."""
    if not isinstance(schema, dict):
        return None
    return [schema["const"]] if "const" in schema else schema.get("enum")


def _type_of(value: Any) -> str:
    return "boolean" if isinstance(value, bool) else _TYPES.get(type(value), "null")


def _is_of(value: Any, kind: Any) -> bool:
    """Whether a value has a type."""
    return isinstance(value, int) and _type_of(value) == "number" if kind == "integer" else _type_of(value) == kind


def _fit(values: Sequence[Any], kinds: Any) -> bool:
    return all(any(_is_of(value, kind) for kind in _listed(kinds)) for value in values)


def _apart(one: Any, other: Any) -> bool:
    """Whether no value can be of both schemas: by their constants, their types, or those of a required property."""
    constants = _constants(one), _constants(other)
    if constants[0] is not None and constants[1] is not None:
        return not any(value in constants[1] for value in constants[0])
    types = _types(one), _types(other)
    if types[0] is None or types[1] is None:
        return False
    if types[0].isdisjoint(types[1]):
        return True
    if types != ({"object"}, {"object"}):
        return False
    required = set(one.get("required", ())) & set(other.get("required", ()))
    named = [(one.get("properties", {}).get(name), other.get("properties", {}).get(name)) for name in required]
    return any(_constants(each) is not None and _apart(each, its) for each, its in named)


def _is_plain(pattern: str) -> bool:
    """Whether xgrammar reads a pattern as it is meant, and matches it with text that JSON writes as it is."""
    if '"' in pattern or any(character < " " for character in pattern) or _UNSAFE.search(pattern):
        return False
    bare = _CLASS.sub("", pattern).replace("(?:", "(")
    return "(?" not in bare and not _INSIDE.search(bare)
