"""How searched values become a recipe, its price and its folder.

A trial is an ordinary run of an ordinary recipe, so equal values are the same release: a search that is started again,
or `rayprivacy run` on the best recipe, finds the charges that are there and pays nothing twice.

When the search is `public`, the recipe's corpus is replaced, before it is parsed, by the public one; ledger and key
belong to the search. Nothing here, or behind it, ever holds a CorpusConfig that names the private corpus.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from dp_accounting.dp_event import ComposedDpEvent, DpEvent

from rayprivacy.core.artifacts import digest_json
from rayprivacy.core.errors import ConfigError
from rayprivacy.core.units import Protection
from rayprivacy.ledger.service import Address
from rayprivacy.methods.catalogue import method_of
from rayprivacy.methods.recipe import Recipe
from rayprivacy.methods.recipes import parse_recipe, read_mapping
from rayprivacy.tuning.charged import Owed, report_mechanism, report_release, with_reports
from rayprivacy.tuning.space import Space, assigned, merged

Values = Mapping[str, Any]
_SHARED = ("rdp", "weighted", "gdp", "zcdp")


@dataclass(frozen=True)
class Trials:
    """All trials of one search; travels to the trials' actors.

    Attributes:
        space: the space.
        root: folder of the search.
        base: the recipe, as a mapping, that values are set in.
    """

    space: Space
    root: Path
    base: Mapping[str, Any]

    @staticmethod
    def of(space: Space, root: Path) -> "Trials":
        """Read the recipe of a space and set what all trials share.

        Raises:
            ConfigError: the recipe cannot be read, or its composition cannot be shared by several trials.
        """
        base = _recipe(space)
        if space.charging == "public":
            base = _public_side(base, space, root)
        elif space.budget is not None:
            base = merged(base, {"privacy": {"account": space.budget.account}})
        trials = Trials(space, root, base)
        trials._check_composition()
        return trials

    def recipe(self, values: Values) -> Recipe:
        """The recipe of a trial.

        Raises:
            ConfigError: a value is out of range.
        """
        data = assigned(self.base, values)
        if self.space.charging == "public":  # each has an account of its own, in a ledger of the search's
            name = digest_json([data.get("seed", 0), dict(values)])[:16]
            data = merged(data, {"privacy": {"account": f"trial-{name}"}})
        return parse_recipe(data)

    def placed(self, recipe: Recipe) -> Recipe:
        """The same recipe for a process that may have another working directory: same release, absolute paths."""
        privacy = recipe.privacy
        ledger_key = str(Path(privacy.ledger_key).absolute()) if privacy.ledger_key else None
        places = {
            "ledger": Address.of(privacy.ledger).url,
            "key": str(Path(privacy.key).absolute()),
            "ledger_key": ledger_key,
        }
        return recipe.model_copy(update={"privacy": privacy.model_copy(update=places)})

    def charges(self, values: Values) -> list[DpEvent]:
        """What a trial will charge, in order.

        Raises:
            ConfigError: as `bill`.
        """
        return [event for _, event in self.bill(values)]

    def bill(self, values: Values) -> list[Owed]:
        """The same, each charge with its release: the trial's own, or that of a report where the metric is charged.

        Raises:
            ConfigError: a value is out of range, no noise is enough for the budget, or the metric cannot be charged.
        """
        recipe, metric = self.recipe(values), self.space.metric
        reports = []
        if metric.charged:
            report = report_mechanism(metric, recipe).event
            chunks = [self.chunks(recipe, rung) for rung in range(1, self.rungs(recipe) + 1)]
            reports = [(report_release(metric, recipe, chunk), report) for chunk in chunks]
        return with_reports([(recipe.release_id, event) for event in method_of(recipe).charges(recipe)], reports)

    def protection(self, values: Values) -> Protection:
        """What a trial protects."""
        return Protection(self.recipe(values).privacy.unit)

    def whole(self, values: Values) -> DpEvent:
        """All that a trial will charge, as one event."""
        return ComposedDpEvent(self.charges(values))

    def rungs(self, recipe: Recipe) -> int:
        """How often a trial reports: after each chunk if trials are pruned, else once."""
        return method_of(recipe).chunks(recipe) if self.space.pruning else 1

    def chunks(self, recipe: Recipe, rung: int) -> int:
        """How many chunks have run when a trial reports for the `rung`-th time."""
        return rung if self.space.pruning else method_of(recipe).chunks(recipe)

    def folder(self, recipe: Recipe) -> Path:
        """The run directory of a trial."""
        return self.root / "trials" / recipe.release_id

    def best(self, values: Values) -> str:
        """The recipe to run in the end, as YAML; it reads the private corpus again where the search was public."""
        data = assigned(_recipe(self.space) if self.space.charging == "public" else self.base, values)
        return yaml.safe_dump(data, sort_keys=False)

    def _check_composition(self) -> None:
        composition = self.base.get("privacy", {}).get("composition", "gdp")
        if self.space.charging == "pay_for_all" and composition == "pld":
            raise ConfigError(
                "privacy.composition is 'pld', whose account takes one plan alone, and a search is many:"
                f" set fixed.privacy.composition to one of {', '.join(_SHARED)}."
            )


def _recipe(space: Space) -> dict[str, Any]:
    recipe = merged(read_mapping(Path(space.recipe), "recipe"), space.fixed)
    if recipe.get("audit") is not None:
        raise ConfigError(
            "'recipe' names a recipe with an 'audit' block, whose runs are no releases: take the block out, and audit"
            " the best recipe by itself."
        )
    return recipe


def _public_side(base: Mapping[str, Any], space: Space, root: Path) -> dict[str, Any]:
    """The recipe with the public corpus: whole blocks are replaced, so that no path of the private one is left."""
    assert space.public is not None
    places = {"ledger": f"sqlite:///{root}/public.db", "ledger_key": None, "key": str(root / "public.key")}
    data = merged(base, {"privacy": {**places, "corpus": ""}})
    data["corpus"] = space.public.model_dump(mode="json")
    if "resources" in data:
        data["resources"] = {key: value for key, value in data["resources"].items() if key != "features"}
    return data
