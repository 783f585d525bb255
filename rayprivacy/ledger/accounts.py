"""An account: one private corpus, one unit, one relation, one cap, one composition rule, fixed from the start.

The terms are written twice: as a row, and inside the hash-chained `create` entry that `verify` compares the row with.
"""

import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, insert, select

from rayprivacy.core.errors import LedgerError
from rayprivacy.core.units import Budget, NeighbouringRelation, PrivacyUnit
from rayprivacy.ledger.chain import Entry, append
from rayprivacy.ledger.schema import accounts

COMPOSITIONS = ("gdp",)


@dataclass(frozen=True)
class Account:
    """The terms of one account.

    Attributes:
        name: what recipes call it.
        unit: whose presence is hidden.
        relation: how neighbouring corpora differ.
        epsilon, delta: the cap, which is the account's claim.
        composition: the admission rule.
        created_at: UTC time.
    """

    name: str
    unit: PrivacyUnit
    relation: NeighbouringRelation
    epsilon: float
    delta: float
    composition: str
    created_at: str

    @property
    def budget(self) -> Budget:
        """The cap as a budget."""
        return Budget(self.epsilon, self.delta)

    @property
    def terms(self) -> dict[str, Any]:
        """What is fixed, as JSON values."""
        return {
            "unit": self.unit.value,
            "relation": self.relation.value,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "composition": self.composition,
        }


@dataclass(frozen=True)
class AccountStatus:
    """What has become of an account.

    Attributes:
        account: its terms.
        mu_squared_cap, mu_squared_used: the filter's limit, and what reserved, started and committed charges use of it.
        epsilon_spent: a diagnostic at the account's delta; the claim is the cap.
        epsilon_remaining: the largest epsilon, at the account's delta, that still fits.
        entries: its rows of the book, in order.
    """

    account: Account
    mu_squared_cap: float
    mu_squared_used: float
    epsilon_spent: float
    epsilon_remaining: float
    entries: list[Entry]


def find_account(connection: Connection, name: str) -> Account | None:
    """The account of this name."""
    row = connection.execute(select(accounts).where(accounts.c.name == name)).mappings().first()
    return _account(row) if row else None


def get_account(connection: Connection, name: str) -> Account:
    """The account of this name.

    Raises:
        LedgerError: there is none; the message names those there are.
    """
    found = find_account(connection, name)
    if found is None:
        known = ", ".join(account.name for account in all_accounts(connection)) or "none"
        raise LedgerError(f"privacy.account is '{name}' and the ledger holds {known}: create it, or use one of these.")
    return found


def all_accounts(connection: Connection) -> list[Account]:
    """Every account, by name."""
    return [_account(row) for row in connection.execute(select(accounts).order_by(accounts.c.name)).mappings()]


def insert_account(connection: Connection, account: Account) -> Account:
    """Write a new account and its `create` entry.

    Raises:
        LedgerError: the name is empty, too long or taken, or the composition rule is unknown.
    """
    if not 1 <= len(account.name) <= 200:
        raise LedgerError(f"the account name has {len(account.name)} characters: give 1 to 200.")
    if account.composition not in COMPOSITIONS:
        raise LedgerError(f"privacy.composition is {account.composition!r}: use {' or '.join(COMPOSITIONS)}.")
    if find_account(connection, account.name) is not None:
        raise LedgerError(f"the account '{account.name}' exists: choose another name, or use it as it is.")
    connection.execute(insert(accounts).values(name=account.name, created_at=account.created_at, **account.terms))
    detail = json.dumps(account.terms, sort_keys=True)
    append(connection, account=account.name, kind="create", detail=detail, created_at=account.created_at)
    return account


def check_same_terms(found: Account, wanted: Account) -> Account:
    """Return the existing account; its cap may differ from what is wanted, its meaning may not.

    Raises:
        LedgerError: unit, relation or composition differ.
    """
    for field in ("unit", "relation", "composition"):
        have, want = getattr(found, field), getattr(wanted, field)
        if have != want:
            raise LedgerError(
                f"privacy.{field} is '{want}' and account '{found.name}' was created with '{have}':"
                " use that, or another account."
            )
    return found


def _account(row: Any) -> Account:
    values = dict(row)
    values["unit"] = PrivacyUnit(values["unit"])
    values["relation"] = NeighbouringRelation(values["relation"])
    return Account(**values)
