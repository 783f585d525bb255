"""Files that people write: text in UTF-8, and YAML in which what was written is what counts.

YAML 1.1 takes much for something else than it says: `no` is false, `012` is ten, `12:30` is 750, `2026-01-01` is a
date, and `1e-6` is text. Here, as in YAML 1.2, only null, true, false and numbers (1e-6 is one) are no text, and in
quotes they are text too. A number may remember how it was written, for a field that holds text: an account `12e4` is
no 120000.0. Keys are always text, and none stands twice.

>>> load_yaml('{delta: 1e-6, account: "12e4", answer: no}', "this")
{'delta': 1e-06, 'account': '12e4', 'answer': 'no'}
>>> print(dump_yaml({"account": "12e4"}), end="")
account: '12e4'
"""

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.files import at_home

# What is no text: patterns, and the characters that each may begin with.
_NO_TEXT = {
    "null": (r"~|null|Null|NULL|", "~nN"),
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "merge": (r"<<", "<"),
    "int": (r"[-+]?(0|[1-9][0-9]*)", "-+0123456789"),
    "float": (
        r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
}


def read_text(path: Path | str, key: str, remedy: str) -> str:
    """A text file in UTF-8, with or without a byte order mark, whatever ends its lines.

    Raises:
        ConfigError: it is not there, not ours to read, a folder, or in another encoding; the sentence names the `key`
            of the recipe that gave the path, or what else did, and ends with the `remedy`.
    """
    data = b""
    try:
        data = at_home(path).read_bytes()
        text = data.decode("utf-8-sig")
        nul = data.find(b"\0")
        if nul < 0:
            return io.IncrementalNewlineDecoder(None, translate=True).decode(text, final=True)
        fault = f"cannot be read (line {_line(data, nul)} holds a NUL, as UTF-16 does)"
    except OSError as error:
        fault = f"cannot be read ({error.strerror or type(error).__name__})"
    except UnicodeDecodeError as error:
        fault = f"cannot be read (line {_line(data, error.start)} is not UTF-8)"
    except ValueError:  # a NUL in a path
        fault = "is no path"
    # Outside: the __context__ would quote what the file holds.
    raise ConfigError(f"{key} is {str(path)!r}, which {fault}: {remedy}.")


def _line(data: bytes, place: int) -> int:
    return data.count(b"\n", 0, place) + 1


def load_yaml(text: str, name: str, *, written: bool = False) -> Any:
    """The value of a YAML text, with numbers as they are `written`; a ConfigError that says where it is none."""
    try:
        return yaml.load(text, _WrittenLoader if written else _Loader)  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        fault = f"has {error.problem}" if isinstance(error, _Refused) else "is not valid YAML"
        fault = f"{fault} at line {line}"
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        fault = f"is not valid YAML at line {line}, which holds a control character"
    except (ValueError, RecursionError, yaml.YAMLError):  # a number of 5,000 digits, or lists in lists in lists
        fault = "is not valid YAML"
    raise ConfigError(f"{name} {fault}: check quotes, colons and indentation.")


def dump_yaml(value: Any) -> str:
    """YAML that `load_yaml` reads as the same value, and so do readers of YAML 1.1."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False)


def line_of(text: str, keys: Sequence[str | int]) -> int:
    """The line of a YAML text where a value stands, or the innermost block of those that lead to it."""
    node = yaml.compose(text, _Loader)
    line = 0
    for key in keys:
        found = _inner(node, key)
        if found is None:
            break
        line, node = found
    return line + 1


def _inner(node: Any, key: str | int) -> tuple[int, Any] | None:
    """The line and the node of a key or place in another node."""
    if isinstance(node, yaml.MappingNode):
        return next(((name.start_mark.line, value) for name, value in node.value if name.value == key), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
        return node.value[key].start_mark.line, node.value[key]
    return None


class WrittenNumber:
    """A number of a file, and how it is written there."""

    text: str


class _Int(int, WrittenNumber):
    pass


class _Float(float, WrittenNumber):
    pass


class _Refused(yaml.MarkedYAMLError):
    """YAML that is valid, and that does not say which value counts."""


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - of the class, as PyYAML keeps it

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """A mapping whose keys are text as it is written."""
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _Refused(problem="a key that is no text", problem_mark=key.start_mark)
            if key.value in seen:
                raise _Refused(problem=f"the key {key.value!r} twice", problem_mark=key.start_mark)
            seen.add(key.value)
        self.flatten_mapping(node)
        return {key.value: self.construct_object(value, deep=deep) for key, value in node.value}


class _WrittenLoader(_Loader):
    def number(self, node: Any) -> Any:
        """A number that knows its text."""
        is_int = node.tag.endswith(":int")
        found = _Int(self.construct_yaml_int(node)) if is_int else _Float(self.construct_yaml_float(node))
        found.text = node.value
        return found


class _Dumper(yaml.SafeDumper):
    pass


for _tag in ("int", "float"):
    _WrittenLoader.add_constructor(f"tag:yaml.org,2002:{_tag}", _WrittenLoader.number)
_Dumper.add_representer(_Int, yaml.SafeDumper.represent_int)
_Dumper.add_representer(_Float, yaml.SafeDumper.represent_float)
for _name, (_pattern, _first) in _NO_TEXT.items():
    for _kind in (_Loader, _Dumper):
        _kind.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", re.compile(rf"({_pattern})\Z"), [*_first, ""])
