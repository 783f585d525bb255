"""What the report shows of a question set, and what is measured on questions of held-out users."""

import json
import random
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_questions import passage, small_recipe, write_public

import rayprivacy as rp
from rayprivacy.methods.question_answering import exhibits, heldout
from rayprivacy.questions.passages import sentences
from rayprivacy.questions.table import ASKED, finished
from rayprivacy.runs.method import Chart

pytest.importorskip("bm25s")
HELD = 8  # users, with a text each
QUESTIONS = ("all questions", "kept questions")
READERS = ["words in common", "public pairs", *(f"public pairs and {each}" for each in QUESTIONS)]


def asked_of(text, question, answer, number):
    spans = sentences(text)
    start = text.index(answer)
    begin, end = next(span for span in spans if span[0] <= start < span[1])
    told = {"document": number, "passage": f"p{number}-0", "title": "", "context": text, "question": question}
    found = {"answers": {"text": [answer], "answer_start": [start]}, "answer_kind": "evidence"}
    return told | found | {"evidence": text[begin:end], "evidence_start": begin, "phrase": "what do", "type": None}


def recipe_without_pairs(run):
    asked = run.recipe.questions.model_copy(update={"pairs": None})
    return run.recipe.model_copy(update={"questions": asked})


@pytest.fixture
def run(tmp_path, tiny_base, monkeypatch):
    """A run whose set has forty questions with values, the upper half of which is kept, and held-out users."""
    write_public(tmp_path)
    dice = random.Random(5)
    rows = [
        asked_of(text, each["question"], each["answer"], number)
        for number in range(14)
        for text, found in [passage(dice)]
        for each in found
    ]
    asked = pa.Table.from_pylist(rows[:40], ASKED)
    values = np.linspace(0, 1, 40)
    values[:4] = np.nan
    labels = ["attributable" if number % 2 else "extrapolatory" for number in range(40)]
    found = {"value": values, "kept": np.arange(40) >= 20, "attribution": labels}
    folder = tmp_path / "questions"
    folder.mkdir()
    pq.write_table(finished(asked, found, 0, "made of a test"), folder / "questions.parquet")
    counts = {"passages": 14, "found_again": 31, "questions": 40, "kept": 20}
    (folder / "stages.json").write_text(json.dumps({"counts": counts, "kept_by": "value"}))
    texts = [passage(dice) for _ in range(HELD)]
    held = [{"user": f"u{n}", "text": text, "asked": json.dumps(own)} for n, (text, own) in enumerate(texts)]
    monkeypatch.setattr(heldout.heldout, "heldout_rows", lambda run: held)
    recipe = rp.load_recipe(small_recipe(tmp_path, tiny_base))
    return SimpleNamespace(root=tmp_path, recipe=recipe, held=held)


def test_exhibits_say_what_came_of_passages_and_are_all_public(run):
    found = exhibits.of_set(run.root / "questions", run.recipe.questions)
    assert not any(each.internal for each in found)
    chart, funnel, types, drawn = found
    assert isinstance(chart, Chart)
    ((points),) = chart.series.values()
    assert [kept for _, kept in points] == sorted(kept for _, kept in points), "higher values are kept"
    assert points[0][1] == 0
    assert points[-1][1] == 1
    counted = [("passages", "14"), ("found again", "31"), ("questions", "40"), ("kept", "20")]
    assert funnel.rows == [*counted, ("kept by", "value")]
    assert {kind for kind, *_ in types.rows[:-1]} == {"what", "where"}
    assert types.rows[-1][0].startswith("KL")
    assert 0 <= float(types.rows[-1][1]) < 50
    assert len(drawn.rows) == exhibits.SHOWN
    assert {row[2] for row in drawn.rows} == {"attributable", "extrapolatory"}
    assert all(len(row) == len(drawn.columns) for row in drawn.rows)


def test_a_set_without_pairs_and_values_has_neither_chart_nor_types(run):
    folder = run.root / "questions"
    table = pq.read_table(folder / "questions.parquet")
    place = table.column_names.index("value")
    pq.write_table(table.set_column(place, "value", pa.nulls(40, pa.float64())), folder / "questions.parquet")
    without = recipe_without_pairs(run).questions
    assert [each.columns[0] for each in exhibits.of_set(folder, without)] == ["what", "question"]


def test_figures_are_of_held_out_users_and_intervals_over_users(run, tiny_backbone):
    found = heldout.question_metrics(run, tiny_backbone)
    assert (found["releasable"], found["questions"]) == (False, 3 * HELD)
    assert [*found["evidence"]] == READERS
    assert [*found["retrieval"]] == ["among the best 1 of 8", "among the best 5 of 8"]
    for each in (*found["evidence"].values(), *found["retrieval"].values()):
        low, high = each["interval"]
        assert 0 <= low <= each["value"] <= high <= 1
    assert found["evidence"]["words in common"]["value"] > 0.5
    first, fifth = (each["value"] for each in found["retrieval"].values())
    assert 1 / HELD < first < fifth
    tables = heldout.tables(found)
    assert [len(table.rows) for table in tables] == [4, 2]
    assert all(table.internal for table in tables)
    run.recipe = recipe_without_pairs(run)
    assert [*heldout.question_metrics(run, tiny_backbone)["evidence"]] == ["words in common", *QUESTIONS]
    run.held[:] = run.held[:1] * 5  # five texts of one user
    alone = heldout.question_metrics(run, tiny_backbone)
    assert all(each["interval"] is None for each in alone["evidence"].values())


def test_held_out_users_without_questions_or_with_cut_texts(run, tiny_backbone):
    for row in run.held:
        row["text"] = row["text"][:10]  # the answers are gone
    found = heldout.question_metrics(run, tiny_backbone)
    assert found["evidence"] == {}
    assert found["retrieval"]
    for row, cell in zip(run.held, [None, "", "[]", *["[]"] * HELD], strict=False):
        row["asked"] = cell
    assert "questions" not in heldout.question_metrics(run, tiny_backbone)
    assert heldout.tables(heldout.question_metrics(run, tiny_backbone)) == []


CELLS = ("{", "7", '["a"]', '[{"question": "q"}]', '[{"question": "zqxjvk", "answer": 3}]')


@pytest.mark.parametrize("cell", CELLS)
def test_a_cell_that_is_something_else_is_refused_without_its_text(cell, run):
    run.held[3]["asked"] = cell
    with pytest.raises(rp.ConfigError, match="is 'asked', and a cell of that column is no JSON list") as refused:
        heldout.real_questions(run)
    assert "zqxjvk" not in str(refused.value)
