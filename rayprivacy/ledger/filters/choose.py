"""Which rule an account has, and the parameters that its rule fixes when it is opened."""

from collections.abc import Callable, Sequence
from typing import Any

from dp_accounting.dp_event import DpEvent

from rayprivacy.accounting import renyi
from rayprivacy.core.errors import ConfigError
from rayprivacy.core.units import Budget
from rayprivacy.ledger.filters.gdp import GdpRule
from rayprivacy.ledger.filters.metric import MetricRule
from rayprivacy.ledger.filters.plan import Lines, PlanRule
from rayprivacy.ledger.filters.renyi import OneOrderRule
from rayprivacy.ledger.filters.rule import Rule
from rayprivacy.ledger.filters.zcdp import ZcdpRule

_RULES: dict[str, Callable[[Budget, dict[str, Any], Lines], Rule]] = {
    "gdp": lambda budget, parameters, lines: GdpRule(budget),
    "zcdp": lambda budget, parameters, lines: ZcdpRule(budget),
    "rdp": lambda budget, parameters, lines: OneOrderRule(budget, float(parameters["order"])),
    "pld": lambda budget, parameters, lines: PlanRule(budget, lines),
    "metric": lambda budget, parameters, lines: MetricRule(budget),
}
COMPOSITIONS = tuple(_RULES)


def rule_for(composition: str, budget: Budget, parameters: dict[str, Any], lines: Lines = ()) -> Rule:
    """The rule of an account; ConfigError when it is unknown, or its order leaves nothing of the cap."""
    if composition not in _RULES:
        raise ConfigError(f"privacy.composition is {composition!r}: use one of {', '.join(COMPOSITIONS)}.")
    return _RULES[composition](budget, parameters, lines)


def parameters_for(
    composition: str, budget: Budget, order: float | None = None, plan: Sequence[DpEvent] = ()
) -> dict[str, Any]:
    """The parameters of a new account's rule: the given RDP order, or the best one for a plan."""
    if composition != "rdp":
        if order is not None:
            raise ConfigError(f"order is {order} and composition is '{composition}': only 'rdp' takes one.")
        return {}
    if order is None and not plan:
        raise ConfigError("composition is 'rdp' and there is no order: give one, e.g. 8, or a plan to choose it from.")
    return {"order": float(order) if order is not None else _order_of(plan, budget)}


def _order_of(plan: Sequence[DpEvent], budget: Budget) -> float:
    order = renyi.best_order(plan, budget.delta)
    try:
        renyi.rdp_cap(order, budget)
    except ConfigError:
        raise ConfigError(
            f"the account's epsilon {budget.epsilon:g} at delta {budget.delta:g} is far less than the plan costs: raise"
            " it, or plan less."
        ) from None
    return order
