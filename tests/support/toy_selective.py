"""A method on a selective account: only what a public policy calls sensitive is protected."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import toy_method

from rayprivacy.core.units import AccountKind, Protection
from rayprivacy.release.histogram import HistogramMechanism
from rayprivacy.runs.method import Method, Output
from rayprivacy.runs.plan import Plan


class SelectiveRecipe(toy_method.ToyRecipe):
    method: Literal["toy_selective"] = "toy_selective"  # type: ignore[assignment]
    policy: str = "digits"


@dataclass(frozen=True)
class SelectiveHistogram(HistogramMechanism):
    """The label histogram, whose epsilon is about what the policy calls sensitive."""

    @property
    def protection(self) -> Protection:
        return Protection(self.unit, kind=AccountKind.SELECTIVE)


def mechanism_of(recipe: SelectiveRecipe) -> SelectiveHistogram:
    return SelectiveHistogram(**vars(toy_method.mechanism_of(recipe)))


def plan(recipe: SelectiveRecipe) -> Plan:
    return replace(toy_method.plan(recipe), protection=mechanism_of(recipe).protection, policy=recipe.policy)


def run(context: Any) -> Output | None:
    return toy_method.run(context, mechanism_of(context.recipe))


CARD, READING = toy_method.CARD, toy_method.reading
METHOD = Method(recipe=SelectiveRecipe, card=CARD, plan=plan, run=run, reading=READING)
