"""The trials of a search: how searched values become a recipe, its price and its folder.

A trial is an ordinary run of an ordinary recipe, so equal values are the same release: a search that is started again,
or `rayprivacy run` on the best recipe, finds the charges that are there and pays nothing twice.

When the search is `public`, the recipe's corpus is replaced, before it is parsed, by the public one; ledger and key
belong to the search. No CorpusConfig that names the private corpus is ever made.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dp_accounting.dp_event import ComposedDpEvent, DpEvent

from rayprivacy.core.config import PRIVATE_SIDE, written_paths
from rayprivacy.core.errors import ConfigError, ReleaseError
from rayprivacy.core.files import Json
from rayprivacy.core.private import digest_json
from rayprivacy.core.units import Protection
from rayprivacy.core.written import dump_yaml
from rayprivacy.methods.registry import method_of, parse_recipe, recipe_type
from rayprivacy.runs.calibration import of_run
from rayprivacy.runs.decide import decisions
from rayprivacy.runs.directory import calibrated
from rayprivacy.runs.drive import drive
from rayprivacy.runs.files import overridden, read_mapping
from rayprivacy.runs.plan import Plan
from rayprivacy.runs.recipe import Recipe, elsewhere, require_public
from rayprivacy.tuning.budgeted import Owed
from rayprivacy.tuning.heldout_loss import heldout_loss, report_mechanism, report_release, with_reports
from rayprivacy.tuning.space import Space, merged, utility
from rayprivacy.tuning.trainable import EPSILON, UTILITY

Values = Mapping[str, Any]
SPACE = "space.json"  # in the search's folder: the space, as it was when the search began
DECIDED = "decided.yaml"  # in the search's folder: what its machines decided when it began
_SHARED = ("rdp", "gdp", "zcdp")


@dataclass(frozen=True)
class Trials:
    """All trials of one search; travels to the trials' actors."""

    space: Space
    root: Path  # folder of the search
    base: Mapping[str, Any]  # the recipe that values are set in
    # Keys and places of what no trial may take for public: those of the recipe that the space names.
    private: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    _parsed: dict[str, tuple[Recipe, Plan]] = field(init=False, repr=False, compare=False, default_factory=dict)

    @staticmethod
    def of(space: Space, root: Path) -> "Trials":
        """Read the recipe of a space, refuse what trials cannot share, and set what they do."""
        base = _recipe(space)
        written = (read_mapping(Path(space.recipe), "recipe"), base)  # in its file, and as the space changes it
        private = tuple(each for data in written for each in written_paths(data, recipe_type(base), *PRIVATE_SIDE))
        require_public(space, private)
        if space.public is not None:
            ledger, key = root / "public.db", root / "public.key"  # whole blocks are replaced: no private path is left
            base = elsewhere(base, recipe_type(base), space.public, ledger=ledger, key=key, account="trial")
        elif space.budget is not None:
            base = merged(base, {"privacy": {"account": space.budget.account}})
        kept = decisions(base, root / DECIDED)
        if space.charging == "pay_for_all" and base.get("privacy", {}).get("composition") == "pld":
            raise ConfigError(
                "privacy.composition is 'pld', whose account takes one plan alone, and a search is many:"
                f" set fixed.privacy.composition to one of {', '.join(_SHARED)}."
            )
        return Trials(space, root, merged(base, kept), private)

    @property
    def shape(self) -> Json:
        """What a search that goes on must have in common with the one that began."""
        return self.space.shape("trials", "concurrent")

    def name(self, values: Values) -> str:
        """The release that a trial makes; ConfigError where a value is out of range."""
        return self.recipe(values).release_id

    def epsilon(self, values: Values) -> float:
        """What a trial asks for."""
        return self.recipe(values).privacy.epsilon

    def recipe(self, values: Values) -> Recipe:
        """The recipe of a trial; ConfigError where a value is out of range."""
        return self._candidate(values)[0]

    def plan(self, values: Values) -> Plan:
        """What a trial will do and charge; ConfigError also where no noise is enough for the budget."""
        return self._candidate(values)[1]

    def charges(self, values: Values) -> list[DpEvent]:
        """What a trial will charge, in order."""
        return [event for _, event in self.bill(values)]

    def bill(self, values: Values) -> list[Owed]:
        """The same, each charge with its release: the trial's own, or that of a report where the metric is charged."""
        recipe, plan = self._candidate(values)
        metric = self.space.metric
        reports: list[Owed] = []
        if metric.charged:
            report = report_mechanism(metric, recipe).event
            chunks = [self.chunks(recipe, number) for number in range(1, self.reports(values) + 1)]
            reports = [(report_release(metric, recipe, chunk), report) for chunk in chunks]
        return with_reports([(recipe.release_id, event) for event in plan.charges], reports)

    def protection(self, values: Values) -> Protection:
        """What a trial protects."""
        return self.plan(values).protection

    def whole(self, values: Values) -> DpEvent:
        """All that a trial will charge, as one event."""
        return ComposedDpEvent(self.charges(values))

    def reports(self, values: Values) -> int:
        """How often a trial reports: after each chunk if trials are pruned, else once."""
        return self._chunks_of(self.recipe(values)) if self.space.pruning else 1

    def chunks(self, recipe: Recipe, report: int) -> int:
        """How many chunks have run at a report, of which the first is 1."""
        return report if self.space.pruning else self._chunks_of(recipe)

    def folder(self, recipe: Recipe) -> Path:
        """The run directory of a trial."""
        return self.root / "trials" / recipe.release_id

    def report(self, values: Values, number: int) -> Json:
        """Run a trial up to one of its reports, the first of which is 1, or find that done, and measure its model."""
        last, recipe = number >= self.reports(values), self.recipe(values)
        method = method_of(recipe)
        folder, metric = self.folder(recipe), self.space.metric
        until = None if last else number
        run, _ = drive(method, recipe.absolute(), folder, until=until, measured=False, announce=False)
        if metric.charged:
            figure = heldout_loss(run, metric, self.chunks(recipe, number))
        else:
            figure = utility(folder, recipe, metric, method.card.texts)
        if math.isnan(figure):
            raise ReleaseError(
                "the model has diverged and has no figure: search smaller learning rates, or less noise."
            )
        return {UTILITY: figure, EPSILON: recipe.privacy.epsilon, "done": last}

    def best(self, values: Values) -> str:
        """The recipe to run in the end, as YAML; it reads the private corpus again where the search was public."""
        data = overridden(_recipe(self.space) if self.space.charging == "public" else self.base, values)
        return dump_yaml(data)

    def _candidate(self, values: Values) -> tuple[Recipe, Plan]:
        """The recipe of a trial and its plan, made once for equal values."""
        name = digest_json([self.base.get("seed", 0), dict(values)])[:16]
        if name not in self._parsed:
            data = overridden(self.base, values)
            if self.space.charging == "public":  # each has an account of its own, in a ledger of the search's
                account = digest_json([data.get("seed", 0), dict(values)])[:16]
                data = merged(data, {"privacy": {"account": f"trial-{account}"}})
            recipe = parse_recipe(data)
            require_public(recipe, self.private)
            with of_run(calibrated(self.folder(recipe))):  # a trial that has begun keeps its noise, and its price
                plan = method_of(recipe).planned(recipe)
            _require_one_account(plan)
            self._parsed[name] = recipe, plan
        return self._parsed[name]

    def _chunks_of(self, recipe: Recipe) -> int:
        return max(1, method_of(recipe).planned(recipe).chunks)


def _require_one_account(plan: Plan) -> None:
    if plan.second is not None:
        raise ConfigError(
            f"the recipe charges account '{plan.second.account}' besides its own, and a search charges one: leave"
            " redacted.central out of the recipe, and set it in the best one."
        )


def _recipe(space: Space) -> Json:
    recipe = merged(read_mapping(Path(space.recipe), "recipe"), space.fixed)
    if recipe.get("audit") is not None:
        raise ConfigError(
            "'recipe' names a recipe with an 'audit' block, whose runs are no releases: take the block out, and audit"
            " the best recipe by itself."
        )
    if recipe.get("figures") is not None:
        raise ConfigError(
            "'recipe' names a recipe with a 'figures' block, which each trial would pay for and none would show: take"
            " the block out, and put it into the best recipe."
        )
    return recipe
