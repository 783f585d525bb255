"""How long a run will take, stage by stage: a guess from public numbers, for people.

    efforts of a stage (plan) / what a core does (runs.machine) / cores that can share it -> seconds
    ... and where a recipe like this was run here before, what that took (runs.pace)

The machine is taken to be idle, and further nodes to be like it. How many users there are is a public guess.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from rayprivacy.runs.effort import Effort
from rayprivacy.runs.machine import Machine
from rayprivacy.runs.measuring import all_stages
from rayprivacy.runs.pace import Pace, kept_pace
from rayprivacy.runs.plan import Plan
from rayprivacy.runs.recipe import Recipe

START_SECONDS = 8.0  # a process that imports torch and loads a model, on every machine at once
RAY_SECONDS = 10.0  # Ray itself
SHARED = 0.7  # of a core that each further thread of one process adds
MOST_THREADS = 16
FARTHEST = 10.0  # an earlier run of other work corrects a guess by this factor at most


@dataclass(frozen=True)
class Estimate:
    """Guessed seconds of a run.

    Attributes:
        seconds: by stage; None where the plan declares no work.
        measured: the stages that were run here before.
        nodes: machines like this one, for a stage that asks for none of its own.
        users: the public guess at how many users the corpus has, if anything depends on it.
        machines: of the stages that ask for machines of their own (`resources.stages`).
    """

    seconds: Mapping[str, float | None]
    measured: frozenset[str]
    nodes: int
    users: float | None
    machines: Mapping[str, int] = field(default_factory=dict)

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


def estimated(
    recipe: Recipe,
    plan: Plan,
    machine: Machine,
    *,
    nodes: int = 1,
    users: float | None = None,
    measured: bool = True,
) -> Estimate:
    """Guess how long the stages of a plan take.

    Args:
        recipe: the recipe.
        plan: of its method.
        machine: what one node is.
        nodes: how many there are.
        users: of the private corpus, a public guess; the plan's own when left out.
        measured: whether figures are measured after the run.
    """
    stages = all_stages(plan, recipe, measured)
    guess = _Guess(machine, recipe.model.dtype, nodes, plan.users if users is None else users)
    paces = {stage.name: kept_pace(recipe, stage) for stage in stages}
    asked = recipe.resources.stages
    machines = {needs.stage: math.ceil(needs.cpus / machine.cpus) for needs in asked if needs.cpus}
    seconds = {
        stage.name: None
        if stage.efforts is None
        else replace(guess, nodes=machines.get(stage.name, nodes)).corrected(stage.efforts, paces[stage.name])
        for stage in stages
    }
    grows = any(effort.users for stage in stages for effort in stage.efforts or ())
    before = frozenset(name for name, pace in paces.items() if pace)
    return Estimate(seconds, before, nodes, guess.users if grows else None, machines)


@dataclass(frozen=True)
class _Guess:
    """What guesses are made from; see `Estimate`."""

    machine: Machine
    dtype: str
    nodes: int
    users: float

    def corrected(self, efforts: Sequence[Effort], pace: Pace | None) -> float:
        """Seconds of some work, in proportion to what an earlier run took for its own."""
        guessed = self.seconds(efforts)
        if pace is None:
            return guessed
        then = replace(self, nodes=1, users=pace.users)
        if self == then and tuple(efforts) == pace.efforts:
            return pace.seconds
        factor = pace.seconds / max(then.seconds(pace.efforts), 1e-9)
        return guessed * min(max(factor, 1 / FARTHEST), FARTHEST)

    def seconds(self, efforts: Sequence[Effort]) -> float:
        """Seconds of some work, one after the other, with one start of processes if there are any."""
        starts = START_SECONDS if any(not each.threads or each.processes > 1 for each in efforts) else 0.0
        return starts + sum(self._alone(each) for each in efforts)

    def _alone(self, effort: Effort) -> float:
        flops = effort.flops * (self.users if effort.users else 1)
        return flops / (self.machine.rate(effort.kernel, self.dtype) * self._cores(effort))

    def _cores(self, effort: Effort) -> float:
        """How many cores' worth of speed the work gets."""
        if not effort.threads:
            return min(effort.processes, self.machine.cpus * self.nodes)
        return min(effort.processes, self.nodes) * (1 + SHARED * (min(self.machine.cpus, MOST_THREADS) - 1))


def rough(seconds: float) -> str:
    """Seconds with the digits that a guess has.

    >>> rough(3.4), rough(170.2), rough(940), rough(9000)
    ('3 s', '2.8 min', '16 min', '2.5 h')
    """
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            count = seconds / size
            return f"{count:.1f} {unit}" if count < 10 else f"{count:.0f} {unit}"
    return f"{seconds:.0f} s"
