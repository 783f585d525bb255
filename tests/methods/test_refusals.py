"""What cannot run, or has no guarantee, is refused in one sentence before anything is read: a table of all methods."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from rayprivacy.core.errors import ConfigError
from rayprivacy.methods.registry import method_of, parse_recipe

TABLE = yaml.safe_load(Path(__file__).with_name("refusals.yaml").read_text())
MANY = {"corpus": {"labels": ["topic"]}, "codes": {"values": {"topic": [str(number) for number in range(10_000)]}}}
CASES = [
    *((method, blocks, says) for method, rows in TABLE.items() for blocks, says in rows),
    ("generator", MANY, "10,?001|10000"),
]


@pytest.mark.parametrize(("method", "blocks", "says"), CASES, ids=[f"{each[0]}-{each[2]}"[:80] for each in CASES])
def test_a_recipe_without_a_guarantee_is_refused_in_one_sentence(
    method: str, blocks: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        method_of(recipe := parse_recipe({"method": method, **blocks})).planned(recipe)
    assert "\n" not in str(refused.value)
    assert str(refused.value).endswith((".", ")"))
