"""The public grammar of parse trees: rules of Lispress that were written by hand, over a public list of functions.

Neither may be made from private trees: a rule that occurs in one of them alone would show that it occurs. What the
functions of an interface are called is public, since its developers wrote it; how often users need them is not.

The grammar is a text in the EBNF of xgrammar. It bounds no lengths: whoever samples stops at a number of tokens.

>>> print(lispress(["Yield", "?="]).splitlines()[-1])
name ::= "Yield" | "?=" | "let" | "do"
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from rayprivacy.core.errors import ConfigError

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


def lispress(functions: Sequence[str]) -> str:
    """The grammar of trees over some functions, in the EBNF of xgrammar."""
    names = dict.fromkeys([*functions, *BUILT_IN])
    return f"{RULES}name ::= {' | '.join(map(json.dumps, names))}\n"


def read_functions(path: str, key: str) -> list[str]:
    """The functions that a public UTF-8 file lists, one a line, in its order.

    Args:
        path: of the file.
        key: of the recipe, for errors.

    Raises:
        ConfigError: it cannot be read, is empty, or a line is no name.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{key} is {path!r}: it cannot be read ({type(error).__name__}); give a UTF-8 file of public function names"
        ) from None
    names = list(dict.fromkeys(line.strip() for line in lines if line.strip()))
    wrong = [number for number, name in enumerate(names, 1) if not _NAME.fullmatch(name)]
    if wrong or not names:
        raise ConfigError(
            f"{key} is {path!r}, where name {wrong[0] if wrong else 1} is missing, or has spaces, quotes or brackets in"
            " it: give one public function name a line."
        )
    return names
