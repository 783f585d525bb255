"""The public grammar of structures: rules of Lispress over a public list of functions, or the user's own.

The user's own rules are a JSON Schema, or EBNF.

None of them may be made from private trees: a rule that occurs in one of them alone would show that it occurs. What the
functions of an interface are called is public, since its developers wrote it; how often users need them is not.

A grammar bounds no lengths: whoever samples stops at a number of tokens.

>>> print(lispress(["Yield", "?="]).splitlines()[-1])
name ::= "Yield" | "?=" | "let" | "do"
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.files import read_text
from rayprivacy.structures.trees import constants_of

RULES = r"""
root ::= expr
expr ::= "(" head (" " arg)* ")"
head ::= annotation " " name | name | key | expr
annotation ::= "^" type
type ::= [A-Z] [A-Za-z]* | "(" type (" " type)* ")"
arg ::= expr | string | number | var | name | bool | "(" var (" " arg)+ ")" | key " " arg
bool ::= "true" | "false"
key ::= ":" [a-z] [A-Za-z0-9]*
var ::= "x" [0-9]+
number ::= "-"? [0-9]+ ("." [0-9]+)? "L"?
string ::= "\"" [^"\\]* "\""
""".lstrip()
BUILT_IN = ("let", "do")
_NAME = re.compile(r'[^\s()^"\\]+')


@dataclass(frozen=True)
class Grammar:
    """Public rules that structures follow: a JSON Schema, or the EBNF of xgrammar and llama.cpp from a rule `root`."""

    text: str
    kind: Literal["ebnf", "json"] = "ebnf"

    @property
    def constants(self) -> frozenset[str]:
        """The strings that a JSON Schema lists, which count as names (see `trees`); none with EBNF."""
        return constants_of(json.loads(self.text)) if self.kind == "json" else frozenset()


def lispress(functions: Sequence[str]) -> str:
    """The grammar of trees over some functions, in the EBNF of xgrammar."""
    names = dict.fromkeys([*functions, *BUILT_IN])
    return f"{RULES}name ::= {' | '.join(map(json.dumps, names))}\n"


def read_functions(path: str, key: str) -> list[str]:
    """The functions that a public UTF-8 file of a recipe's key lists, one a line, in its order."""
    lines = _read(path, key, "of public function names").splitlines()
    names = list(dict.fromkeys(line.strip() for line in lines if line.strip()))
    wrong = [number for number, name in enumerate(names, 1) if not _NAME.fullmatch(name)]
    if wrong or not names:
        raise ConfigError(
            f"{key} is {path!r}, where name {wrong[0] if wrong else 1} is missing, or has spaces, quotes or brackets in"
            " it: give one public function name a line."
        )
    return names


def read_rules(path: str, kind: Literal["ebnf", "json"], key: str) -> Grammar:
    """The rules, of a kind, that a public UTF-8 file of a recipe's key holds."""
    text = _read(path, key, "of public rules")
    if kind == "ebnf":
        return Grammar(text)
    try:
        schema = json.loads(text)
    except ValueError:
        schema = None
    if not isinstance(schema, dict):
        raise ConfigError(f"{key} is {path!r}, which holds no JSON object: give a JSON Schema.")
    return Grammar(text, "json")


def _read(path: str, key: str, what: str) -> str:
    try:
        return read_text(Path(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{key} is {path!r}: it cannot be read ({type(error).__name__}); give a UTF-8 file {what}"
        ) from None
