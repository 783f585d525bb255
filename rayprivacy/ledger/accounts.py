"""An account: one private corpus, one protection, one cap, one composition rule, fixed from the start.

The terms are written twice: as a row, and inside the hash-chained `create` entry that `verify` compares the row with.
What an account protects is one of them (`MEANING`): which columns mean its unit, and which words. An account that was
opened without takes it from its next release, by a `meaning` entry in the chain.
A run that does not protect what another account of the corpus protects is recorded there (see `opening`).
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dp_accounting.dp_event import DpEvent
from sqlalchemy import Connection, insert

from rayprivacy.accounting.events import protected_by
from rayprivacy.core.errors import ConfigError, LedgerError
from rayprivacy.core.names import spelled
from rayprivacy.core.units import AccountKind, Budget, NeighbouringRelation, PrivacyUnit, Protection
from rayprivacy.ledger.book import Query, Values, accounts, decoding, find, read

_INSERT = Query(insert(accounts))
MEANING = ("of", "protected")  # parameters that say who or what is protected, and may be said by the first release
MOST_OF = 2000  # characters; it is read by people
_DIGEST = re.compile(r"[0-9a-f]{64}|")
_TYPES: dict[str, Callable[[Any], Any]] = {
    "unit": PrivacyUnit,
    "relation": NeighbouringRelation,
    "kind": AccountKind,
    "epsilon": float,
    "delta": float,
}


@dataclass(frozen=True)
class Account:
    """The terms of one account; `epsilon` and `delta` are its cap, which is its claim; a corpus's share the label
    `corpus`.

    `parameters` are what the rule fixes besides (the RDP order), the policy of a selective account, and the meaning:
    `of`, which columns mean the unit, and `protected`, the digest of a metric-local account's list of protected words,
    empty for all. `later` are those that a release fixed after the account was opened.
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
    later: frozenset[str] = frozenset()

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
        """What was fixed when it was opened, as JSON values."""
        return {
            "unit": self.unit.value,
            "relation": self.relation.value,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "composition": self.composition,
            "kind": self.kind.value,
            "corpus": self.corpus,
            "parameters": {name: value for name, value in self.parameters.items() if name not in self.later},
        }

    @property
    def meaning(self) -> dict[str, str]:
        """What it says about who or what is protected, beside unit, relation and kind."""
        return {name: self.parameters[name] for name in MEANING if name in self.parameters}


def find_account(connection: Connection, name: str) -> Account | None:
    """The account of this name."""
    return next(iter(find_accounts(connection, name=name)), None)


def get_account(connection: Connection, name: str) -> Account:
    """The account of this name; LedgerError when there is none, naming those there are."""
    found = find_account(connection, name)
    if found is None:
        known = ", ".join(account.name for account in find_accounts(connection)) or "none"
        raise LedgerError(f"privacy.account is '{name}' and the ledger holds {known}: create it, or use one of these.")
    return found


def find_accounts(connection: Connection, **values: str) -> list[Account]:
    """The accounts with these values in their rows, by name; all of them when none are given."""
    found = (_account(connection, row) for row in find(connection, accounts, **values))
    return sorted(found, key=lambda account: account.name)


def group_of(connection: Connection, account: Account) -> list[Account]:
    """The other accounts of the same corpus, by name."""
    if not account.corpus:
        return []
    return [other for other in find_accounts(connection, corpus=account.corpus) if other.name != account.name]


def insert_account(connection: Connection, account: Account) -> None:
    """Write the row of a new account; LedgerError when the name is taken."""
    if find_account(connection, account.name) is not None:
        raise LedgerError(f"the account '{account.name}' exists: choose another name, or use it as it is.")
    row = account.terms | {"parameters": json.dumps(account.parameters, sort_keys=True)}
    _INSERT.run(connection, name=account.name, created_at=account.created_at, **row)


def check_terms(account: Account) -> None:
    """Require a name, a label, a kind and a meaning that an account of this unit and composition can have."""
    for what, text, least in (("account name", account.name, 1), ("corpus label", account.corpus, 0)):
        if not least <= len(text) <= 200 or not text.isprintable():
            raise LedgerError(f"the {what} has {len(text)} characters: give {least} to 200 printable ones.")
        if spelled(text) != text:
            raise LedgerError(
                f"the {what} is {text!a}, and one that looks the same is {spelled(text)!a}: write it as that."
            )
    metric = account.kind is AccountKind.METRIC_LOCAL
    if metric != (account.composition == "metric"):
        raise ConfigError(
            f"privacy.composition is '{account.composition}' for an account of kind '{account.kind}':"
            " use 'metric' for metric-local accounts, and for no others."
        )
    if (account.kind is AccountKind.SELECTIVE) != ("policy" in account.parameters):
        raise ConfigError(f"an account of kind '{account.kind}' names its policy if it is selective, and only then.")
    of, protected = account.parameters.get("of"), account.parameters.get("protected")
    if of is not None and not (of.startswith(f"{account.unit}: ") and len(of) <= MOST_OF and of.isprintable()):
        raise ConfigError(
            f"the meaning of the unit is {of[:80]!r}, and the account is kept for unit '{account.unit}': write"
            f" '{account.unit}: ' and the columns that name one, e.g. 'user: author'."
        )
    if protected is not None and not (metric and _DIGEST.fullmatch(protected)):
        raise ConfigError(
            f"protected is {protected[:80]!r}: give a metric-local account the digest of its list of protected words,"
            " or '' for all words, and no other account any."
        )


def check_same_meaning(found: Account, wanted: Account) -> Account:
    """Return the existing account; its cap may differ from that of the wanted one, but not what it is about."""
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
    _check_said(found, wanted.meaning)
    return found


def _check_said(found: Account, wanted: Mapping[str, str]) -> None:
    for name, have in found.meaning.items():
        if wanted.get(name, have) != have:
            raise LedgerError(
                f"the run is about {_shown(name, wanted[name])} and account '{found.name}' is kept for"
                f" {_shown(name, have)}: epsilons of the two do not add, so give the run an account of its own"
                " (privacy.account), with the same privacy.corpus."
            )


def with_meaning(found: Account, wanted: Mapping[str, str]) -> Account:
    """The account with the meaning that it lacked; refused when it has another one, or cannot have this one."""
    _check_said(found, wanted)
    new = {name: value for name, value in wanted.items() if name not in found.parameters}
    complete = replace(found, parameters=found.parameters | new, later=found.later | set(new))
    check_terms(complete)
    return complete


def _shown(name: str, value: str) -> str:
    return f"'{value}'" if name == "of" else words_named(value)


def check_protection(account: Account, protection: Protection) -> None:
    """Require that a charge is about the account's unit, relation and kind: other epsilons do not add."""
    if account.protection != protection:
        raise LedgerError(
            f"the release protects {protection} and account '{account.name}' is kept for {account.protection}:"
            " charge an account of the same unit, relation and kind."
        )


def check_words(account: Account, event: DpEvent) -> None:
    """Require that a charge of a metric-local account protects the same words, else the two epsilons would not add."""
    wanted, found = account.meaning.get("protected"), protected_by(event)
    if wanted is not None and wanted != found:
        raise LedgerError(
            f"the release protects {words_named(found)} and account '{account.name}' is kept for {words_named(wanted)}:"
            " charge another metric-local account of the same corpus, because the two epsilons do not add."
        )


def _account(connection: Connection, values: Values) -> Account:
    with decoding("the row of an account"):
        if not all(isinstance(values[name], str) for name in ("name", "composition", "corpus", "created_at")):
            raise TypeError
        for name, kind in _TYPES.items():
            values[name] = kind(values[name])
        values["parameters"] = dict(json.loads(values["parameters"]))
        later: dict[str, str] = {}
        # Entries without a release are few, and have an index: those of charges are not walked.
        for entry in read(connection, account=values["name"], release_id="", kind="meaning"):
            later |= {name: str(value) for name, value in entry.facts.items()}
        values["parameters"] |= later
    return Account(**values, later=frozenset(later))


def unit_named(of: str) -> str:
    """What one unit is; `of` is the term of the account, in which what of the unit is protected follows a semicolon.

    >>> unit_named("user: author")
    "users, by column 'author'"
    >>> unit_named("record: user, text, topic")
    "records, by columns 'user, text, topic'"
    """
    unit, _, rest = of.partition(": ")
    columns, _, what = rest.partition("; ")
    if unit == PrivacyUnit.PHRASE:
        named = f"phrases of {columns}"
    else:
        named = f"{unit}s, by column{'s' * (', ' in columns)} '{columns}'"
    return f"{named}; {what}" if what else named


def words_named(protected: str) -> str:
    """Which words a metric-local account protects; `protected` is the term of the account."""
    return f"the words of list {protected[:16]}" if protected else "all words"
