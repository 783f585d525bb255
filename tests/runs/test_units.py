"""Privacy units in recipes: what each needs, what it costs, and that unit 'user' is the release it was."""

import json
import math
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from planned import mechanism as mechanism_of

import rayprivacy as rp
from rayprivacy.accounting.gaussian import epsilon_of
from rayprivacy.core.errors import ConfigError
from rayprivacy.core.keys import Key
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.layout import HOLDOUT, Layout
from rayprivacy.corpus.manifest import ShardManifest, write_part
from rayprivacy.corpus.phrases import Phrases
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.corpus.users import Dropped
from rayprivacy.methods.registry import load_recipe
from rayprivacy.methods.seqpate.heldout import phrase_metrics
from rayprivacy.methods.seqpate.plan import GATE, plan_run
from rayprivacy.methods.seqpate.recipe import METHOD, SeqPateRecipe
from rayprivacy.runs.checks import check_recipe
from rayprivacy.runs.files import dump_recipe

RECORD = {"privacy": {"unit": "record"}, "corpus": {"max_records_per_user": None}}
PHRASE = {"privacy": {"unit": "phrase"}, "corpus": {"phrases": "names.txt", "max_shards_per_phrase": 3}}
UNITS: list[dict[str, Any]] = [{}, RECORD, PHRASE]
SECRETS = ["my mat", "Soup-with-bread"]


def test_every_unit_and_bound_is_another_release_and_a_written_recipe_is_the_same(tmp_path):
    wider = {**PHRASE, "corpus": {**PHRASE["corpus"], "max_shards_per_phrase": 4}}
    recipes = [SeqPateRecipe.parse(data) for data in (*UNITS, wider)]
    assert len({recipe.release_id for recipe in recipes}) == 4
    assert len({plan_run(recipe).assumptions for recipe in recipes[:3]}) == 3
    assert plan_run(recipes[0]).assumptions[0].startswith("Every user's text carries one and the same user id")
    for recipe in recipes:
        (tmp_path / "recipe.yaml").write_text(dump_recipe(recipe))
        assert load_recipe(tmp_path / "recipe.yaml") == recipe


@pytest.mark.parametrize(("data", "unit", "shards"), list(zip(UNITS, PrivacyUnit, (1, 1, 3), strict=True)))
def test_the_mechanism_carries_unit_and_bound(data, unit, shards):
    mechanism, users = (mechanism_of(SeqPateRecipe.parse({"votes": {"clip": 0.2}, **own}), GATE) for own in (data, {}))
    assert mechanism.protection.unit is mechanism.unit is unit
    assert mechanism.sensitivity == shards * users.sensitivity
    assert mechanism.event == users.event  # the same request: the noise grows, not the cost
    assert mechanism.noise_std_grid == pytest.approx(shards * users.noise_std_grid)


def test_phrases_that_overlap_are_refused_before_an_account_is_opened(tmp_path):
    (tmp_path / "names.txt").write_text("secret one\none secret\n")
    blocks = {"privacy.ledger": f"sqlite:///{tmp_path}/ledger.db", "corpus.phrases": str(tmp_path / "names.txt")}
    recipe = rp.load_recipe({"method": "seqpate", **PHRASE}, blocks)
    with pytest.raises(ConfigError, match="line 1 ends as line 2 begins") as caught:
        check_recipe(METHOD, recipe, METHOD.planned(recipe))
    assert "secret" not in str(caught.value)
    assert not (tmp_path / "ledger.db").exists()


def test_the_costs_of_phrases_are_counted_in_shards_and_stay_in_the_house(tmp_path):
    key, recipe = Key.for_tests(), SeqPateRecipe.parse({**PHRASE, "teachers": {"count": 4}, "votes": {"queries": 100}})
    layout = Layout(CorpusConfig(**PHRASE["corpus"]), 4, 2, PrivacyUnit.PHRASE)
    texts = {HOLDOUT: ["ann lee"], 0: ["ann lee", "Ann Lee!", "york"], 1: ["x"], 2: ["Ann-Lee"], 3: ["ann"]}
    entries = {}
    for part, shards in ((HOLDOUT, [HOLDOUT]), (0, [0, 1]), (1, [2, 3])):
        rows = [{"shard": s, "user": f"u{s}", "record": n, "text": t} for s in shards for n, t in enumerate(texts[s])]
        entries[part] = write_part(pa.Table.from_pylist(rows, schema=layout.schema), part, key, tmp_path)
    manifest = ShardManifest("", 4, 2, 9, 0.1, (entries[0], entries[1]), entries[HOLDOUT], Dropped())

    mechanism = mechanism_of(recipe, GATE)
    metrics = phrase_metrics(tmp_path, manifest, Phrases.of(["Ann Lee", "york", "nobody"]), mechanism, 1e-6)
    assert metrics["releasable"] is False
    assert metrics["histogram"] == ((0, 1), (1, 1), (2, 1))
    one = math.sqrt(100) / (3 * mechanism.sigma)
    assert metrics["worst"] == pytest.approx(epsilon_of(2 * one, 1e-6))
    assert metrics["average"] == pytest.approx((epsilon_of(one, 1e-6) + metrics["worst"]) / 3)
    assert metrics["worst"] < metrics["at_bound"] <= recipe.privacy.epsilon
    assert "ann" not in json.dumps(metrics).lower()


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_records_end_to_end(job):
    done = job.run("first", "-o", "privacy.unit=record", "-o", "corpus.max_records_per_user=null")
    assert done.returncode == 0, done.stderr
    certificate = job.certificate("first")
    assert (certificate["unit"], certificate["epsilon"]) == ("record", 3.0)
    assert "phrases" not in job.metrics("first")
    mixed = job.run("second")  # users, on an account of records
    assert mixed.returncode != 0
    assert "Traceback" not in mixed.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_phrases_end_to_end(job):
    names, out = job.folder / "names.txt", job.folder / "first"
    names.write_text("\n".join(SECRETS))
    unit = [f"corpus.phrases={names}", "corpus.max_shards_per_phrase=3", "privacy.unit=phrase"]
    done = job.run("first", *(part for option in unit for part in ("-o", option)))
    assert done.returncode == 0, done.stderr
    assert job.certificate("first")["unit"] == "phrase"
    metrics = job.metrics("first")["phrases"]
    assert metrics["releasable"] is False
    assert sum(phrases for _, phrases in metrics["histogram"]) == len(SECRETS)
    assert 0 <= metrics["worst"] <= metrics["at_bound"] <= 3.0
    texts = [pq.read_table(path) for path in (out / "private" / "shards").glob("part-*.parquet")]
    assert any("[masked]" in text for table in texts for text in table["text"].to_pylist())
    shared = [path for path in out.rglob("*") if path.is_file() and "private" not in path.relative_to(out).parts]
    told = [done.stdout.encode(), done.stderr.encode(), *(path.read_bytes() for path in shared)]
    assert not any(secret.encode() in text for text in told for secret in (*SECRETS, "soup with bread"))
