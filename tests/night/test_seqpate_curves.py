"""The curves of what limits SeqPATE: each takes away one thing, and nothing where there is nothing to take."""

from pathlib import Path

import pytest

from rayprivacy.methods.registry import load_recipe

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("more", [[], ["teachers.kind=lora", "student.warm_steps=0"]])  # which start from the base
def test_curves_meet_where_there_is_nothing_to_take(job, monkeypatch, more):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    from seqpate_curves import curves
    from seqpate_table import bench

    recipe = load_recipe(job.recipe, ["privacy.epsilon=1e6", "votes.queries=30", "teachers.learning_rate=1e-12", *more])
    with bench(recipe, job.folder / "bench", "all") as (found, pool):
        rows = list(curves(found, pool, recipe, [10, 30]))
        warm = found.perplexity(found.warm)
    assert [(row["curve"], row.get("queries")) for row in rows] == [
        ("mean of teachers", None),
        *((curve, n) for n in (10, 30) for curve in ("votes without noise", "clipped without noise", "noisy student")),
    ]
    assert rows[0]["perplexity"] == pytest.approx(warm, rel=1e-4)
    for _, clipped, noisy in (rows[1:4], rows[4:7]):
        assert noisy["perplexity"] == pytest.approx(clipped["perplexity"], rel=1e-3)
