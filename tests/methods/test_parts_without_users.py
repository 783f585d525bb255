"""Every method over a corpus all of whose users fall into one part file: whether a part holds anybody is private."""

from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest
from every_method import DEAR, SENTENCES, USERS, small_corpus, smallest_recipe
from toy_bench import QUIET

import rayprivacy as rp
from rayprivacy.core.keys import load_key
from rayprivacy.corpus.layout import Layout
from rayprivacy.corpus.manifest import read_manifest
from rayprivacy.runs.plan import Plan

pytestmark = [pytest.mark.usefixtures("local_ray"), pytest.mark.timeout(600)]


def _of_one_part(recipe: rp.Recipe, plan: Plan) -> list[str]:
    """Names of users whom the key puts into the first part."""
    layout = Layout(recipe.sharded_corpus, plan.shards, plan.shards_per_part, recipe.privacy.unit)
    key = load_key(Path(recipe.privacy.key))
    names = (f"user-{number}" for number in count())
    return list(islice((name for name in names if layout.part_of(layout.shard_of(key, name)) == 0), USERS))


def _cases() -> list[Any]:
    dear = (pytest.mark.exhaustive, pytest.mark.slow)
    return [pytest.param(name, marks=dear if name in DEAR else ()) for name in rp.method_names()]


@pytest.mark.parametrize("name", _cases())
def test_a_method_runs_where_parts_of_the_corpus_hold_nobody(
    name: str, tmp_path: Path, tiny_base: Path, tiny_bert: Path
) -> None:
    recipe = smallest_recipe(name, tmp_path, tiny_base, tiny_bert)
    plan = rp.plan(recipe).plan
    small_corpus(tmp_path, _of_one_part(recipe, plan))
    result = rp.run(recipe, tmp_path / "out", console=QUIET)
    manifest = read_manifest(result.path / "private" / "shards")
    assert [entry.rows for entry in manifest.parts] == [USERS * SENTENCES, *[0] * (plan.parts - 1)]
    assert manifest.holdout.rows == 0
    assert result.certificate.release_id == recipe.release_id
