"""How long a run will take, stage by stage: a guess from public numbers, for people.

A stage's operations (its plan) are divided by the cores that can share them and by what a core does in a second: NumPy
multiplies small matrices for some 50 milliseconds, and other kernels are in proportion to that, as measured once by
`benchmarks/kernels.py`. The machine is taken to be idle, further nodes to be like it, and how many users there are is a
public guess. Where a recipe like this ran here before, what that took counts, in proportion to its work.

For that, seconds and declared operations are kept in the user's cache, by processor, method, stage, base model and
`resources`, and for work that grows with the corpus by `corpus.source`; not by number format or engine, which a run
decides and a plan does not know, and never how many users there were. Only whole runs on this machine count: a stage
that was resumed found part of its work done, one that took over what another run made (FOUND) found all of it, and
trials of a search must leave no trace (their number may be secret).
"""

import json
import math
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from rayprivacy.core.console import cores
from rayprivacy.core.files import keep, kept_file, read_json
from rayprivacy.core.private import digest_json
from rayprivacy.runs.directory import FOUND, R, Run, log_entries
from rayprivacy.runs.plan import Kernel, Plan, Stage, all_stages
from rayprivacy.runs.recipe import LOCAL, Recipe

START_SECONDS = 8.0  # a process that imports torch and loads a model, on every machine at once
RAY_SECONDS = 10.0  # Ray itself
FARTHEST = 10.0  # an earlier run of this many times as much work, or as little, tells nothing
# Speed in proportion to one large product of float32.
RATIOS: Mapping[Kernel, float] = {"encode": 0.98, "decode": 0.89, "train": 0.74, "sample": 0.53, "batched": 0.83}
IN_BFLOAT16: Mapping[Kernel, float] = {"encode": 1.79, "decode": 1.46, "train": 1.05}
EMULATED: Mapping[Kernel, float] = {"encode": 0.3, "decode": 0.3, "train": 0.2}  # bfloat16 on other processors
BFLOAT16 = {"avx512_bf16", "amx_bf16", "bf16"}  # flags of processors that compute in it
OF_SMALL = {"avx512f": 0.84, "avx2": 1.5}  # a large product beside NumPy's small ones, which AVX-512 suits best
SIZE, COUNT, TIMES = 64, 400, 10  # matrices too small for NumPy to share them among threads


@dataclass(frozen=True)
class Machine:
    """What estimates know of a machine; `flops` are those of one core in a large product of float32, per second."""

    processor: str
    cpus: int
    flops: float
    has_bfloat16: bool

    def rate(self, kernel: Kernel, dtype: str) -> float:
        """Operations per second of one core, with the model in a number format; `auto` is the faster one."""
        in_bfloat16 = IN_BFLOAT16 if self.has_bfloat16 else EMULATED
        if kernel in in_bfloat16 and (dtype == "bfloat16" or (dtype == "auto" and self.has_bfloat16)):
            return self.flops * in_bfloat16[kernel]
        return self.flops * RATIOS.get(kernel, 1.0)


@dataclass(frozen=True)
class Estimate:
    """Guessed seconds of a run."""

    seconds: Mapping[str, float | None]  # by stage; None where they are not known
    measured: frozenset[str]  # the stages that were run here before
    nodes: int  # machines like this one, for a stage that asks for none of its own
    users: float | None  # the public guess at how many users the corpus has, if anything depends on it
    machines: Mapping[str, int] = field(default_factory=dict)  # of stages that ask for their own (`resources.stages`)

    @property
    def total(self) -> float:
        """All that was guessed, and the start of Ray."""
        return RAY_SECONDS + sum(seconds or 0.0 for seconds in self.seconds.values())

    def machines_of(self, stage: str) -> int:
        """On how many machines a stage runs."""
        return self.machines.get(stage, self.nodes)

    @property
    def node_hours(self) -> float:
        """Hours of all machines together, each for as long as the stages that have it."""
        seconds = sum(self.machines_of(stage) * (seconds or 0.0) for stage, seconds in self.seconds.items())
        return (RAY_SECONDS * self.nodes + seconds) / 3600


@cache
def this_machine() -> Machine:
    """This machine, measured once in a process; only Linux tells its flags."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in reversed(lines))}
    flags = set(facts.get("flags", facts.get("Features", "")).split())
    of_small = next((ratio for flag, ratio in OF_SMALL.items() if flag in flags), 1.0)
    processor = facts.get("model name", platform.processor())
    return Machine(processor, cores(), of_small * _flops(), bool(BFLOAT16 & flags))


def _flops() -> float:
    """Of the quickest of some products, per CPU second: time that other processes take is not counted."""
    many, one, best = np.ones((COUNT, SIZE, SIZE), np.float32), np.ones((SIZE, SIZE), np.float32), float("inf")
    for _ in range(TIMES):
        began = time.process_time()
        many @ one
        best = min(best, time.process_time() - began)
    return 2 * COUNT * SIZE**3 / max(best, 1e-6)


def estimated(recipe: Recipe, plan: Plan, machine: Machine, *, nodes: int = 1, users: float | None = None) -> Estimate:
    """Guess how long the stages of a plan take on some machines, with the plan's own guess at users when left out."""
    asked = {each.stage: math.ceil(each.cpus / machine.cpus) for each in recipe.resources.stages if each.cpus}
    stages, guess = all_stages(plan, recipe), plan.users if users is None else users
    seconds: dict[str, float | None] = {}
    before = set()
    for stage in stages:
        flops = [each.flops_per_core(machine.cpus, asked.get(stage.name, nodes), guess) for each in stage.efforts]
        kept = _kept_seconds(recipe, stage, sum(flops))
        if kept is not None:
            before.add(stage.name)
        rates = [machine.rate(each.kernel, recipe.model.dtype) for each in stage.efforts]
        starts = any(not each.threads or each.processes > 1 for each in stage.efforts)  # processes of its own
        guessed = START_SECONDS * starts + sum(each / rate for each, rate in zip(flops, rates, strict=True))
        seconds[stage.name] = (None if math.isnan(guessed) else guessed) if kept is None else kept
    grows = any(effort.users for stage in stages for effort in stage.efforts)
    return Estimate(seconds, frozenset(before), nodes, guess if grows else None, asked)


def keep_seconds(run: Run[R], plan: Plan) -> None:
    """Keep how long the stages of a finished run took, if it ran in one piece, on this machine, and is no trial."""
    recipe, seconds, entries = run.recipe, run.timings(), list(log_entries(run.root))
    found = {entry["stage"] for entry in entries if entry["event"] == FOUND}
    starts = [entry["stage"] for entry in entries if entry["event"] == "start"]
    if run.console.quiet or recipe.resources.address != LOCAL or starts.count(starts[0]) > 1:
        return
    for stage in all_stages(plan, recipe):
        flops = sum(each.flops_per_core(this_machine().cpus, 1, plan.users) for each in stage.efforts)
        if flops > 0 and stage.name not in found and seconds.get(stage.name, 0) > 0:
            keep(_path(recipe, stage), json.dumps({"seconds": seconds[stage.name], "flops": flops}).encode())


def _kept_seconds(recipe: Recipe, stage: Stage, flops: float) -> float | None:
    """What `keep_seconds` kept, in proportion to the operations of each core; None where there is nothing to go by."""
    try:
        path = _path(recipe, stage)
        kept = read_json(path) if path else {}
        seconds, times = float(kept["seconds"]), flops / float(kept["flops"])
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError):
        return None  # never run here, or damaged
    return seconds * times if 1 / FARTHEST <= times <= FARTHEST and 0 < seconds < math.inf else None


def _path(recipe: Recipe, stage: Stage) -> Path | None:
    source = recipe.corpus.source if any(effort.users for effort in stage.efforts) else ""
    given = [recipe.model.model_dump(mode="json", exclude={"dtype"}), recipe.resources.model_dump(mode="json"), source]
    machine = [this_machine().processor, this_machine().cpus]
    return kept_file("pace", f"{digest_json([*machine, recipe.method, stage.name, *given])[:32]}.json")
