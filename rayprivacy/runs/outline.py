"""The outline of a run: its stages and what each costs, as `rayprivacy plan` shows them. Touches no data."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console

from rayprivacy.accounting.accountant import plan_lines
from rayprivacy.core.console import WholeTable
from rayprivacy.core.units import AccountKind
from rayprivacy.ledger.rules import Rule, parameters_for, rule_for
from rayprivacy.models.settings import AUTO
from rayprivacy.runs.estimate import Estimate
from rayprivacy.runs.plan import COMPARISON, EVALUATION, Plan, all_stages, epsilon_of
from rayprivacy.runs.profiled import COLUMNS, Row, overrides_of
from rayprivacy.runs.recipe import Recipe

_INTERNAL = {EVALUATION: "evaluation (internal)", COMPARISON: "comparison (internal)"}


@dataclass(frozen=True)
class Outline:
    """A recipe and its plan; prints as a table, with times and advice where they are given."""

    recipe: Recipe
    plan: Plan
    measured: bool = True  # whether figures are measured on held-out users after the run
    estimate: Estimate | None = None
    advice: str | None = None  # what the measured frontier suggests
    remark: str | None = None  # where public numbers contradict each other
    profiled: Sequence[Row] = ()  # its public numbers beside those of a profile

    @property
    def rule(self) -> Rule:
        """The admission rule that an account of this recipe alone would have."""
        privacy, events = self.recipe.privacy, self.plan.events
        parameters = parameters_for(privacy.composition, privacy.budget, None, events)
        lines = plan_lines(events) if privacy.composition == "pld" else ()
        return rule_for(privacy.composition, privacy.budget, parameters, lines)

    @property
    def epsilons(self) -> dict[str, float]:
        """What each charged stage costs alone, by name."""
        return self.plan.epsilons(self.rule)

    @property
    def epsilon(self) -> float:
        """What all charged stages cost together."""
        return epsilon_of(self.rule, self.plan.charges)

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Each stage, what it reads and what it costs; and about how long it takes, where that was estimated."""
        alone, charged = self.epsilons, {stage.name for stage in self.plan.charged}
        for stage in all_stages(self.plan, self.recipe, self.measured):
            name = _INTERNAL.get(stage.name, stage.name)
            free = "not released" if stage.name in _INTERNAL else "free"
            cost = f"epsilon {alone[stage.name]:.4g} alone" if stage.name in charged else free
            cells = (f"{name}: {stage.detail}" if stage.detail else name, stage.reads, cost)
            yield cells if self.estimate is None else (*cells, _time(self.estimate, stage.name))

    @property
    def note(self) -> str:
        """Noise, unit, account and accountant, in one line."""
        privacy, protection = self.recipe.privacy, self.plan.protection
        kind = "" if protection.kind is AccountKind.CENTRAL else f"{protection.kind}, "
        return (
            f"asks for epsilon {privacy.epsilon:g} at delta {privacy.delta:g} ({kind}unit: {protection.unit}, relation:"
            f" {protection.relation}); all charged stages together cost epsilon {self.epsilon:.4g}; {self.plan.noise};"
            f" account {privacy.account} of {privacy.ledger}; composition {privacy.composition}, accountant:"
            f" {self.rule.claim}"
        )

    def show(self, console: Console) -> None:
        """Print the table and the notes."""
        # Nothing that the release id depends on may be left to the machines.
        decided = self.recipe.model_copy(update={"model": self.recipe.model.model_copy(update={"dtype": "float32"})})
        undecided = self.recipe.model.dtype == AUTO and decided.release_id != self.recipe.release_id
        release = "decided with model.dtype when it runs" if undecided else self.recipe.release_id
        nodes = self.estimate.nodes if self.estimate else 0
        times = (f"time, {'this machine' if nodes == 1 else f'{nodes} such machines'}",) if nodes else ()
        table = WholeTable("stage", "reads", "cost", *times, title=f"{self.recipe.method}: release {release}")
        for row in self.rows():
            table.add_row(*row)
        console.print(table)
        if self.profiled:
            _show_profiled(self.profiled, console)
        for label, value in self.plan.figures.items():
            console.print(f"{label}: {value}", highlight=False)
        for warning in self.plan.warnings:
            console.print(f"WARNING: {warning}", style="bold red")
        if self.remark is not None:
            console.print(f"remark: {self.remark}", style="bold", highlight=False)
        console.print(self.note, highlight=False)
        if self.estimate is not None:
            console.print(_about(self.estimate), highlight=False)
        if self.advice is not None:
            console.print(f"measured elsewhere (docs/frontier.md): {self.advice}", highlight=False)

    def __str__(self) -> str:
        console = Console(width=120, color_system=None)
        with console.capture() as captured:
            self.show(console)
        return captured.get()


def _show_profiled(rows: Sequence[Row], console: Console) -> None:
    table = WholeTable(*COLUMNS, title="public numbers, and what the profile says of them")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    if taken := overrides_of(rows):
        console.print(f"taken from the profile, also for a run: {taken}", highlight=False, soft_wrap=True)


def _time(estimate: Estimate, stage: str) -> str:
    seconds = estimate.seconds[stage]
    if seconds is None:
        return "not known"
    machines = estimate.machines_of(stage)
    where = "" if machines == estimate.nodes else f" on {machines}"
    return f"{rough(seconds)}{'*' if stage in estimate.measured else ''}{where}"


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


def _about(estimate: Estimate) -> str:
    users = "" if estimate.users is None else f" for {estimate.users:,.0f} users (a public guess, see --users)"
    earlier = "; *: from an earlier run here" if estimate.measured else ""
    least = "at least " if None in estimate.seconds.values() else ""
    hours = f", {estimate.node_hours:.2g} node-hours" if estimate.nodes > 1 or estimate.machines else ""
    return (
        f"times are estimates{users}, of idle machines: {least}{rough(estimate.total)}{hours} in all with the start of"
        f" Ray, without reading the corpus, loading the model and the report{earlier}"
    )
