"""The recipe of question answering: what names a release, what it may learn from, and what is refused of it."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import command
from run_directory import certificate
from small_questions import small_job, small_recipe, write_passages, write_public

import rayprivacy as rp
from rayprivacy.ledger.certificate import Certificate
from rayprivacy.ledger.claim import statement
from rayprivacy.methods.question_answering import method
from rayprivacy.methods.question_answering.method import reading_of
from rayprivacy.methods.registry import load_recipe, method_of
from rayprivacy.runs import questions

JOB = Path(__file__).parents[3] / "jobs" / "question_answering" / "squad.yaml"


@pytest.fixture
def folder(tmp_path):
    write_passages(tmp_path)
    write_public(tmp_path)
    return tmp_path


def recipe_of(folder, **overrides):
    return rp.load_recipe(small_recipe(folder, folder / "base"), overrides)


def test_another_way_of_asking_is_the_same_release(folder):
    release = recipe_of(folder).release_id
    for changes in (
        {"questions": None},
        {"questions": {}},
        {"questions.keep.by": "roundtrip", "questions.heldout": None},
        {"questions.pairs.source": str(folder / "annotations.parquet"), "questions.seed": 7},
    ):
        assert recipe_of(folder, **changes).release_id == release
    for changes in ({"training.steps": 4}, {"pretrain": None}, {"seed": 1}, {"corpus.labels": [], "questions": None}):
        assert recipe_of(folder, **changes).release_id != release


def test_one_stage_of_nine_or_more_is_charged_and_reads_private_text():
    outline = rp.plan(load_recipe(JOB))
    stages = outline.plan.stages
    assert len(stages) >= 9
    assert [stage.name for stage in stages if stage.charges] == ["DP-SGD"]
    assert [stage.name for stage in stages if "private" in stage.reads] == ["DP-SGD"]
    assert [stage.name for stage in stages[-2:]] == ["question set", "retriever"]
    assert outline.epsilon <= 8.0


def test_a_plan_without_pairs_says_clozes_and_without_questions_has_no_stage_of_them(folder):
    clozes, none = (rp.plan(recipe_of(folder, questions=block)) for block in ({}, None))
    assert "clozes" in str(clozes)
    assert [stage.name for stage in none.plan.stages] == ["pretraining", "DP-SGD", "synthetic passages"]
    assert none.plan.charges == clozes.plan.charges


def test_that_annotations_are_public_is_an_assumption_where_something_is_learnt(folder):
    def said(**changes):
        return [each for each in rp.plan(recipe_of(folder, **changes)).plan.assumptions if "annotations" in each]

    assert len(said()) == 1
    assert "never of private ones" in said()[0]
    assert said(questions={}) == said(questions=None) == []


PUBLIC = ("questions.pairs.source", "questions.value.annotations", "pretrain.source")


def _linked(folder, private):
    os.symlink(private, folder / "elsewhere.parquet")
    return folder / "elsewhere.parquet"


def _linked_folder(folder, private):
    (folder / "seems" / "public").mkdir(parents=True)
    os.symlink(private, folder / "seems" / "public" / "a.parquet")
    return folder / "seems"


PLACES = {
    "itself": lambda folder, private: private,
    "by a link": _linked,
    "a folder around it": lambda folder, private: folder,
    "a folder with a link": _linked_folder,
}


@pytest.mark.parametrize("key", PUBLIC)
@pytest.mark.parametrize("place", PLACES)
def test_what_is_learnt_from_lies_apart_from_the_corpus(key, place, folder):
    named = PLACES[place](folder, folder / "talk.parquet")
    with pytest.raises(rp.ConfigError, match=rf"{key} is '.*', which .* corpus\.source, and is declared public"):
        recipe_of(folder, **{key: str(named)})


def test_real_questions_are_of_a_column_that_is_carried_along(folder):
    with pytest.raises(rp.ConfigError, match=r"questions.heldout is 'asked', which is none of corpus.labels: add it"):
        recipe_of(folder, **{"corpus.labels": []})


def test_what_people_asked_is_in_no_document(folder):
    """Nor in what stands before it; it tells a record from another, and no more."""
    reading = reading_of(recipe_of(folder))
    row = {"user": "u", "text": "they like soup", "asked": "what do they like"}
    assert (reading.context(row), reading.text(row, 0)) == ("", "they like soup")
    assert reading.labels == ("asked",)


def test_what_is_asked_about_is_the_released_text_under_its_claim(folder, monkeypatch):
    """With private text beside it, which no settings name."""
    (folder / "out" / "private" / "shards").mkdir(parents=True)
    for name, text in (("synthetic.parquet", "released"), ("private/shards/part-0000.parquet", "private")):
        pq.write_table(pa.table({"text": [f"{text} text"]}), folder / "out" / name)
    told = []
    monkeypatch.setattr(method.drive, "certificate_of", lambda context: certificate())
    monkeypatch.setattr(questions, "write_questions", lambda *given, **named: told.append((*given, named)))
    recipe = recipe_of(folder)
    run = SimpleNamespace(root=folder / "out", meter=SimpleNamespace(count=None))
    context = SimpleNamespace(recipe=recipe, run=run, stage=None, shards=folder / "out" / "private" / "shards")
    assert method._ask(context, recipe.questions) == folder / "out" / "questions"
    ((material, settings, root, named),) = told
    assert material.texts["text"].to_pylist() == ["released text"]
    assert statement(Certificate.model_validate(certificate())).headline in material.origin
    assert (root, named["base"]) == (folder / "out" / "questions", recipe.model.base)
    assert settings.keep == recipe.questions.keep


WRONG = {
    "no such column": ({"questions.pairs.evidence": "passage"}, "questions.pairs.evidence is 'passage'"),
    "no such file": ({"questions.value.annotations": "nowhere.parquet"}, "questions.value.annotations is 'nowhere"),
    "nothing to learn from": ({"questions.pairs": None, "questions.judge": None}, "questions.keep.by is 'measured'"),
    "a share of nothing": ({"questions.keep.share": 0}, "questions.keep.share"),
    "another key": ({"questions.heldot": "asked"}, "did you mean 'questions.heldout'?"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_asked_is_refused_before_there_is_an_account(case, folder, tiny_base):
    changes, expected = WRONG[case]
    job = small_job(folder, tiny_base)
    options = [word for key, value in changes.items() for word in ("-o", f"{key}={json.dumps(value)}")]
    done = command(["run", str(job.recipe), "--out", str(folder / "out"), *options], folder)
    assert done.returncode == 2
    assert expected in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (folder / "ledger.db").exists()
    assert not (folder / "out").exists()


def test_the_method_asks_by_the_same_settings_as_the_command(folder):
    """So that a set which it has begun is finished by the command, and the other way round."""
    recipe = recipe_of(folder)
    asked = recipe.questions.asked.model_dump()
    assert "heldout" not in asked
    assert asked == {name: value for name, value in recipe.questions.model_dump().items() if name != "heldout"}
    assert method_of(recipe).name == "question_answering"
