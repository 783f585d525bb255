"""The recipe of two-stage generation: what is refused, noise that just fits both stages, and what names the release."""

import json
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import command
from planned import mechanisms
from small_trees import small_recipe, warm, write_corpus

import rayprivacy as rp
from rayprivacy.accounting.accountant import epsilon
from rayprivacy.core.errors import BudgetRefusedError, ConfigError
from rayprivacy.methods.registry import load_recipe
from rayprivacy.methods.two_stage import method
from rayprivacy.methods.two_stage.plan import PARSES, UTTERANCES, plan_run
from rayprivacy.methods.two_stage.public_side import check_inputs, pretraining_documents, structure_of
from rayprivacy.methods.two_stage.readings import parses_of, utterances_of
from rayprivacy.methods.two_stage.recipe import TwoStageRecipe, prompt
from rayprivacy.runs.account import open_account
from rayprivacy.runs.files import dump_recipe

JOB = Path(__file__).parents[3] / "jobs" / "two_stage" / "smcalflow.yaml"


def _recipe(**blocks):
    return TwoStageRecipe.parse(blocks)


@pytest.mark.parametrize("composition", ["rdp", pytest.param("pld", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("ratio", [pytest.param(1.0, marks=pytest.mark.exhaustive), 1.7])
def test_the_noise_is_the_least_with_which_both_stages_fit(composition, ratio, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # it is found here and now
    privacy = {"epsilon": 3.0, "composition": composition, "ledger": f"sqlite:///{tmp_path}/ledger.db"}
    stages = {"trees": {"steps": 20}, "utterances": {"steps": 80}, "sigma_ratio": ratio}
    recipe = _recipe(privacy=privacy, stages=stages)
    found, plan = mechanisms(recipe), plan_run(recipe)
    trees, utterances = found[PARSES], found[UTTERANCES]
    assert (trees.sampling_rate, trees.steps, utterances.sampling_rate, utterances.steps) == (0.05, 20, 0.05, 80)
    assert trees.noise_multiplier == pytest.approx(ratio * utterances.noise_multiplier)
    assert 2.98 < epsilon(plan.charges, 1e-6, "pld" if composition == "pld" else "rdp") <= 3.0
    open_account(recipe, plan).close()
    privacy["account"] = "less"
    less = _recipe(privacy=privacy, stages=stages, training={"noise_multiplier": 0.999 * utterances.noise_multiplier})
    with pytest.raises((BudgetRefusedError, ConfigError)):
        open_account(less, plan_run(less))


def test_both_stages_take_the_parts_of_edpsgd():
    training = {"microbatches": 32, "chunk": 20}
    training |= {"noise_schedule": {"kind": "linear", "tau": 0.5, "steps_per_epoch": 20}}
    plan = plan_run(_recipe(privacy={"epsilon": 8.0}, training=training))
    assert 7.99 < epsilon(plan.charges, 1e-6, "rdp") <= 8.0
    assert len({str(event) for event in plan.charges}) == 4  # the levels of 80 steps; those of 20 share the first
    assert plan.noise.count("of the mean of each of 32 micro-batches") == 2
    assert not plan.as_published


def test_the_noise_of_a_plan_is_that_of_the_calculator():
    recipe = load_recipe(JOB, {"privacy.epsilon": 3.0})  # there is no such corpus: none is touched
    line = "epsilon two-stage --q1 .05 --steps1 20 --q2 .05 --steps2 80 --epsilon 3 --delta 1e-6 --json"
    (noise,) = set(json.loads(command(line.split(), JOB.parent).stdout)["noise"].values())
    assert [each.noise_multiplier for each in mechanisms(recipe).values()] == pytest.approx([noise] * 2, rel=1e-3)


def test_the_certificate_will_say_what_the_paper_would_and_what_its_batches_cost():
    """Ten epochs of 133,584 texts in batches of 2,048, with what is exactly epsilon 8 if batches are sampled."""
    training = {"sampling_rate": 2048 / 133_584, "noise_multiplier": 0.63}
    stages = {"trees": {"steps": 130}, "utterances": {"steps": 520}}
    recipe = _recipe(privacy={"epsilon": 60.0, "delta": 8e-6}, stages=stages, training=training)
    paper, shuffled = plan_run(recipe).as_published.values()
    assert 10.0 < paper < 10.6  # classic conversion
    assert 33.0 < shuffled < 34.0  # each text takes part ten times
    assert not plan_run(_recipe(privacy={"epsilon": 8.0}, training={"bands": 5, "chunk": 10})).as_published


def test_the_release_id_moves_with_what_is_released():
    release, given = _recipe().release_id, {"method": "two_stage"}
    for same in ("resources.workers=2", "generation.texts=9", "evaluation.users=3", "stages.steps=100"):
        assert rp.load_recipe(given, [same]).release_id == release, same
    others = (
        *("parses={grammar: lispress, functions: api.txt}", "parses={grammar: ebnf, rules: rules.ebnf}"),
        *("parses.max_tokens=99", "pretrain.source=public.parquet", "training.token_decay=0.5"),
        *("stages.sigma_ratio=1.1", "stages.trees={steps: 21}", "stages.trees={steps: 20, learning_rate: 0.1}"),
        "stages.trees={steps: 20, token_decay: 0.5}",
    )
    assert len({release, *(rp.load_recipe(given, [other]).release_id for other in others)}) == 1 + len(others)


def test_tokens_of_trees_weigh_less_and_less_and_those_of_utterances_alike():
    def decays(**training):
        return [_recipe(**training).training_of(stage).token_decay for stage in ("trees", "utterances")]

    assert decays() == decays(stages={"trees": {"steps": 7}}) == [0.75, 0.0]
    assert decays(training={"token_decay": 0.5}) == [0.75, 0.5]
    assert decays(training={"token_decay": 0.5}, stages={"trees": {"token_decay": None}}) == [0.5, 0.5]
    assert decays(stages={"utterances": {"token_decay": 1.0}}) == [0.75, 1.0]


def test_everything_public_is_the_same_for_neighbouring_corpora(tmp_path, tiny_base):
    """Grammar, bounds, prompts, noise and pretraining documents, to the byte, before and after a user joins."""
    pytest.importorskip("xgrammar")

    def public():
        recipe = TwoStageRecipe.parse(small_recipe(tmp_path, tiny_base) | warm(tmp_path))
        check_inputs(recipe)
        parts = (parses_of(recipe), utterances_of(recipe), structure_of(recipe), pretraining_documents(recipe))
        return pickle.dumps((*parts, mechanisms(recipe), plan_run(recipe).charges))

    write_corpus(tmp_path)
    before = public()
    write_corpus(tmp_path, users=31)
    assert public() == before


def test_public_pairs_become_a_document_for_each_model(tmp_path):
    write_corpus(tmp_path)
    source = str(tmp_path / "pub.parquet")
    documents = pretraining_documents(_recipe(pretrain={"source": source, "text": "said"}))
    assert documents is not None
    assert len(documents) == 160
    assert documents[1].startswith(prompt(documents[0]))
    with pytest.raises(ConfigError, match=r"pretrain\.text"):
        pretraining_documents(_recipe(pretrain={"source": source, "text": "says"}))


def test_a_list_that_is_none_is_one_sentence(tmp_path):
    recipe = _recipe(parses={"grammar": "lispress", "functions": str(tmp_path / "api.txt")})
    for lines, says in (
        (None, "cannot be read"),
        ("", "name 1 is missing"),
        ("Yield\nno way", "name 2 is missing"),
    ):
        if lines is not None:
            (tmp_path / "api.txt").write_text(lines)
        with pytest.raises(ConfigError, match=f"parses.functions .*{says}"):
            structure_of(recipe)


def test_steps_together_are_divided_by_one_key(tmp_path):
    """And a resolved recipe, and so the release, is that of the same steps written out."""
    divided = _recipe(stages={"steps": 50, "trees": {"steps": 5}, "utterances": {"steps": 80, "learning_rate": 0.1}})
    written = _recipe(stages={"trees": {"steps": 5}, "utterances": {"steps": 45, "learning_rate": 0.1}})
    assert (divided, divided.release_id) == (written, written.release_id)
    (tmp_path / "again.yaml").write_text(dump_recipe(divided))
    assert load_recipe(tmp_path / "again.yaml") == divided


def test_no_engine_is_made_ready_for_trees_that_are_all_drawn_under_masks(tmp_path):
    for generation, engine in (({}, "transformers"), ({"free_draws": 2}, "auto"), ({"constrained": False}, "auto")):
        recipe = _recipe(**warm(tmp_path), corpus={"labels": ["lispress"]}, generation={"texts": 12, **generation})
        writing = recipe.tree_writing
        assert (writing.engine, writing.max_tokens, writing.texts) == (engine, 64, 12)


def test_no_text_may_hold_a_name_of_its_tree(tmp_path, monkeypatch):
    asked, path = dict[str, Any](), tmp_path / "trees.parquet"
    pq.write_table(pa.table({"text": ["(Yield (Today))", "(Find (Recipient))", "(no tree"]}), path)
    context: Any = SimpleNamespace(run=SimpleNamespace(root=tmp_path, public=lambda name: path), recipe=_recipe())
    monkeypatch.setattr(method.writing, "written_once", lambda *_, **named: asked.update(named))
    method._write_texts(context, SimpleNamespace(inputs="digest"))  # type: ignore[arg-type]
    assert asked["names"] == {"Yield", "Today", "Find", "Recipient"}
