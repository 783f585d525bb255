"""What has become of an account, for people: totals by state, and a line for each charge."""

import json
import operator
from dataclasses import dataclass

from sqlalchemy import Connection

from rayprivacy.ledger.accounts import Account
from rayprivacy.ledger.admission import Balance
from rayprivacy.ledger.book import Values, decoding, read
from rayprivacy.ledger.charges import STATE_AFTER, ChargeState
from rayprivacy.ledger.rules import Rule, Vector


@dataclass(frozen=True)
class AccountStatus:
    """The account as it stands; `exposures` counts releases of its corpus that are non-private for it."""

    account: Account
    rule: Rule
    balance: Balance
    exposures: int

    @property
    def share(self) -> float:
        """Part of the cap that reserved, started and committed charges take together."""
        return self._share(self.balance.used)

    def share_of(self, line: "Line") -> float:
        """Part of the cap that one charge takes."""
        with decoding("an entry"):
            return self._share(tuple(map(operator.index, json.loads(line.cost))))

    def _share(self, used: Vector) -> float:
        with decoding(f"the cap or the balance of account '{self.account.name}'"):
            return self.rule.share(used)

    @property
    def epsilon_spent(self) -> float:
        """Epsilon of all charges that are not cancelled: a diagnostic at the account's delta; the claim is the cap."""
        return self.rule.epsilon(self.balance.used)

    @property
    def epsilon_remaining(self) -> float:
        """The largest epsilon, at the account's delta, that still fits."""
        return self.rule.left(self.balance.used)

    @property
    def thresholds(self) -> tuple[float, float]:
        """What thresholds have taken of the part of delta that is kept for them, and that part; zeros without one."""
        taken, kept = self.rule.thresholds(self.balance.used)
        return float(taken), float(kept)

    @property
    def figures(self) -> Values:
        """Cap, spent and left as JSON values; epsilons of parts do not add up to that of the whole."""
        return {
            "account": self.account.name,
            **self.account.terms,
            "parameters": self.account.parameters,
            "claim": self.rule.claim,
            "epsilon_reserved": self.rule.epsilon(self.balance.reserved),
            "epsilon_started": self.rule.epsilon(self.balance.started),
            "epsilon_committed": self.rule.epsilon(self.balance.committed),
            "epsilon_spent": self.epsilon_spent,
            "epsilon_remaining": self.epsilon_remaining,
            "share_used": self.share,
            **({"threshold_delta_spent": self.thresholds[0]} if self.thresholds[1] else {}),
            "exposures": self.exposures,
        }


@dataclass(slots=True)
class Line:
    """One charge in the account's statement; `cost` is JSON, integers of the account's rule, and times are UTC."""

    release_id: str
    rung: int
    state: str
    cost: str
    reserved_at: str
    changed_at: str


def read_lines(connection: Connection, account: str) -> list[Line]:
    """A line for each charge, in the order of reservation."""
    lines: dict[str, Line] = {}
    with decoding(f"the history of account '{account}'"):
        for entry in read(connection, account=account):
            when = entry.created_at
            if entry.kind == "reserve":
                lines[entry.charge] = Line(
                    entry.release_id, entry.rung, ChargeState.RESERVED.value, entry.cost, when, when
                )
            elif entry.charge:
                line = lines[entry.charge]
                line.state, line.changed_at = STATE_AFTER[entry.kind].value, when
    return list(lines.values())
