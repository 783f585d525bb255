"""Privacy units in recipes: what each needs, what it costs, and that unit 'user' is the release it was.

Caught: a sensitivity that forgets n_s, a unit that does not reach the mechanism, a release id shared by two units or
changed for users, private counts marked releasable.
"""

import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from planned import mechanism as mechanism_of

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
FIRST_ASSUMPTIONS = (
    "Every user's text carries one and the same user id in the corpus; who uses two ids is two users.",
    "Prompts, base model and all numbers of the recipe are public and were not chosen by looking at the corpus.",
    "Only the released votes left the private side; metrics marked 'releasable: false' are not part of the claim.",
    "The key file stayed secret; it decides which shard a user falls into.",
    "The discrete Gaussian on a grid of 2^-20 is accounted as the continuous one.",
    "Running time and memory are not protected.",
)


def test_the_certificate_of_users_says_what_it_said() -> None:
    assert plan_run(SeqPateRecipe()).assumptions == FIRST_ASSUMPTIONS
    mechanism = mechanism_of(SeqPateRecipe(), GATE)
    assert set(mechanism.parameters) == {"mechanism", "scale", "queries", "candidates", "teachers", "sigma", "clip"}


def test_every_unit_and_bound_is_another_release() -> None:
    wider = {**PHRASE, "corpus": {**PHRASE["corpus"], "max_shards_per_phrase": 4}}
    ids = [SeqPateRecipe.parse(data).release_id for data in (*UNITS, wider)]
    assert len(set(ids)) == 4
    plans = [plan_run(SeqPateRecipe.parse(data)) for data in UNITS]
    assert len({plan.assumptions for plan in plans}) == 3


@pytest.mark.parametrize(("data", "unit", "shards"), list(zip(UNITS, PrivacyUnit, (1, 1, 3), strict=True)))
def test_the_mechanism_carries_unit_and_bound(data: dict[str, Any], unit: PrivacyUnit, shards: int) -> None:
    mechanism, users = (mechanism_of(SeqPateRecipe.parse({"votes": {"clip": 0.2}, **own}), GATE) for own in (data, {}))
    assert mechanism.protection.unit is mechanism.unit is unit
    assert mechanism.sensitivity == shards * users.sensitivity
    assert mechanism.event == users.event  # the same request: the noise grows, not the cost
    assert mechanism.noise_std_grid == pytest.approx(shards * users.noise_std_grid)


@pytest.mark.parametrize("data", UNITS, ids=list(PrivacyUnit))
def test_a_recipe_survives_being_written_and_read(tmp_path: Path, data: dict[str, Any]) -> None:
    recipe = SeqPateRecipe.parse(data)
    (tmp_path / "recipe.yaml").write_text(dump_recipe(recipe))
    assert load_recipe(tmp_path / "recipe.yaml") == recipe


def test_phrases_that_overlap_are_refused_before_an_account_is_opened(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("secret one\none secret\n")
    data = {
        "privacy": {"unit": "phrase", "ledger": f"sqlite:///{tmp_path}/ledger.db"},
        "corpus": {"phrases": str(tmp_path / "names.txt"), "max_shards_per_phrase": 3},
    }
    recipe = SeqPateRecipe.parse(data)
    with pytest.raises(ConfigError, match="line 1 ends as line 2 begins") as caught:
        check_recipe(METHOD, recipe, METHOD.planned(recipe))
    assert "secret" not in str(caught.value)
    assert not (tmp_path / "ledger.db").exists()


def test_the_costs_of_phrases_are_counted_in_shards_and_stay_in_the_house(tmp_path: Path) -> None:
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
