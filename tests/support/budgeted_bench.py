"""What tests of `BudgetedSearcher` share: an account for a number of trials, a price, and a searcher to be asked."""

import random
from pathlib import Path
from typing import Any

from dp_accounting.dp_event import DpEvent, GaussianDpEvent
from ray import cloudpickle
from ray.tune.search import Searcher

from rayprivacy.accounting import renyi
from rayprivacy.core.units import Budget, NeighbouringRelation, PrivacyUnit
from rayprivacy.ledger.store import Ledger

SIGMA, ORDER = 2.0, 8.0
EVENT = GaussianDpEvent(SIGMA)


class RandomSearch(Searcher):
    """Uniform values of one key, or those of a list in order; keeps what it is told."""

    def __init__(self, values: list[Any] | None = None, seed: int = 0) -> None:
        super().__init__(metric="loss", mode="min")
        self.values, self.dice = values, random.Random(seed)
        self.told: list[tuple[Any, bool]] = []
        self.asked = 0

    def suggest(self, trial_id: str) -> Any:
        self.asked += 1
        if self.values is None:
            return {"x": self.dice.random()}
        return {"x": self.values.pop(0)} if self.values else Searcher.FINISHED

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        self.told.append((result and result.get("loss"), error))

    def save(self, checkpoint_path: str) -> None:
        Path(checkpoint_path).write_bytes(cloudpickle.dumps(self.__dict__))

    def restore(self, checkpoint_path: str) -> None:
        self.__dict__.update(cloudpickle.loads(Path(checkpoint_path).read_bytes()))


def price(config: dict[str, Any]) -> list[DpEvent]:
    return [GaussianDpEvent(config.get("sigma", SIGMA))]


def price_of_two(config: dict[str, Any]) -> list[DpEvent]:
    return price(config) * 2


def open_account(url: str, trials: float) -> None:
    """The account `chat` with room for a number of trials, half ones included."""
    (each,) = renyi.rdp(EVENT, (ORDER,))
    budget = Budget(renyi.epsilon_at(trials * each, ORDER, 1e-6), 1e-6)
    with Ledger.open(url) as ledger:
        unit, relation = PrivacyUnit.USER, NeighbouringRelation.ADD_OR_REMOVE
        ledger.create_account("chat", unit, relation, budget, "rdp", order=ORDER)


def lines(url: str, account: str = "chat") -> list[tuple[str, int, str]]:
    with Ledger.open(url) as ledger:
        ledger.verify()
        assert ledger.status(account).share <= 1
        return [(line.release_id, line.rung, line.state) for line in ledger.lines(account)]
