"""What a ledger account should do, in plain Python: a list of charges, and sums that are taken anew each time."""

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

from rayprivacy.core.errors import BudgetRefusedError, LeaseHeldError, LedgerError

State = Literal["reserved", "started", "committed", "cancelled"]
Key = tuple[str, str, int]  # release, input, rung
GRID = 2**80


def on_grid(price: Fraction) -> int:
    """The least multiple of 2^-80 that is not below a price."""
    return -((-price * GRID) // 1)


@dataclass
class ModelCharge:
    key: Key
    event: Any
    cost: tuple[int, ...]
    state: State = "reserved"
    token: int = 0
    holder: str = ""
    term_runs: bool = False
    output: bytes | None = None


@dataclass
class ModelAccount:
    """An account with the costs and limits of its rule."""

    limits: tuple[int, ...]
    entries: int
    charges: list[ModelCharge] = field(default_factory=list)

    def total(self, *states: State) -> tuple[int, ...]:
        costs = [charge.cost for charge in self.charges if charge.state in states]
        return tuple(sum(cost[i] for cost in costs) for i in range(len(self.limits)))

    @property
    def used(self) -> tuple[int, ...]:
        return self.total("reserved", "started", "committed")

    def fits(self, used: tuple[int, ...]) -> bool:
        return all(u <= most for u, most in zip(used, self.limits, strict=True))

    def live(self, key: Key) -> ModelCharge | None:
        found = [charge for charge in self.charges if charge.key == key and charge.state != "cancelled"]
        assert len(found) <= 1
        return found[0] if found else None

    def reserve(self, key: Key, event: Any, cost: tuple[int, ...]) -> ModelCharge:
        release, digest, rung = key
        paid = self.live(key)
        if paid is not None:
            if paid.event != event:
                raise LedgerError
            return paid
        if rung > 1 and self.live((release, digest, rung - 1)) is None:
            raise LedgerError
        if not self.fits(tuple(u + c for u, c in zip(self.used, cost, strict=True))):
            raise BudgetRefusedError
        self.charges.append(ModelCharge(key, event, cost))
        self.entries += 1
        return self.charges[-1]

    def start(self, charge: ModelCharge, holder: str, term_runs: bool) -> None:
        if charge.state == "committed":
            return
        if charge.state == "cancelled":
            raise LedgerError
        if charge.state == "started" and charge.holder == holder:
            return
        if charge.state == "started" and charge.term_runs:
            raise LeaseHeldError
        charge.state, charge.token, charge.holder, charge.term_runs = "started", charge.token + 1, holder, term_runs
        self.entries += 1

    def renew(self, charge: ModelCharge, token: int, term_runs: bool) -> None:
        self._fence(charge, token)
        charge.term_runs = term_runs
        self.entries += 1

    def commit(self, charge: ModelCharge, token: int, output: bytes) -> None:
        if charge.state == "committed":
            return
        self._fence(charge, token)
        charge.state, charge.output = "committed", output
        self.entries += 1

    def cancel(self, charge: ModelCharge) -> None:
        if charge.state == "cancelled":
            return
        if charge.state != "reserved":
            raise LedgerError
        release, digest, rung = charge.key
        if rung and self.live((release, digest, rung + 1)) is not None:
            raise LedgerError
        charge.state = "cancelled"
        self.entries += 1

    @staticmethod
    def _fence(charge: ModelCharge, token: int) -> None:
        if charge.state != "started" or charge.token != token:
            raise LedgerError
