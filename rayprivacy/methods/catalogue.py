"""The methods by name: how each opens its account, plans and runs. The only place that knows them all."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dp_accounting.dp_event import DpEvent

from rayprivacy.ledger.store import Ledger
from rayprivacy.methods.comparison import check_comparison
from rayprivacy.methods.generator import run_generator
from rayprivacy.methods.generator_plan import chunk_events, chunks_of, open_generator, outline_generator
from rayprivacy.methods.outline import Outline
from rayprivacy.methods.planning import open_seqpate, outline_seqpate, planned_events
from rayprivacy.methods.recipe import Recipe
from rayprivacy.methods.run import Run
from rayprivacy.methods.seqpate import run_seqpate


@dataclass(frozen=True)
class Method:
    """One method.

    Attributes:
        open: open the account that pays, or refuse.
        outline: stages and cost.
        charges: the events of a recipe, one for each charge, in order.
        run: run, or finish, a recipe; the certificate.
        run_until: the same for the first chunks of a recipe alone, which leave a model and no certificate; None where
            a run cannot be stopped half-way.
        chunks: how many chunks a recipe has.
    """

    open: Callable[[Any], Ledger]
    outline: Callable[[Any], Outline]
    charges: Callable[[Any], list[DpEvent]]
    run: Callable[[Run[Any]], dict[str, Any]]
    run_until: Callable[[Run[Any], int], dict[str, Any]] | None = None
    chunks: Callable[[Any], int] = lambda _: 1


def _comparable(open_account: Callable[[Any], Ledger]) -> Callable[[Any], Ledger]:
    """Refuse a comparison that cannot be made before there is even an account."""

    def checked(recipe: Any) -> Ledger:
        check_comparison(recipe)
        return open_account(recipe)

    return checked


_SEQPATE = Method(_comparable(open_seqpate), outline_seqpate, planned_events, run_seqpate)
_GENERATOR = Method(
    _comparable(open_generator), outline_generator, chunk_events, run_generator, run_generator, chunks_of
)
_METHODS = {"seqpate": _SEQPATE, "generator": _GENERATOR}


def method_of(recipe: Recipe) -> Method:
    """The method of a recipe."""
    return _METHODS[recipe.method]
