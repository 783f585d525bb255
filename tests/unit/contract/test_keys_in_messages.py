"""Every key of a recipe or a space that a message names is one that the user can set.

Read off the source: each string of the package that is no docstring, the parts of f-strings and constants included,
so that a message is seen wherever it is raised from.

A dotted name counts as a key when its first part is a block of some recipe or space, or one of `NO_BLOCKS`, which
messages once named and no file ever had. These do not count: a name that ends like a file (`recipe.yaml`), a string
that is joined to a folder (`root / "public.key"`), a part of a longer path or address (`rayprivacy.corpus.shards`,
`https://...`) and a name with a value in it (`teachers.{name}`).
"""

import ast
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

import rayprivacy
from rayprivacy.cli import app
from rayprivacy.tuning.space import Space

PACKAGE = Path(rayprivacy.__file__).parent
NO_BLOCKS = {"generator", "engine"}
FILES = ("json", "yaml", "md", "parquet", "html", "log", "db", "onnx", "safetensors")
VALUE = "\0"  # stands where an f-string has a value
DOTTED = re.compile(rf"(?<![\w./:{VALUE}-])[a-z_]\w*(?:\.[a-z_]\w*)+(?![\w/(:{VALUE}]|\.[\w{VALUE}])")
ANYTHING = "*"
Tree = dict[str, Any]


def _tree(schema, definitions):
    """The keys of a JSON Schema by their first part; a mapping whose keys are the user's own has `ANYTHING`."""
    tree: Tree = {}
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    for key, value in schema.get("properties", {}).items():
        tree[key] = _tree(value, definitions)
    if schema.get("type") == "object" and schema.get("additionalProperties") is not False:
        tree[ANYTHING] = {}
    for choice in [*schema.get("oneOf", ()), *schema.get("anyOf", ()), *schema.get("allOf", ())]:
        _merge(tree, _tree(choice, definitions))
    return tree


def _merge(tree, other):
    for key, under in other.items():
        _merge(tree.setdefault(key, {}), under)


@cache
def _keys():
    """The keys of the recipes of all methods and of spaces; in a space, `fixed` and `search` hold those of recipes."""
    shown = CliRunner().invoke(app, ["schema"])
    assert shown.exit_code == 0, shown.output
    recipes = json.loads(shown.stdout)
    recipe, keys = _tree(recipes, recipes["$defs"]), Space.model_json_schema()
    tree = _tree(keys, keys["$defs"])
    tree["fixed"] = tree["search"] = recipe
    _merge(tree, recipe)
    return tree


def _strings(source):
    """(line, text) of every string but docstrings and parts of paths; `VALUE` for what an f-string fills in."""
    tree = ast.parse(source)
    apart: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            apart.add(id(node.value))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            apart |= {id(node.left), id(node.right)}
        if isinstance(node, ast.JoinedStr):
            apart |= {id(part) for part in node.values}
            parts = [str(part.value) if isinstance(part, ast.Constant) else VALUE for part in node.values]
            yield node.lineno, "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in apart:
            yield node.lineno, node.value


def _named_keys(text):
    """Whatever a text names that looks like a key."""
    for name in DOTTED.findall(text):
        first, last = name.split(".")[0], name.split(".")[-1]
        if first in _keys().keys() | NO_BLOCKS and last not in FILES:
            yield name


def _exists(name):
    tree = _keys()
    for part in name.split("."):
        if ANYTHING in tree:
            return True
        if part not in tree:
            return False
        tree = tree[part]
    return True


def _wrong(source):
    found = [(line, name) for line, text in _strings(source) for name in _named_keys(text)]
    return [f"line {line}: {name}" for line, name in found if not _exists(name)]


def test_messages_name_keys_that_exist():
    wrong = {str(path.relative_to(PACKAGE)): _wrong(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
    assert {name: found for name, found in wrong.items() if found} == {}
    assert {"corpus", "privacy", "resources", "search", "metric"} <= _keys().keys()
    assert all(map(_exists, ("codes.values.stars", "fixed.corpus.holdout", "search.privacy.epsilon")))
    assert not _exists("codes.value")


WRONG = (
    """raise ConfigError("'privacy.epsilom' is too small: give more.")""",
    """raise ConfigError(f"privacy.epsilom is {value}: give more.")""",
    """raise ConfigError("it is too small" f": set privacy.epsilom to {value}, or more.")""",
    """REMEDY = "set fixed.privacy.epsilom"\ndef _refused() -> None:\n    raise ValueError(REMEDY)""",
    """raise ValueError("budget.epsilom is missing: add it")""",
    """raise ConfigError(_sentence("search lacks privacy.epsilom"))""",
    """raise ConfigError("generator.codes.values has no list.")""",
    """raise ConfigError(f"engine.zero is {stage}.")""",
)
RIGHT = (
    """raise ConfigError("recipe.yaml and audit.json")""",
    """raise ConfigError("see https://host/privacy.epsilom")""",
    """raise ConfigError("rayprivacy.corpus.layouts")""",
    """raise ConfigError("jobs/privacy.epsilom")""",
    """raise ConfigError("dp_accounting.privacy.epsilom")""",
    """def f():\n    'See engine.Engine and corpus.shards.'""",
    """key = root / "public.key\"""",
)


def test_a_wrong_key_is_found_and_what_is_no_key_left_alone():
    assert [len(_wrong(source)) for source in WRONG + RIGHT] == [1] * len(WRONG) + [0] * len(RIGHT)
