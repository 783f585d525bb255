"""An account: one private corpus, one protection, one cap, one composition rule, fixed from the start.

The terms are written twice: as a row, and inside the hash-chained `create` entry that `verify` compares the row with.
Accounts of one corpus carry the same corpus label and form a group. A run that is private only selectively, or only
token by token, is a non-private run for the central accounts of its group, and is recorded there as such.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, bindparam, insert, select

from rayprivacy.core.errors import ConfigError, LedgerError
from rayprivacy.core.units import AccountKind, Budget, NeighbouringRelation, PrivacyUnit, Protection
from rayprivacy.ledger.rows import Query, decoding
from rayprivacy.ledger.schema import accounts

_BY_NAME = Query(select(accounts).where(accounts.c.name == bindparam("name")))
_ALL = Query(select(accounts).order_by(accounts.c.name))
_INSERT = Query(insert(accounts))


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
        kind: what the guarantee means.
        corpus: label shared by the accounts of one corpus; empty for an account that stands alone.
        parameters: what the rule fixes besides (the RDP order, the weighted orders) and the name of a selective policy.
    """

    name: str
    unit: PrivacyUnit
    relation: NeighbouringRelation
    epsilon: float
    delta: float
    composition: str
    created_at: str = ""
    kind: AccountKind = AccountKind.CENTRAL
    corpus: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)

    @property
    def budget(self) -> Budget:
        """The cap as a budget."""
        return Budget(self.epsilon, self.delta)

    @property
    def protection(self) -> Protection:
        """What its epsilon is about."""
        return Protection(self.unit, self.relation, self.kind)

    @property
    def terms(self) -> dict[str, Any]:
        """What is fixed, as JSON values."""
        return {
            "unit": self.unit.value,
            "relation": self.relation.value,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "composition": self.composition,
            "kind": self.kind.value,
            "corpus": self.corpus,
            "parameters": self.parameters,
        }


def find_account(connection: Connection, name: str) -> Account | None:
    """The account of this name."""
    row = _BY_NAME.first(connection, name=name)
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
    return [_account(row) for row in _ALL.rows(connection)]


def group_of(connection: Connection, account: Account) -> list[Account]:
    """The other accounts of the same corpus."""
    if not account.corpus:
        return []
    return [a for a in all_accounts(connection) if a.corpus == account.corpus and a.name != account.name]


def insert_account(connection: Connection, account: Account) -> None:
    """Write the row of a new account.

    Raises:
        LedgerError: the name is taken.
    """
    if find_account(connection, account.name) is not None:
        raise LedgerError(f"the account '{account.name}' exists: choose another name, or use it as it is.")
    row = account.terms | {"parameters": json.dumps(account.parameters, sort_keys=True)}
    _INSERT.run(connection, name=account.name, created_at=account.created_at, **row)


def check_terms(account: Account) -> None:
    """Require a name, a label and a kind that an account can have.

    Raises:
        LedgerError: a name is empty or too long.
        ConfigError: kind and composition do not go together, or a selective account names no policy.
    """
    for what, text, least in (("account name", account.name, 1), ("corpus label", account.corpus, 0)):
        if not least <= len(text) <= 200 or not text.isprintable():
            raise LedgerError(f"the {what} has {len(text)} characters: give {least} to 200 printable ones.")
    metric = account.kind is AccountKind.METRIC_LOCAL
    if metric != (account.composition == "metric"):
        raise ConfigError(
            f"privacy.composition is '{account.composition}' for an account of kind '{account.kind}':"
            " use 'metric' for metric-local accounts, and for no others."
        )
    if (account.kind is AccountKind.SELECTIVE) != ("policy" in account.parameters):
        raise ConfigError(f"an account of kind '{account.kind}' names its policy if it is selective, and only then.")


def check_same_meaning(found: Account, wanted: Account) -> Account:
    """Return the existing account; its cap may differ from what is wanted, its meaning may not.

    Raises:
        LedgerError: unit, relation, kind, composition, corpus, or the policy of a selective account differ.
    """
    for field_ in ("unit", "relation", "kind", "composition", "corpus"):
        have, want = getattr(found, field_), getattr(wanted, field_)
        if have != want:
            raise LedgerError(
                f"privacy.{field_} is '{want}' and account '{found.name}' was created with '{have}':"
                " use that, or another account."
            )
    policies = [account.parameters.get("policy") for account in (found, wanted)]
    if policies[0] != policies[1]:
        raise LedgerError(
            f"the run's policy is '{policies[1]}' and account '{found.name}' was created with '{policies[0]}', which"
            " protects other text: use that, or another account."
        )
    return found


def check_protection(account: Account, protection: Protection) -> None:
    """Require that a charge is about what the account is about.

    Raises:
        LedgerError: unit, relation or kind differ: epsilons of different protections do not add.
    """
    if account.protection != protection:
        raise LedgerError(
            f"the release protects {protection} and account '{account.name}' is kept for {account.protection}:"
            " charge an account of the same unit, relation and kind."
        )


def central(group: Iterable[Account]) -> list[Account]:
    """The central accounts of a group."""
    return [account for account in group if account.kind is AccountKind.CENTRAL]


def _account(row: Any) -> Account:
    values = dict(zip(accounts.columns.keys(), row, strict=True))
    with decoding("the row of an account"):
        if not all(isinstance(values[name], str) for name in ("name", "composition", "corpus", "created_at")):
            raise TypeError
        values["unit"] = PrivacyUnit(values["unit"])
        values["relation"] = NeighbouringRelation(values["relation"])
        values["kind"] = AccountKind(values["kind"])
        values["parameters"] = dict(json.loads(values["parameters"]))
        values["epsilon"] = float(values["epsilon"])
        values["delta"] = float(values["delta"])
    return Account(**values)
