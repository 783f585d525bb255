"""eDP-SGD: its recipe, and as its users run it: labelled rows in, a tagger and a certificate out, and no text."""

import json
import signal
from contextlib import chdir, redirect_stdout
from io import StringIO
from itertools import product
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from dying import dying
from small_jobs import job_of, sentence
from small_tagger import INTENTS, SLOTS, labelled

import rayprivacy as rp
from rayprivacy.accounting import published
from rayprivacy.accounting.accountant import figures
from rayprivacy.accounting.schedule import DecayingNoise, NoiseSchedule
from rayprivacy.methods.edp_sgd.plan import plan_run
from rayprivacy.methods.edp_sgd.recipe import EdpSgdRecipe
from rayprivacy.methods.registry import method_of
from rayprivacy.runs.checks import check_recipe

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

JOB = Path(__file__).parents[2] / "jobs" / "edp_sgd" / "snips.yaml"
MODELS = (
    {},
    {"intents": ["go"]},
    {"slots": ["go"]},
    {"intents": ["go"], "slots": ["go"]},
    {"layers": 2},
    {"crf": True},
)
FIRST, THIRD, LAST = "step-00000002", "progress 3", "step-00000006"  # steps 0 to 5, in chunks of 2
CHARGED = ["create", *["reserve", "start", "commit"] * 3]
MICRO = ("-o", "training.microbatches=16")
LSTM = ("-o", "model.base=bilstm", "-o", "model.layers=null", "-o", "training.max_tokens=60", *MICRO)
SECRET = "zebrafish"  # of the corpus alone: a word, an intent and a slot that are on no public list


@pytest.fixture
def job(tmp_path, tiny_bert, local_ray):
    """30 users with 4 requests each; some have an intent and a slot that are on no list, and too few labels."""
    rows = []
    for user, number in product(range(30), range(4)):
        text, odd = sentence(user, number), number == 3
        intent, slots = labelled(text)
        rows.append((f"person-{user}", f"{text} {SECRET}", SECRET if odd else intent, slots + f" B-{SECRET}" * odd))
    columns = dict(zip(("who", "said", "intent", "slots"), map(list, zip(*rows, strict=True)), strict=True))
    pq.write_table(pa.table(columns), tmp_path / "talk.parquet")
    training = {"sampling_rate": 0.4, "expected_batch": 10, "steps": 6, "chunk": 2, "max_tokens": 14}
    model = {"layers": 1, "crf": True, "intents": INTENTS, "slots": SLOTS}
    rest = {"privacy": {"epsilon": 8.0}, "evaluation": {"nonprivate_steps": 40}, "resources": {"cpus": 1}}
    return job_of(tmp_path, tiny_bert, method="edp_sgd", model=model, training=training, **rest)


def test_a_run_leaves_a_tagger_a_certificate_and_figures_and_tells_nothing(job):
    finished, out = job.run("out", *MICRO), job.folder / "out"
    assert finished.returncode == 0, finished.stderr
    assert job.kinds() == CHARGED
    certificate, metrics = job.certificate("out"), job.metrics("out")
    assert sum(row["count"] for row in certificate["events"]) == 6
    assert {row["q"] for row in certificate["events"]} == {0.4}
    ((label, epsilon),) = certificate["as_published"].items()
    assert label.startswith("eDP-SGD, as published")
    assert epsilon < certificate["stages"][0]["epsilon"] < 8.2, "by the rule of the account"
    assert any("twice the clipping norm" in assumption for assumption in certificate["assumptions"])
    assert "synthetic" not in metrics
    assert metrics["heldout"]["releasable"] is False
    rates = metrics["heldout"]["semantic_error_rate"]
    assert set(rates) == {"base", "edp_sgd", "nonprivate"}
    assert rates["nonprivate"] < rates["base"], "a few steps without noise learn the rule"
    assert "semantic error rate" in finished.stdout
    assert f"{rates['edp_sgd']:.1%}" in finished.stdout
    assert "perplexity" not in finished.stdout
    assert "Errors on held-out users" in (out / "report.html").read_text()
    assert job.call("report", str(out), "--public").returncode == 0
    assert "Errors on held-out users" not in (out / "report-public.html").read_text()
    # The code of the card runs, as it stands there.
    card, said = (out / "model" / "README.md").read_text(), StringIO()
    assert "A tagger: it says the intent of a text" in card
    assert "`synthetic.parquet`" not in card
    with chdir(out), redirect_stdout(said):
        exec("\n".join(line[4:] for line in card.splitlines() if line.startswith("    ")), {})
    intent, labels = said.getvalue().splitlines()
    assert intent in ("other", *INTENTS)
    assert len(yaml.safe_load(labels)) == 5
    result = rp.Result(out)
    assert result.model().config.num_hidden_layers == 1
    with pytest.raises(rp.ConfigError, match="holds no text"):
        result.texts()
    for path in out.rglob("*"):
        if path.is_file() and "private" not in path.relative_to(out).parts:
            told = path.read_bytes()
            assert not [each for each in (SECRET.encode(), b"person-") if each in told], path
    _check_audit(job, {"loss", "calibrated"})


def _check_audit(job, attacks, *options):
    assert job.call("audit", str(job.folder / "out"), *options).returncode == 0
    found = json.loads((job.folder / "out" / "audit.json").read_text())
    assert set(found["membership"]) == attacks
    assert found["overlap"] is None, "no text was released"
    assert found["sample"]["members"] > found["sample"]["others"] > 0
    assert not found["verdict"]["flagged"], "six noisy steps at epsilon 8"


def _causal(base):
    return "-o", f"model.base={base}", "-o", "adapter.kind=lora", "-o", "model.dtype=bfloat16"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "auto"])
def test_a_causal_base_is_tried_in_the_format_that_it_is_trained_in(dtype, tiny_base):
    keys = [
        f"model.base={tiny_base}",
        "model.layers=1",
        "model.trained=all",
        "adapter.kind=lora",
        f"model.dtype={dtype}",
    ]
    recipe = rp.load_recipe(JOB, keys)
    assert method_of(recipe).try_base(recipe).model.config.model_type == "llama"


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["users", "micro-batches", "causal", "lstm"])
def test_killed_at_three_points_it_ends_alike(job, tiny_base, kind, check_undisturbed):
    how = {"users": (), "micro-batches": MICRO, "causal": _causal(tiny_base), "lstm": LSTM}[kind]
    for _ in range(2):  # the job after its first chunk; then a worker in a step, and the job at the last save
        patch = dying(job=[FIRST, LAST], worker=[THIRD])
        assert job.killed("out", patch, "--resume", *how).returncode == -signal.SIGKILL
    assert len(list(job.folder.glob("died at *"))) == 3
    assert job.run("out", "--resume", *how).returncode == 0
    assert job.kinds() == CHARGED
    check_undisturbed(job, "out", ["model/model.safetensors"], how)


@pytest.mark.exhaustive
def test_shadow_models_are_taggers_of_halves_of_the_users(job):
    assert job.run("out").returncode == 0
    attacks = {"loss", "calibrated", "LiRA", "LiRA, offline", "shadow attack"}
    _check_audit(job, attacks, "--shadows", "4")
    assert len(list((job.folder / "out").glob("private/shadows/*/*/run/model"))) == 4


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("kind", "options"),
    [(kind, zero) for kind in ("encoder", "causal") for zero in ("zero=2", "zero=3", "zero=null")]
    + [("lstm", "zero=2")],
)
def test_two_workers_pay_the_same(job, tiny_base, kind, options):
    pytest.importorskip("deepspeed")
    how = {"encoder": ("-o", "training.layer_scale={from: weights}"), "causal": _causal(tiny_base), "lstm": LSTM}[kind]
    falling = ("-o", "training.noise_schedule={kind: linear, tau: 0.1, steps_per_epoch: 2}")
    assert job.run("out", "-o", "resources.workers=2", "-o", f"resources.{options}", *falling, *how).returncode == 0
    assert job.kinds() == CHARGED
    intent, labels = rp.Tagger.load(job.folder / "out" / "model")("you like soup")
    assert intent in ("other", *INTENTS)
    assert len(labels) == 3


def _parsed(**blocks):
    return EdpSgdRecipe.parse({"method": "edp_sgd", **blocks})


@pytest.mark.parametrize(
    ("blocks", "said"),
    [
        ({"audit": {}}, "'audit' is set and method 'edp_sgd' releases a tagger, in whose losses no secret"),
        ({"evaluation": {"compare": 500}}, "evaluation.compare is 500 and method 'edp_sgd' releases no text: set"),
    ],
)
def test_attacks_and_comparisons_are_refused_before_anything_is_spent(blocks, said):
    recipe = _parsed(**blocks)
    with pytest.raises(rp.ConfigError, match=said):
        check_recipe(method_of(recipe), recipe, method_of(recipe).planned(recipe))


def test_a_search_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "public.txt").write_text("a line\n")
    (tmp_path / "space.yaml").write_text(
        f"recipe: {JOB}\ncharging: pay_for_all\ntrials: 2\n"
        "budget: {account: search, epsilon: 8.0}\nfixed: {privacy: {epsilon: 2.0, composition: rdp}}\n"
        f"metric: {{name: public_perplexity, text: {tmp_path / 'public.txt'}}}\n"
        "search: {training.clipping_norm: {choice: [0.1, 1.0]}}\n"
    )
    with pytest.raises(rp.ConfigError, match="losses searches cannot read yet: give values of your own"):
        rp.tune(tmp_path / "space.yaml", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_lists_and_the_kind_of_tagger_are_part_of_the_release():
    recipes = [*(_parsed(model=model) for model in MODELS), _parsed(adapter={"kind": "lora"})]
    assert len({recipe.release_id for recipe in recipes}) == len(recipes)


def test_the_papers_figure_stands_beside_ours_only_where_micro_batches_are_clipped():
    training = {"sampling_rate": 0.02, "steps": 40, "chunk": 10, "noise_multiplier": 1.5}
    assert not plan_run(_parsed(training=training)).as_published
    micro = training | {"microbatches": 16, "noise_schedule": {"kind": "linear", "tau": 0.1, "steps_per_epoch": 10}}
    plan = plan_run(_parsed(training=micro))
    noise = DecayingNoise(NoiseSchedule("linear", 0.1, 10), 40, workers=16, q=0.02)
    printed = 1.5 * 2 * 4  # z with which z / (2 sqrt N) is ours
    assert noise.effective(printed) == 1.5
    stated = published.edpsgd(noise.as_printed(printed), 1e-6)
    assert plan.as_published == {stated.label: stated.epsilon}
    assert len(plan.stages[0].charges) == 4


def test_the_job_charges_what_it_asks_for():
    plan = rp.plan(rp.load_recipe(JOB)).plan
    assert figures([(event, 1) for event in plan.charges], 1e-6).epsilon == pytest.approx(8.0, abs=0.02)
    assert not plan.as_published
