"""Estimates of time: from the plan and the machine alone, without torch, and better after a run."""

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from toy_method import CHUNKS

import rayprivacy as rp
from rayprivacy.core.files import user_cache
from rayprivacy.methods.registry import method_named, method_names, method_of, parse_recipe
from rayprivacy.runs import estimate as module
from rayprivacy.runs.directory import FOUND, Run
from rayprivacy.runs.estimate import Machine, estimated, keep_seconds, this_machine
from rayprivacy.runs.plan import UNKNOWN, Effort, Stage

JOBS = Path(__file__).parents[2] / "jobs"
CHAT = JOBS / "seqpate" / "chat.yaml"
MAIN_JOBS = ("chat", "smcalflow", "dialog", "snips", "squad", "creatures")  # the first of a method that has it
OURS = Machine("ours", cpus=4, flops=1e9, has_bfloat16=True)
OLD, START = replace(OURS, has_bfloat16=False), module.START_SECONDS
SPREAD = Effort("sample", 0.53 * 400e9, processes=100, threads=False)


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    """An empty cache, but for the noise that other tests have calibrated."""
    noise = user_cache() / "noise"
    noise.mkdir(parents=True, exist_ok=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    user_cache().mkdir(parents=True)
    (user_cache() / "noise").symlink_to(noise)


def _plan(*efforts):
    plan = method_named("toy").planned(parse_recipe({"method": "toy"}))
    return replace(plan, stages=(Stage("work", "public text", efforts=efforts),), users=10.0)


def _estimate(*efforts, dtype="float32", machine=OURS, **more):
    return estimated(parse_recipe({"method": "toy", "model": {"dtype": dtype}}), _plan(*efforts), machine, **more)


def test_topics_evaluation_and_comparison_took_what_is_estimated_where_they_were_measured():
    rows = json.loads((JOBS.parent / "benchmarks" / "results" / "quickstart.json").read_text())
    measured = [row for row in rows if "core_gflops" in row]
    assert len(measured) > 4
    for row in measured:
        machine = Machine("measured", row["cores"], row["core_gflops"] * 1e9, row["dtype"] == "bfloat16")
        recipe = rp.load_recipe(CHAT, {"model.dtype": row["dtype"]})
        guessed = estimated(recipe, method_of(recipe).planned(recipe), machine).seconds
        for stage in ("topics and lengths", "evaluation", "comparison with private text"):
            assert 0.5 < guessed[stage] / row["stages_s"][stage] < 2, (stage, row["isa"])


@pytest.mark.parametrize(
    ("effort", "given", "seconds"),
    [
        (Effort("product", 31e9), {}, 10),  # 4 threads: 1 + 3 * 0.7 of a core
        (Effort("product", 31e9), {"dtype": "bfloat16"}, 10),  # float32 whatever the model has
        (Effort("product", 31e9), {"nodes": 4}, 10),  # nor is the driver divided
        (Effort("encode", 31e9), {"dtype": "bfloat16"}, 10 / module.IN_BFLOAT16["encode"]),
        (Effort("encode", 31e9), {"dtype": "auto"}, 10 / module.IN_BFLOAT16["encode"]),
        (Effort("encode", 31e9), {"dtype": "auto", "machine": OLD}, 10 / 0.98),
        (Effort("train", 31e9), {"dtype": "bfloat16", "machine": OLD}, 10 / module.EMULATED["train"]),
        (SPREAD, {}, START + 100),
        (SPREAD, {"nodes": 4}, START + 25),
        (SPREAD, {"nodes": 1000}, START + 4),  # a process is not divided
        (Effort("product", 3.1e9, users=True), {}, 10),  # of the plan's own guess
        (Effort("product", 3.1e9, users=True), {"users": 30}, 30),
        (UNKNOWN, {}, None),
    ],
)
def test_work_is_divided_by_what_the_machine_does(effort, given, seconds):
    estimate = _estimate(effort, **given)
    assert estimate.seconds["work"] == (seconds if seconds is None else pytest.approx(seconds))
    assert estimate.users == ((given.get("users") or 10) if effort.users else None)


def test_stages_with_machines_of_their_own_are_counted_as_long_as_they_run():
    needs = {"stages": [{"stage": "work", "cpus": 14}]}  # 4 machines of 4 CPUs
    recipe = parse_recipe({"method": "toy", "resources": needs})
    estimate = estimated(recipe, _plan(SPREAD), OURS)
    assert estimate.machines_of("work") == 4
    assert estimate.seconds["work"] == pytest.approx(START + 25)
    assert estimate.node_hours * 3600 == pytest.approx(module.RAY_SECONDS + 4 * (START + 25))
    everywhere = _estimate(SPREAD, nodes=4)
    assert everywhere.node_hours * 3600 == pytest.approx(4 * everywhere.total)


@pytest.mark.parametrize("name", [name for name in method_names() if not name.startswith("toy")])
def test_every_stage_of_our_methods_declares_its_work(name):
    path = next(path for job in MAIN_JOBS if (path := JOBS / name / f"{job}.yaml").exists())
    few = ["sanitize.words=500"] if name == "santext" else []  # the table of more words takes long, once
    outline = rp.plan(rp.load_recipe(path, few), timed=True)
    assert outline.estimate is not None
    assert None not in outline.estimate.seconds.values()
    assert 15 < outline.estimate.total < 7 * 24 * 3600
    more = estimated(outline.recipe, outline.plan, this_machine(), nodes=8)
    assert more.total <= outline.estimate.total


@pytest.mark.parametrize("given", [{"nodes": 0}, {"users": 0}, {"minutes": 0.0}])
def test_a_guess_is_at_least_one(given):
    with pytest.raises(rp.ConfigError, match="is 0: give a number of at least 1"):
        rp.plan(rp.load_recipe(CHAT), **given)


@pytest.mark.exhaustive
def test_a_plan_with_times_imports_neither_torch_nor_ray():
    code = f"""import sys; from rayprivacy.cli import app
app(['plan', {str(CHAT)!r}, '--nodes', '2'], standalone_mode=False)
print([name for name in ('torch', 'transformers', 'ray', 'sklearn') if name in sys.modules])"""
    wide = os.environ | {"COLUMNS": "200"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=wide)
    assert done.stdout.endswith("[]\n")
    assert "2 such machines" in " ".join(done.stdout.split())


@pytest.mark.parametrize(("event", "kept"), [("progress", True), (FOUND, False)])
def test_what_another_run_did_says_nothing_of_its_time(tmp_path, event, kept):
    recipe = parse_recipe({"method": "toy", "model": {"dtype": "float32"}})
    run = Run.open(tmp_path / "out", recipe, resume=False, console=Console(file=io.StringIO()))
    for given in ({"event": "start"}, {"event": event}, {"event": "done", "seconds": 0.5}):
        run.log("work", **given)  # type: ignore[arg-type]
    keep_seconds(run, _plan(Effort("product", 31e9)))
    before = frozenset({"work"} if kept else ())
    assert _estimate(Effort("product", 31e9), machine=this_machine(), dtype="auto").measured == before


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_earlier_run_is_the_best_estimate(bench, monkeypatch):
    declared = (Effort("product", 31e9),)
    toy = method_named("toy").planned

    def planned(self, recipe):
        plan = toy(recipe)
        stages = [replace(stage, efforts=declared) if stage.name == CHUNKS else stage for stage in plan.stages]
        return replace(plan, stages=tuple(stages))

    monkeypatch.setattr(type(method_named("toy")), "planned", planned)

    def guess():
        return estimated(bench.load(), method_of(bench.load()).planned(bench.load()), this_machine())

    def run():
        return rp.run(bench.load(), bench.folder / "out", console=Console(file=io.StringIO())).path

    assert guess().measured == frozenset()
    bench.run("quiet")  # on a quiet console, as trials of a search are
    assert not (user_cache() / "pace").exists()
    took = [json.loads(line) for line in (run() / "run.log").read_text().splitlines()]
    (seconds,) = [line["seconds"] for line in took if line["stage"] == CHUNKS and line["event"] == "done"]
    assert guess().seconds[CHUNKS] == seconds
    assert guess().measured == {CHUNKS}
    (path,) = (user_cache() / "pace").iterdir()
    assert json.loads(path.read_text()).keys() == {"seconds", "flops"}
    declared = (Effort("product", 62e9),)
    assert guess().seconds[CHUNKS] == pytest.approx(2 * seconds), "twice the work"
    run()
    assert json.loads(path.read_text())["seconds"] == seconds, "a run that was resumed found its work done"
    declared = (Effort("product", 31e11),)
    assert guess().measured == frozenset(), "work of quite another size"
    for damage in ("", "[]", '{"seconds": -1, "flops": 31e11}', '{"seconds": 1, "flops": 0}'):
        path.write_text(damage)
        assert guess().measured == frozenset()
