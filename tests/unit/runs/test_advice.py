"""Advice from the measured frontier: the nearest rows, best first, and a plain word where there are none."""

from pathlib import Path

import pytest
import yaml
from commands import command

import rayprivacy as rp
from rayprivacy.methods.registry import method_named
from rayprivacy.runs.advice import Evidence, advice, advice_for, measured_frontier

JOBS = Path(__file__).parents[3] / "jobs"


def _row(method, over_base, users=1000, epsilon=3.0, **given):
    shape = {"corpus": "talk", "settings": f"settings of {over_base}", "runs": 1, "mauve": None, "minutes": 10.0}
    return Evidence(method=method, over_base=over_base, users=users, epsilon=epsilon, **shape | given)


ROWS = [
    _row("seqpate", 0.7, mauve=0.96),
    _row("generator", 0.5, minutes=40.0),
    _row("generator", 0.6, minutes=None),
    _row("seqpate", 0.4, epsilon=5.0),
    _row("seqpate", 0.9, users=3500, corpus="other"),
]


def test_the_best_of_the_nearest_rows_is_advised_and_the_best_of_the_other_method_is_shown():
    said = advice(900, 3.2, None, ROWS)
    assert said.startswith("for about 900 users at epsilon 3.2, generator with settings of 0.5.")
    assert "on talk with 1,000 users at epsilon 3" in said
    assert "generator 0.50 (settings of 0.5; one run, 40 min), seqpate 0.70, MAUVE 0.96 (" in said
    assert "0.60" not in said, "one row of each method"
    assert "0.40" not in said, "a larger epsilon is no evidence where a nearer one was measured"
    assert "on talk with" in advice(3000, 3, None, ROWS), "a corpus where methods were compared says which to choose"
    alone = advice(3900, 3, None, [ROWS[-1], ROWS[3]])
    assert "on other with 3,500 users" in alone
    assert alone.endswith("no other method than seqpate was measured there")
    measured = advice(900, 3, None, [*ROWS, _row("generator", 0.55, mauve=0.9), _row("seqpate", 0.45)])
    assert "generator with settings of 0.55." in measured, "text was measured"
    assert "seqpate 0.70, MAUVE 0.96 (" in measured
    quick = advice(1000, 3, 30, ROWS)
    assert quick.startswith("for about 1,000 users at epsilon 3, seqpate with settings of 0.7.")
    assert "generator 0.50" not in quick, "it takes longer"
    assert "none is known to take at most 5 min" in advice(1000, 3, 5, ROWS)


@pytest.mark.parametrize(("users", "epsilon"), [(249, 3), (14_001, 3), (1000, 0.9), (1000, 10.1)])
def test_far_from_all_rows_it_says_so(users, epsilon):
    assert advice(users, epsilon, None, ROWS).startswith("no row of the measured frontier is near")


def test_the_packaged_rows_are_of_methods_that_there_are(tmp_path):
    rows = measured_frontier()
    assert {"seqpate", "generator"} <= {row.method for row in rows}
    for row in rows:
        method_named(row.method)
        assert 0 < row.over_base < 1.5
        assert row.mauve is None or 0 < row.mauve <= 1
    assert advice_for("santext", 1000, 3) is None
    shown = command(["plan", str(JOBS / "generator" / "europarl.yaml"), "--users", "2700"], tmp_path)
    assert "for about 2,700 users at epsilon 3, generator with the packaged recipe." in " ".join(shown.stdout.split())


def test_of_near_corpora_the_one_with_texts_as_long_is_advised():
    rows = [_row("generator", 0.6, users=4143, corpus="reviews"), _row("generator", 0.5, users=1315, corpus="chat")]
    assert "on chat with" in advice(4000, 3, None, rows, tokens=24)
    assert "on reviews with" in advice(4000, 3, None, rows, tokens=80)


def test_what_public_text_taught_stands_beside():
    row = _row("seqpate", 0.38, public_over_base=0.4, gap_closed=0.26)
    assert "seqpate 0.38, 0.40 before any private text, gap closed from there 0.26 (" in advice(1000, 3, None, [row])


def test_a_plan_counts_declared_users_and_remarks_what_contradicts_them(tmp_path):
    recipe = rp.load_recipe(JOBS / "generator" / "chat.yaml")
    few, many = (rp.plan(recipe, timed=True, users=users) for users in (1100, 4400))
    assert few.remark is None
    assert many.remark is not None
    assert "4,400 users draws about 440" in many.remark
    assert many.estimate.seconds["DP-SGD"] > 2 * few.estimate.seconds["DP-SGD"]
    assert "remark: " in str(many)


def test_the_recipe_of_ones_own_corpus_can_be_planned():
    page = (JOBS.parent / "docs" / "generator.md").read_text()
    shown = page.split("## Your own corpus")[1].split("```yaml\n")[1].split("```")[0]
    assert len(shown.splitlines()) == 9
    recipe = rp.load_recipe(yaml.safe_load(shown))
    assert rp.plan(recipe, users=4000).epsilon <= 8.0
    assert rp.plan(recipe).remark is None, "preset and users agree"


def test_declared_users_that_contradict_both_sizes_are_remarked():
    both = {"preset": "quick", "users": 4000, "sampling_rate": 0.1, "expected_batch": 110}
    remark = rp.plan(rp.load_recipe({"method": "generator", "training": both})).remark
    assert remark is not None
    assert "of 4,000 users draws about 400" in remark
