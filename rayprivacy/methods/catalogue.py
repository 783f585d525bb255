"""The methods by name: how each opens its account, plans and runs. The only place that knows them all."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rayprivacy.ledger.store import Ledger
from rayprivacy.methods.generator import run_generator
from rayprivacy.methods.generator_plan import open_generator, outline_generator
from rayprivacy.methods.outline import Outline
from rayprivacy.methods.planning import open_seqpate, outline_seqpate
from rayprivacy.methods.recipe import Recipe
from rayprivacy.methods.seqpate import run_seqpate


@dataclass(frozen=True)
class Method:
    """One method.

    Attributes:
        open: open the account that pays, or refuse.
        outline: stages and cost.
        run: run, or finish, a recipe; the certificate.
    """

    open: Callable[[Any], Ledger]
    outline: Callable[[Any], Outline]
    run: Callable[[Any], dict[str, Any]]


_METHODS = {
    "seqpate": Method(open_seqpate, outline_seqpate, run_seqpate),
    "generator": Method(open_generator, outline_generator, run_generator),
}


def method_of(recipe: Recipe) -> Method:
    """The method of a recipe."""
    return _METHODS[recipe.method]
