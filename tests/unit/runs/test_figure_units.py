"""What users hand in for figures that may be published: each by themselves, in the cells of their half alone."""

import math
import shutil
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from small_jobs import small_privacy

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.files import private_directory
from rayprivacy.core.keys import Key
from rayprivacy.core.private import digest_json
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.layout import HOLDOUT
from rayprivacy.corpus.manifest import write_part
from rayprivacy.dpsgd.units import Reading, no_context
from rayprivacy.evaluation.settings import FiguresConfig
from rayprivacy.evaluation.shown import Perplexity
from rayprivacy.generation.codes import Codes, CodesConfig
from rayprivacy.ledger.store import Ledger
from rayprivacy.methods.registry import method_named, parse_recipe
from rayprivacy.models.backbone import load_backbone
from rayprivacy.release.figure_vectors import FigureVectors
from rayprivacy.release.votes import SCALE
from rayprivacy.runs import checks, figures
from rayprivacy.runs.context import RunContext
from rayprivacy.runs.directory import Run
from rayprivacy.runs.figures_plan import FIGURES, RECORDS
from rayprivacy.runs.method import Output
from rayprivacy.tuning import trials

SYNTHETIC = ["my cat sat on the mat", "we like soup with bread today", "you go home now", "the dog ate my soup"] * 3
LABELS = ["pets", "food", "other", "pets"] * 3
SHOWN: Any = SimpleNamespace(show=lambda *_: None)
ANN = [("ann", "my cat sat on the mat", "pets"), ("ann", "soup", "food")]
OTHERS = [*ANN, ("bob", "we like soup with bread today", "food"), ("cyd", "home", None)]
ADVERSARIES = {
    "who wrote everything": [("eve", text, "food") for text in SYNTHETIC * 40],
    "who wrote nothing": [("eve", "", "")],
    "who wrote no words": [("eve", "\u0000\ud7ff\u202e\u3000", "pets")],
    "who wrote without end": [("eve", "soup " * 3000, "\u202e on no list")],
    "who stands first": [("aaa", "bread " * 60, None), ("aaa", "mat", "pets")],
}


def _loss(rows):
    """Of a model that loses on one user what their label says."""
    return [(float(rows[0]["label"] or 0) if rows[0]["user"] == "loss" else 3.0, 1.0)]


@pytest.fixture(scope="module")
def halves(tiny_backbone):
    reading = Reading(PrivacyUnit.USER, (), no_context, 12)
    codes = Codes(CodesConfig(values={"label": ("pets", "food")}), ("label",))
    models = {"own": tiny_backbone, "base": tiny_backbone}
    tests = [
        figures.Group((Perplexity("perplexity of a model that is told", 1.0, 0.0, 8.0),), "", _loss),
        figures.of_models(models, reading, [{"text": text} for text in SYNTHETIC]),
        figures.of_labels(codes, pa.table({"text": SYNTHETIC, "label": LABELS})),
    ]
    return figures.halves_of(tests, [figures.of_texts(SYNTHETIC, FiguresConfig(topics=3))], "user")


def _write(rows, part, folder):
    """Write rows of user, text and label as those of a part, or of held-out users."""
    kinds = {"shard": pa.int32(), "user": pa.string(), "record": pa.int32(), "text": pa.large_string()}
    kinds["label"] = pa.string()
    made = [
        (part, user, at, text, label) for at, (user, text, label) in enumerate(sorted(rows, key=lambda row: row[0]))
    ]
    columns = zip(*made, strict=True) if made else [[] for _ in kinds]
    arrays = [pa.array(list(column), kind) for column, kind in zip(columns, kinds.values(), strict=True)]
    write_part(pa.table(arrays, schema=pa.schema(kinds)), part, Key.for_tests(), folder)


def _mechanism(halves, unit=PrivacyUnit.USER):
    return FigureVectors(sum(half.layout.cells for half in halves), 3.0, unit)


@pytest.fixture
def sums_of(tmp_path, halves):
    """The sums of some held-out rows, and of those of users of training, as a run adds them up."""

    def of(heldout, learnt=(), unit=PrivacyUnit.USER):
        mechanism, total = _mechanism(halves, unit), 0
        for part, rows, half in ((HOLDOUT, heldout, halves[0]), (0, learnt, halves[1])):
            _write(rows, part, tmp_path)
            total += figures.part_sums((tmp_path, half, mechanism), part)
        return mechanism.check(total)

    return of


def _squared(moved):
    return sum(step * step for step in moved.tolist())


@pytest.mark.parametrize("more", ADVERSARIES.values(), ids=ADVERSARIES)
def test_one_more_user_adds_their_own_bounded_vector_and_changes_nobody_elses(sums_of, halves, more):
    before, cells = sums_of(OTHERS, OTHERS), halves[0].layout.cells
    for number, added in enumerate(((OTHERS + more, OTHERS), (OTHERS, OTHERS + more))):  # held out, or not
        moved = sums_of(*added) - before
        assert np.array_equal(moved, sums_of(*((more, ()) if number == 0 else ((), more))))
        assert 0 < _squared(moved) <= SCALE**2
        other_half = moved[cells:] if number == 0 else moved[:cells]
        assert not other_half.any(), "in the cells of their half alone"


@pytest.mark.parametrize("loss", ["nan", "inf", "-inf", "1e300", "-1e300"])
def test_no_loss_moves_the_sums_further(sums_of, loss):
    moved = sums_of([*OTHERS, ("loss", "soup", loss)]) - sums_of(OTHERS)
    assert _squared(moved) <= SCALE**2
    assert bool(moved[1] < 0) is (loss == "-1e300"), "what is no number counts as the bound"


def test_bounds_are_those_that_the_run_began_with(tmp_path):
    """On another machine losses differ in their last digits, and other bounds would be another charge."""
    kept = tmp_path / "bounds.json"
    began = figures._centres(kept, "text", lambda: [(34.9, 10.0), (-2.51, 10.0)])
    assert began == [3.5, -0.3]
    assert figures._centres(kept, "text", lambda: [(34.4, 10.0), (-2.49, 10.0)]) == began
    assert figures._centres(kept, "other text", lambda: [(34.4, 10.0)]) == [3.4]
    assert figures._centres(kept, "diverged", lambda: [(math.nan, 10.0), (math.inf, 10.0)]) == [0.0, 0.0]


def test_users_count_once_and_records_each(sums_of, halves):
    first = halves[0].layout.cells
    once = sums_of((), ANN)[first]
    assert sums_of((), [*ANN, *ANN[:1] * 5])[first] == once
    assert sums_of((), OTHERS)[first] == 3 * once
    assert sums_of((), OTHERS, PrivacyUnit.RECORD)[first] == 4 * once
    assert not sums_of((), ()).any()


def test_of_a_user_the_first_texts_count(sums_of):
    texts = [("ann", SYNTHETIC[number % 12], "food") for number in range(RECORDS)]
    assert np.array_equal(sums_of(texts, texts), sums_of([*texts, *texts[:1] * 9], [*texts, ("ann", "soup", None)]))


def test_values_are_those_of_the_unit(halves):
    (_, model, labels), (texts,) = (half.groups for half in halves)
    rows = [{"user": "ann", "text": text, "label": label} for text, label in zip(SYNTHETIC, LABELS, strict=True)]
    lengths, topics, recalled, copied = texts.values(rows)
    assert (lengths.sum(), topics.sum(), recalled) == (12, 12, 1.0), "synthetic text is its own neighbour"
    assert copied == 0.0, "no text has eight words"
    long = "my cat sat on the mat we like soup with bread"
    copied = figures.of_texts([long], FiguresConfig(of=("copied",)))
    assert copied.values([{"text": f"so {long} now"}, {"text": "soup " * 20}]) == [0.5]
    assert labels.values(rows) == [1.0]
    assert labels.values([{"text": "soup", "label": "none of the list"}]) in ([0.0], [1.0])
    (own, tokens), (over, _) = model.values(rows[:1])
    assert 0 < own / tokens < math.log(400) + 3
    assert over == 0, "the base is the same model"
    assert model.values(rows[:2])[0] == pytest.approx(np.array(model.values(rows[:2] * 3)[0]) / 3, rel=1e-5)


def test_bounds_of_losses_are_made_of_released_text_and_models_alone(halves, tiny_backbone):
    """They lie around what models lose on synthetic text, and no private row has a say in them."""
    loss, over = halves[0].groups[1].parts
    nats, tokens = halves[0].groups[1].values([{"text": text} for text in SYNTHETIC])[0]
    assert (loss.least + figures.BELOW, loss.most - figures.ABOVE) == pytest.approx((nats / tokens,) * 2, abs=0.051)
    assert (over.least, over.most) == (-figures.APART, figures.APART)


def test_neighbours_differ_in_the_noisy_numbers_and_in_nothing_else_that_is_public(tmp_path, tiny_base, monkeypatch):
    """A corpus, and one with one more user, from the shards to the figures, under one model and one text."""
    found, files, asked, more = [], [], [], ADVERSARIES["who wrote everything"]
    monkeypatch.setattr(figures, "on_numbers", lambda work, job, parts, *_: ((part, work(job, part)) for part in parts))
    for number, (heldout, learnt) in enumerate(((OTHERS, OTHERS), (OTHERS + more, OTHERS), (OTHERS, OTHERS + more))):
        context = _context(tmp_path, number, tiny_base, SYNTHETIC)
        _write(heldout, HOLDOUT, context.run.private("shards"))
        for part in range(context.plan.parts):
            _write(learnt if part == 3 else [], part, context.run.private("shards"))
        halves = figures._halves(context, method_named("generator"), Output(), context.recipe.figures)
        asked.append([half.question for half in halves])
        found.append(figures.figures_of(context, method_named("generator"), Output()))
        root = context.run.root
        files.append({str(path.relative_to(root)) for path in root.rglob("*") if "private" not in path.parts})
    numbers = [[(row.pop("value"), row.pop("interval")) for row in each["rows"]] for each in found]
    assert found[0] == found[1] == found[2]
    assert asked[0] == asked[1] == asked[2], "bounds are among what is asked"
    names = [row["name"] for row in found[0]["rows"]]
    learnt = ["users of training" in name for name in names]
    assert sum(learnt) == 5
    assert [each[learnt.index(True)][0] for each in numbers] == [3, 3, 4], "the noise is next to nothing"
    for ours, theirs in pairwise(numbers):
        assert all(one != other for one, other in zip(ours, theirs, strict=True)), "and there even in intervals"
    assert files[0] == files[1] == files[2]


def test_a_run_that_wrote_no_text_ends_without_figures_and_says_so(tmp_path, tiny_base, monkeypatch):
    """A model of much noise may write nothing that is kept; what was trained is paid for and stays."""
    monkeypatch.setattr(figures, "on_numbers", lambda work, job, parts, *_: ((part, work(job, part)) for part in parts))
    context = _context(tmp_path, 0, tiny_base, [])
    for part in (HOLDOUT, *range(context.plan.parts)):
        _write(OTHERS if part == HOLDOUT else [], part, context.run.private("shards"))
    found = figures.figures_of(context, method_named("generator"), Output())
    assert [row["name"] for row in found["rows"]] == ["held-out users"], "their number alone"
    assert "Nothing measures" in " ".join(found["left_out"])


def _context(tmp_path, number, tiny_base, texts):
    """A run of the generator whose model and text are written, and whose shards are not."""
    privacy = small_privacy(tmp_path) | {"epsilon": 3000.0}
    recipe = _recipe(privacy=privacy, model={"base": str(tiny_base), "dtype": "float32"}, figures={"share": 0.5})
    plan = method_named("generator").planned(recipe)
    ledger = Ledger.open(f"sqlite:///{tmp_path}/{number}.db")
    ledger.ensure_account("talk", PrivacyUnit.USER, plan.protection.relation, recipe.privacy.budget, "zcdp")
    run = Run.open(tmp_path / f"out-{number}", recipe, resume=False, console=Console(quiet=True))
    context = RunContext(run, plan, lambda: ledger, Key.for_tests(), SHOWN)
    context.corpus = SimpleNamespace(corpus_digest=lambda _: digest_json(number))  # type: ignore[assignment]
    context.base = load_backbone(recipe.model)
    shutil.copytree(tiny_base, run.root / "model")
    pq.write_table(pa.table({"text": pa.array(texts, pa.string())}), run.root / "synthetic.parquet")
    private_directory(run.private("shards"))
    return context


def _recipe(method="generator", **blocks):
    training = {"training": {"noise_multiplier": 3.0}} if method in ("generator", "edp_sgd", "domain_private") else {}
    return parse_recipe({"method": method, **training, "figures": {}} | blocks)


def test_the_plan_pays_a_share_of_the_budget_and_the_rest_fits_beside_it():
    votes = {"votes": {"queries": 40, "clip": 0.2}}
    with_them, without = _recipe("seqpate", **votes), parse_recipe({"method": "seqpate", **votes})
    plan, other = (method_named("seqpate").planned(recipe) for recipe in (with_them, without))
    ours, theirs = (each.stage("release gate").mechanism.sigma for each in (plan, other))
    assert plan.stage(FIGURES).mechanism.sigma ** -2 == pytest.approx(0.05 * 40 * theirs**-2, rel=1e-3)
    assert ours / theirs == pytest.approx(1 / math.sqrt(0.95), rel=1e-3)
    assert any("Noisy sums over all users" in said for said in plan.assumptions)
    assert with_them.release_id != without.release_id


@pytest.mark.parametrize("method", ["santext", "edp_sgd", "domain_private"])
def test_a_method_without_such_figures_refuses_the_key(method):
    recipe = _recipe(method, **({"sanitize": {"words": 500}} if method == "santext" else {}))
    with pytest.raises(ConfigError, match=rf"^'figures' is set and method '{method}' has no figures .*: remove it\.$"):
        method_named(method).planned(recipe)


def test_figures_want_held_out_users_and_no_phrases():
    recipe = _recipe(corpus={"holdout": 0.0})
    plan = method_named("generator").planned(recipe)
    with pytest.raises(ConfigError, match=r"^corpus\.holdout is 0, and 'figures' are measured on held-out users"):
        checks.check_recipe(method_named("generator"), recipe, plan)
    checks.check_recipe(method_named("generator"), recipe, plan, measured=False)  # of a shadow model
    with pytest.raises(ConfigError, match=r"privacy\.unit is 'phrase', and 'figures' are of users: remove 'figures'"):
        _recipe("seqpate", privacy={"unit": "phrase"}, corpus={"phrases": "list.txt", "max_shards_per_phrase": 2})


def test_a_search_takes_no_figures(tmp_path):
    (tmp_path / "recipe.yaml").write_text("method: generator\nfigures: {}\n")
    space: Any = SimpleNamespace(recipe=str(tmp_path / "recipe.yaml"), fixed={})
    with pytest.raises(ConfigError, match=r"^'recipe' names a recipe with a 'figures' block.*: take the block out"):
        trials._recipe(space)
