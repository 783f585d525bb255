"""Benchmarks of knowledge: a model that learns with pauses, what is asked of it, and reviews of drugs."""

import json
from argparse import Namespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from benchmark_modules import benchmark

import rayprivacy as rp
from rayprivacy.knowledge.names import name_of

LIVES = {"dog": "house", "cat": "town", "cow": "field", "owl": "wood", "fox": "den"}
TEXTS = [f"the {name} lives in the {place} and likes it there" for name, place in LIVES.items()] * 4


def test_a_model_that_learns_with_pauses_is_the_one_that_learnt_without(tiny_backbone, tmp_path):
    learning = benchmark("knowledge_learning")
    how, stopped = learning.Learning(12, 1e-2, batch=2, row_tokens=32), tmp_path / "stopped.pt"
    model, figures = learning.learnt(tiny_backbone, TEXTS, how, tmp_path / "whole.pt", 5.0)
    assert figures["loss_held_out"] < figures["loss_first"]
    assert learning.learnt(tiny_backbone, TEXTS, how, stopped, 0.0) is None
    few = learning.Learning(5, 1e-2, batch=2, row_tokens=32)
    learning.learnt(tiny_backbone, TEXTS, few, stopped, 5.0)
    assert torch.load(stopped)["done"] == 5, "fewer steps are a part of the same training"
    again, other = learning.learnt(tiny_backbone, TEXTS, how, stopped, 5.0)
    assert {**other, "cpu_s": 0} == {**figures, "cpu_s": 0}
    with pytest.raises(SystemExit, match="has 12 steps, and 5 are asked for"):
        learning.learnt(tiny_backbone, TEXTS, few, stopped, 5.0)
    weights = again.state_dict()
    assert all(torch.equal(each, weights[name]) for name, each in model.state_dict().items())


def test_scores_are_means_over_questions_with_an_interval_over_facts():
    closed = benchmark("knowledge_closed")
    by_fact = {(f"creature {n}", "diet"): [1.0, 0.0] for n in range(30)}
    by_fact |= {(f"creature {n}", "home"): [float(n < 10)] * 2 for n in range(30)}
    found = closed.scores(by_fact)
    assert found["questions"] == 120
    assert found["by_attribute"] == {"diet": 0.5, "home": 0.333}
    low, high = found["interval"]
    assert low < found["exact_match"] == 0.4167 < high
    assert high - low == pytest.approx(2 * 1.96 * (0.1181 / 60) ** 0.5, rel=0.1), "of 60 facts, not of 120 questions"
    assert closed.answer_in(" Hollow Valley\nQuestion: what") == "Hollow Valley"


def test_rows_are_made_once_and_go_on_where_they_stopped(tiny_base, tmp_path, monkeypatch):
    closed = benchmark("knowledge_closed")
    monkeypatch.setattr(closed, "USERS", 60)
    monkeypatch.setattr(closed, "NAMES", 3)
    given = {"seed": 3, "epsilon": 8.0, "learning_rate": 1e-3, "steps": 2, "phrases": 1, "base": str(tiny_base)}
    rows, hurried = (closed.Rows(Namespace(work=tmp_path, minutes=minutes, **given)) for minutes in (1.0, 0.0))
    assert hurried.made("facts") is None
    (kept,) = tmp_path.glob("*.texts")
    texts = json.loads(kept.read_text())
    assert any(text.startswith("Question: What type is ") for text in texts), "and passages beside them"
    found = {row: rows.made(row) for row in ("base", "corpus", "facts")}
    assert json.loads(kept.read_text()) == texts, "what goes on reads the facts that were released before"
    assert found["facts"]["texts"] == len(texts)
    assert found["corpus"]["texts"] == 600
    assert all(row["questions"] == 24 and len(row["by_attribute"]) == 8 for row in found.values())
    assert [row["epsilon"] for row in found.values()] == [None, None, 8.0]
    monkeypatch.setattr(closed, "load_backbone", None)
    assert {row: hurried.made(row) for row in found} == found


@pytest.mark.parametrize("method", ["generator", "seqpate"])
def test_a_run_to_compare_with_is_public_but_for_the_posts(method, tmp_path):
    """Its warm start and its prompts name no creature of the corpus."""
    creatures, runs = benchmark("creatures"), benchmark("knowledge_runs")
    options = creatures.Options(users=20, names=5)
    creatures.prepare(options, tmp_path)
    (tmp_path / "prompts.txt").write_text("\n".join(runs.openings(tmp_path)))
    recipe = rp.load_recipe(runs.recipe_of(method, tmp_path, 3.0, tmp_path))
    assert recipe.method == method
    assert recipe.privacy.epsilon == 3.0
    assert recipe.corpus.source == str(tmp_path / "private.parquet")
    public = " ".join(pq.read_table(recipe.pretrain.source)["text"].to_pylist()).lower()
    names = {row["name"].lower() for row in creatures.tables(options)["truth"].to_pylist()}
    assert len(names) == 5
    assert not any(name in public for name in names)


def _review(number, drug, condition, effects, said="It helped."):
    parts = {"benefitsReview": said, "commentsReview": "", "sideEffectsReview": effects}
    return {"review_id": number, "urlDrugName": drug, "condition": condition, **parts}


def test_reviews_of_a_drug_agree_on_what_it_is_for(tmp_path):
    drugs = benchmark("drugs")
    reviews = [
        _review(n, "prozac", "Depression", "nausea" if n % 2 else "no nausea, but a headache") for n in range(40)
    ]
    reviews += [_review(n, "effexor-xr", "anxiety", "none", "My anxiety went away.") for n in range(100, 130)]
    pq.write_table(pa.Table.from_pylist(reviews), tmp_path / "reviews_druglib.parquet")
    bench = drugs.Bench(tmp_path, condition=True)
    assert bench.columns["prozac", "condition"] == {"depression": 40}
    assert bench.columns["prozac", "side effect"] == {"nausea": 40, "headache": 20}
    assert bench.reviews() == {4: 2, 9: 2, 20: 2, 40: 1, 60: 0}
    found = {(row["name"], row["attribute"]): row["answer"] for row in bench.released(8.0, False).to_pylist()}
    assert found["prozac", "condition"] == "depression"
    assert found[name_of("effexor-xr"), "condition"] == "anxiety"
    said = {"name": "prozac", "attribute": "condition"}
    assert bench.right({**said, "answer": "depression"})
    assert not bench.right({**said, "answer": "acne"})
    bench.drugs = ["prozac", name_of("effexor-xr")]  # of others a few have an answer by chance
    row = drugs.row(bench, 8.0, False, draws=2)
    assert row["condition"] == {"released": 2, "right": 1.0}
    without = drugs.Bench(tmp_path, condition=False).sums({"prozac", name_of("effexor-xr")})
    assert not [key for key in without if "depression" in key], "nobody wrote it"
    assert [count for key, count in without.items() if "anxiety" in key] == [30]


def test_the_corpus_of_the_packaged_recipe_is_written(tmp_path):
    drugs = benchmark("drugs")
    table = pa.Table.from_pylist([_review(7, "prozac", "depression", "nausea")])
    pq.write_table(table, tmp_path / "reviews_druglib.parquet")
    drugs.prepare(tmp_path, tmp_path / "out")
    said = ["I took Prozac for depression. It helped. ", "Side effects of Prozac: nausea"]
    rows = pq.read_table(tmp_path / "out" / "private.parquet").to_pylist()
    assert rows == [{"user": "reviewer 7", "text": text} for text in said]
