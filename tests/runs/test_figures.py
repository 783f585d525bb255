"""Whole runs with figures that may be published: shown everywhere, charged and drawn once, and nothing beside them."""

import json
import re
import signal

import pyarrow.parquet as pq
import pytest
from every_method import small_corpus, smallest_recipe
from methods_fixtures import generator_job
from rich.console import Console

import rayprivacy as rp
from rayprivacy.corpus.manifest import read_holdout, read_manifest, read_part

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
LITTLE_NOISE = ("privacy.epsilon=3000", "training.noise_multiplier=3.0", "corpus.holdout=0.5", "codes.histogram=false")
FIGURES = "figures={share: 0.5, topics: 3}"
PUBLIC = ("certificate.json", "certificate.md", "report-public.html", "README.md", "model/README.md", "run.log")
KILLED_AFTER_COMMIT = """
from rayprivacy.release.gate import Gate
real = Gate.release_figures
Gate.release_figures = lambda *given, **more: (real(*given, **more), os.kill(os.getpid(), signal.SIGKILL))
"""
KILLED_BEFORE_STORE = """
from rayprivacy.release.figure_vectors import FigureVectors
FigureVectors.draw = lambda *given: os.kill(os.getpid(), signal.SIGKILL)
"""


def _options(*options):
    return [part for option in options for part in ("-o", option)]


OPTIONS = _options(*LITTLE_NOISE, FIGURES, "evaluation.users=1000")


def _numbers(value):
    """All numbers in JSON values."""
    if isinstance(value, dict | list):
        return [n for each in (value.values() if isinstance(value, dict) else value) for n in _numbers(each)]
    return [value] if isinstance(value, float) else []


def _written(job, out):
    return {name: (job.folder / out / name).read_text() for name in PUBLIC}


@pytest.fixture(scope="module")
def generator(tmp_path_factory, tiny_base, local_ray):
    """A run that died before its figures were stored, and again behind their charge; then resumed."""
    job, resume = generator_job(tmp_path_factory.mktemp("figures"), tiny_base), []
    for patch in (KILLED_BEFORE_STORE, KILLED_AFTER_COMMIT):
        killed = job.killed("out", f"import os, signal\n{patch}", *OPTIONS, *resume)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert not (job.folder / "out" / "certificate.json").exists()
        resume = ["--resume"]
    done = job.run("out", *OPTIONS, "--resume")
    assert done.returncode == 0, done.stderr
    return job


def test_figures_are_near_the_internal_ones_and_only_they_are_shown(generator):
    assert generator.call("report", str(generator.folder / "out"), "--public").returncode == 0
    metrics, certificate = generator.metrics("out"), generator.certificate("out")
    shown, rows = metrics["figures"], {row["name"]: row for row in metrics["figures"]["rows"]}
    assert shown["releasable"] is True
    heldout, users = "held-out users", "users of training"
    counted = rows.pop(f"{heldout}, those with little text in part")["value"]
    assert 0 < counted <= len(set(_heldout(generator)["user"].to_pylist()))
    assert rows.pop(users)["value"] == _trained(generator)
    assert shown["event"] == {"kind": "self-composed", "count": 1, "event": _event(certificate)}
    internal, words = metrics["heldout"]["perplexity"], "copied: share of texts with 8 words of synthetic text"
    tests = ["perplexity of generator", "perplexity of generator over that of base"]
    tests += ["accuracy of a classifier trained on synthetic text"]
    compared = ["lengths: total variation", "topics: total variation", "recall", words]
    assert [*rows] == [*(f"{name}, {heldout}" for name in tests), *(f"{name}, {users}" for name in compared)]
    # The internal one weighs tokens alike, and this one users with as much text alike.
    own, over = (rows[f"{name}, {heldout}"]["value"] for name in tests[:2])
    assert own == pytest.approx(internal["generator"], rel=0.08)
    assert over == pytest.approx(internal["generator"] / internal["base"], rel=0.08)
    assert all(row["interval"][0] <= row["value"] <= row["interval"][1] for row in rows.values())
    synthetic = pq.read_table(generator.folder / "out" / "synthetic.parquet")["text"].to_pylist()
    assert rows[f"lengths: total variation, {users}"]["value"] == pytest.approx(_lengths(synthetic), abs=0.03)
    stages = {stage["name"]: stage["epsilon"] for stage in certificate["stages"]}
    assert 0 < stages["figures that may be shown"] < stages["all stages together"]
    written = _written(generator, "out")
    value = f"{own:.4g}"
    for name in PUBLIC[:5]:
        assert value in written[name], name
    private = {f"{n:.{digits}}" for n in internal.values() for digits in ("2f", "6g", "17g")}
    private |= {f"{n:.6g}" for n in _numbers(metrics["timings_s"]) if len(f"{n:.6g}") > 5}
    found = {name: private & {*re.findall(r"[\d.]+", text)} for name, text in written.items() if name != "run.log"}
    assert not any(found.values()), found
    assert not any("user-" in text for text in written.values())


def _heldout(job):
    return read_holdout(job.folder / "out" / "private" / "shards")


def _trained(job):
    shards = job.folder / "out" / "private" / "shards"
    return sum(len({*read_part(shards, part)["user"].to_pylist()}) for part in range(len(read_manifest(shards).parts)))


def _event(certificate):
    (sigma,) = (row["sigma_eff"] for row in certificate["events"] if row["kind"] == "gaussian" and row["sigma_eff"] < 1)
    return {"kind": "gaussian", "noise_multiplier": sigma}


def _lengths(synthetic):
    """All texts of the corpus have nine words each."""
    return 1 - sum(5 <= len(text.split()) < 10 for text in synthetic) / len(synthetic)


def test_figures_are_drawn_and_charged_once_however_often_a_run_dies(generator, check_undisturbed):
    assert generator.kinds() == ["create", *["reserve", "start", "commit"] * 4], "three chunks, figures"
    rows = generator.metrics("out")["figures"]
    assert generator.run("out", *OPTIONS, "--resume").returncode == 0
    assert generator.metrics("out")["figures"] == rows
    check_undisturbed(generator, "out", [], OPTIONS)
    changed = generator.run("out", *_options(*LITTLE_NOISE, "figures={share: 0.25}"), "--resume")
    assert changed.returncode == 2
    assert "holds a run of another recipe" in changed.stderr


@pytest.mark.parametrize(
    "name",
    ["seqpate", *(pytest.param(each, marks=pytest.mark.exhaustive) for each in ("question_answering", "two_stage"))],
)
def test_other_methods_release_them_too(name, tmp_path, tiny_base, local_ray):
    small_corpus(tmp_path, [f"user-{n}" for n in range(24)])
    data = smallest_recipe(name, tmp_path, tiny_base, tiny_base).model_dump(mode="json")
    data["corpus"]["holdout"], data["figures"] = 0.4, {"share": 0.5, "topics": 2, "of": ["perplexity", "lengths"]}
    rp.run(rp.load_recipe(data), tmp_path / "out", console=Console(quiet=True))
    metrics, certificate = (
        json.loads((tmp_path / "out" / f"{each}.json").read_text()) for each in ("metrics", "certificate")
    )
    shown = metrics["figures"]
    assert shown["releasable"] is True
    assert shown["event"]["event"]["noise_multiplier"] in [row["sigma_eff"] for row in certificate["events"]]
    names = [row["name"] for row in shown["rows"]] + shown["left_out"]
    assert names
    assert any(label.startswith("Released with noise") for label in certificate["figures"])
    rp.run(rp.load_recipe(data), tmp_path / "out", console=Console(quiet=True))
    again = [json.loads((tmp_path / "out" / f"{each}.json").read_text()) for each in ("metrics", "certificate")]
    assert again[0]["figures"] == shown
    assert again[1]["ledger_head"] == certificate["ledger_head"], "nothing was charged again"
    assert not re.search("nan|inf", json.dumps(shown["rows"]))
