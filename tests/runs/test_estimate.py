"""Estimates of time: from the plan and the machine alone, without torch, and better after a run."""

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from toy_bench import QUIET, Bench
from toy_method import CHUNKS

import rayprivacy as rp
from rayprivacy.core.files import user_cache
from rayprivacy.generation.engines import ONNX
from rayprivacy.methods.registry import method_named, method_names, method_of, parse_recipe
from rayprivacy.runs import machine, pace
from rayprivacy.runs.directory import FOUND, Run
from rayprivacy.runs.effort import Effort
from rayprivacy.runs.estimate import RAY_SECONDS, START_SECONDS, estimated
from rayprivacy.runs.machine import Machine, machine_name, this_machine
from rayprivacy.runs.plan import Plan, Stage

ROOT = Path(__file__).parents[2]
MAIN_JOBS = ("chat", "smcalflow", "dialog", "snips")  # the first of a method that has it
FLOPS = {"product": 1e9, "batched": 1e9, "sample": 2e9} | {
    f"{kernel} {dtype}": speed
    for kernel in ("encode", "decode", "train")
    for dtype, speed in (("float32", 1e9), ("bfloat16", 4e9))
}
OURS = Machine(4, FLOPS)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, with a machine that was measured, and the noise that other tests have calibrated."""
    noise = user_cache() / "noise"
    noise.mkdir(parents=True, exist_ok=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = user_cache() / "machine"
    folder.mkdir(parents=True)
    (user_cache() / "noise").symlink_to(noise)
    (folder / f"{machine_name()}.json").write_text(json.dumps({"cpus": 4, "flops": FLOPS}))
    return folder


def _plan(*efforts: Effort) -> Plan:
    plan = method_named("toy").planned(parse_recipe({"method": "toy"}))
    return replace(plan, stages=(Stage("work", "public text", efforts=efforts),), users=10.0)


def _seconds(*efforts: Effort, dtype: str = "float32", **more: Any) -> float | None:
    recipe = parse_recipe({"method": "toy", "model": {"dtype": dtype}})
    return estimated(recipe, _plan(*efforts), OURS, **more).seconds["work"]


def test_work_is_divided_by_what_the_machine_does() -> None:
    assert _seconds(Effort("product", 31e9)) == pytest.approx(10)  # 4 threads: 1 + 3 * 0.7 of a core
    assert _seconds(Effort("encode", 31e9), dtype="bfloat16") == pytest.approx(2.5)
    assert _seconds(Effort("product", 31e9), dtype="bfloat16") == pytest.approx(10), "float32 whatever the model has"
    spread = Effort("encode", 400e9, processes=100, threads=False)
    assert _seconds(spread) == pytest.approx(START_SECONDS + 100)
    assert _seconds(spread, nodes=4) == pytest.approx(START_SECONDS + 25)
    assert _seconds(spread, nodes=1000) == pytest.approx(START_SECONDS + 4), "a process is not divided"
    assert _seconds(Effort("product", 31e9), nodes=4) == pytest.approx(10), "nor is the driver"


def test_stages_with_machines_of_their_own_are_counted_as_long_as_they_run() -> None:
    spread = Effort("encode", 400e9, processes=100, threads=False)
    recipe = parse_recipe(
        {"method": "toy", "resources": {"stages": [{"stage": "work", "cpus": 14}]}}
    )  # 4 machines of 4 CPUs
    recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"dtype": "float32"})})
    estimate = estimated(recipe, _plan(spread), OURS)
    assert estimate.machines_of("work") == 4
    assert estimate.seconds["work"] == pytest.approx(START_SECONDS + 25)
    assert estimate.node_hours * 3600 == pytest.approx(RAY_SECONDS + 4 * (START_SECONDS + 25))
    everywhere = estimated(parse_recipe({"method": "toy"}), _plan(spread), OURS, nodes=4)
    assert everywhere.node_hours * 3600 == pytest.approx(4 * everywhere.total)


def test_a_plan_names_node_hours_where_there_are_nodes() -> None:
    lengths = {"resources": {"stages": [{"stage": "teachers", "cpus": 12}]}}
    recipe = rp.load_recipe(ROOT / "jobs" / "seqpate" / "chat.yaml", lengths)
    shown = " ".join(str(rp.plan(recipe, timed=True, console=QUIET)).split())
    assert " on 3 " in shown
    assert "node-hours" in shown
    alone = rp.plan(rp.load_recipe(ROOT / "jobs" / "seqpate" / "chat.yaml"), timed=True, console=QUIET)
    assert "node-hours" not in " ".join(str(alone).split())


def test_what_grows_with_the_corpus_follows_the_public_guess() -> None:
    each = Effort("product", 3.1e9, users=True)
    assert _seconds(each) == pytest.approx(10)
    assert _seconds(each, users=30) == pytest.approx(30)
    estimate = estimated(parse_recipe({"method": "toy"}), _plan(each), OURS, users=30)
    assert estimate.users == 30
    assert estimated(parse_recipe({"method": "toy"}), _plan(), OURS).users is None
    assert estimated(parse_recipe({"method": "toy"}), _plan(), OURS).total == RAY_SECONDS


@pytest.mark.parametrize("name", [name for name in method_names() if not name.startswith("toy")])
def test_every_stage_of_our_methods_declares_its_work(name: str) -> None:
    path = next(path for job in MAIN_JOBS if (path := ROOT / "jobs" / name / f"{job}.yaml").exists())
    few = ["sanitize.words=500"] if name == "santext" else []  # the table of more words takes long, once
    outline = rp.plan(rp.load_recipe(path, few), timed=True)
    assert outline.estimate is not None
    assert None not in outline.estimate.seconds.values()
    assert 60 < outline.estimate.total < 7 * 24 * 3600  # in float32, on a busy machine
    machine = this_machine()
    assert machine is not None
    more = estimated(outline.recipe, outline.plan, machine, nodes=8)
    assert more.total <= outline.estimate.total
    # SanText has no other processes, a tagger's job a single worker, the domains' job few texts for one actor to write.
    in_parallel = name not in ("santext", "edp_sgd", "domain_private")
    assert (more.total < outline.estimate.total) == in_parallel
    unknown = str(rp.plan(rp.load_recipe(path, ["model.base=hub/model", *few]), timed=True))
    assert "not known" in unknown
    assert "at least" in unknown


def test_a_guess_is_at_least_one() -> None:
    recipe = rp.load_recipe(ROOT / "jobs" / "seqpate" / "chat.yaml")
    for given in ({"nodes": 0}, {"users": 0}, {"minutes": 0.0}):
        with pytest.raises(rp.ConfigError, match="is 0: give a number of at least 1"):
            rp.plan(recipe, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["seqpate", pytest.param("generator", marks=pytest.mark.exhaustive)])
def test_a_plan_with_times_imports_neither_torch_nor_ray(name: str) -> None:
    code = (
        "import sys\nfrom rayprivacy.cli import app\n"
        f"app(['plan', {str(ROOT / 'jobs' / name / 'chat.yaml')!r}, '--nodes', '2'], standalone_mode=False)\n"
        "print([name for name in ('torch', 'transformers', 'ray', 'sklearn') if name in sys.modules])\n"
    )
    wide = os.environ | {"COLUMNS": "200"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=wide)
    assert done.stdout.endswith("[]\n")
    assert "2 such machines" in " ".join(done.stdout.split())
    assert "times are estimates" in done.stdout
    assert "measuring" not in done.stderr


@pytest.mark.parametrize(
    "damage", ["", "{}", "[1]", '{"cpus": 0, "flops": {}}', '{"cpus": 1, "flops": {"product": -1}}']
)
def test_a_damaged_measurement_is_made_again(cache: Path, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = cache.iterdir()
    path.write_text(damage)
    answer = json.dumps({"cpus": 7, "flops": FLOPS}).encode()
    monkeypatch.setattr(machine.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, answer))
    said: list[str] = []
    found = this_machine(said.append)
    assert found == Machine(7, FLOPS)
    assert len(said) == 1
    assert this_machine(said.append) == found
    assert len(said) == 1


def test_a_measurement_that_fails_leaves_the_times_out(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = cache.iterdir()
    path.unlink()
    monkeypatch.setattr(sys, "executable", "/bin/false")
    outline = rp.plan(rp.load_recipe(ROOT / "jobs" / "seqpate" / "chat.yaml"), timed=True, console=QUIET)
    assert outline.estimate is None
    assert "time" not in str(outline).splitlines()[2]


def test_another_instruction_set_is_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    before = machine_name()
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "SSE41")
    assert machine_name() != before


@pytest.mark.parametrize("method", ["seqpate", "generator", "two_stage"])
def test_sampling_is_as_fast_as_its_engine(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime computes in float32, whatever the model's number format is."""

    def kernels(engine: str) -> set[str]:
        recipe = parse_recipe({"method": method, "model": {"dtype": "bfloat16"}, "generation": {"engine": engine}})
        stages = method_of(recipe).planned(recipe).stages
        return {each.kernel for stage in stages for each in stage.efforts or () if each.threads is False}

    assert "sample" in kernels(ONNX)
    assert "decode" not in kernels(ONNX)
    assert "decode" in kernels("transformers")
    assert "sample" not in kernels("transformers")
    assert kernels("auto") == kernels(ONNX)
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert kernels("auto") == kernels("transformers")


def test_nobody_knows_how_long_a_gpu_takes() -> None:
    """The stages that actors do on it show no time; the driver's own, and sampling, do."""

    def unknown(share: float) -> set[str]:
        recipe = parse_recipe({"method": "seqpate", "resources": {"gpus_per_actor": share}})
        return {stage.name for stage in method_of(recipe).planned(recipe).stages if stage.efforts is None}

    assert unknown(0) == set()
    assert unknown(0.25) == {"features of private text", "teachers", "votes"}


def test_without_the_engine_the_machine_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    before = machine_name()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert machine_name() != before


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("apart", [False, pytest.param(True, marks=[pytest.mark.slow, pytest.mark.exhaustive])])
def test_the_kernels_measure_this_machine(cache: Path, monkeypatch: pytest.MonkeyPatch, apart: bool) -> None:
    (path,) = cache.iterdir()
    path.unlink()
    if not apart:
        monkeypatch.setattr(machine.subprocess, "run", _measured_here)
    found = this_machine()
    assert found is not None
    assert found.flops.keys() == FLOPS.keys()
    assert all(1e7 < rate < 1e14 for rate in found.flops.values())
    assert found.rate("encode", "auto") == max(found.flops["encode float32"], found.flops["encode bfloat16"])


def _measured_here(command: list[str], **_: Any) -> "subprocess.CompletedProcess[bytes]":
    """The same kernels, small, in this process and for a moment each."""
    from rayprivacy.runs import kernels

    assert command == [sys.executable, "-m", kernels.__name__]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("SECONDS", 0.01), ("WIDTH", 144), ("INNER", 288), ("VOCABULARY", 512)):
            patch.setattr(kernels, name, value)
        return subprocess.CompletedProcess(command, 0, json.dumps(kernels.measured()).encode())


@pytest.mark.parametrize(("event", "kept"), [("progress", True), (FOUND, False)])
def test_what_another_run_did_says_nothing_of_its_time(tmp_path: Path, event: str, kept: bool) -> None:
    recipe = parse_recipe({"method": "toy", "model": {"dtype": "float32"}})
    run = Run.open(tmp_path / "out", recipe, resume=False, console=Console(file=io.StringIO()))
    run.log("work", "start")
    run.log("work", event)
    run.log("work", "done", seconds=0.5)
    pace.keep_paces(run, _plan(Effort("product", 31e9)))
    assert (pace.kept_pace(recipe, _plan().stages[0]) is not None) == kept


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_earlier_run_is_the_best_estimate(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    declared = (Effort("product", 31e9),)
    toy = method_named("toy").planned

    def planned(self: Any, recipe: Any) -> Plan:
        plan = toy(recipe)
        stages = [replace(stage, efforts=declared) if stage.name == CHUNKS else stage for stage in plan.stages]
        return replace(plan, stages=tuple(stages))

    monkeypatch.setattr(type(method_named("toy")), "planned", planned)

    def guess() -> Any:
        recipe = bench.load()
        return estimated(recipe, method_of(recipe).planned(recipe), OURS)

    assert guess().measured == frozenset()
    bench.run("quiet")  # on a quiet console, as trials of a search are
    assert not (user_cache() / "pace").exists()
    result = rp.run(bench.load(), bench.folder / "out", console=Console(file=io.StringIO()))
    took = [json.loads(line) for line in (result.path / "run.log").read_text().splitlines()]
    (seconds,) = [line["seconds"] for line in took if line["stage"] == CHUNKS and line["event"] == "done"]
    assert guess().seconds[CHUNKS] == seconds
    assert guess().measured == {CHUNKS}
    (path,) = (user_cache() / "pace").iterdir()
    assert json.loads(path.read_text()).keys() == {"seconds", "efforts", "users"}
    path.write_text(path.read_text().replace(str(seconds), "20.0"))
    declared = (Effort("product", 62e9),)
    assert guess().seconds[CHUNKS] == pytest.approx(40), "twice the work, at half the speed that was guessed"
    rp.run(bench.load(), bench.folder / "out", console=Console(file=io.StringIO()))
    assert json.loads(path.read_text())["seconds"] == 20.0, "a run that was resumed found its work done"
    for damage in ("", "[]", '{"seconds": -1, "efforts": [], "users": 1}'):
        path.write_text(damage)
        assert pace.kept_pace(bench.load(), rp.plan(bench.load()).plan.stage(CHUNKS)) is None
        assert guess().seconds[CHUNKS] == pytest.approx(20)
