"""Claims that do not hold, or may not, because of what versions before 0.6.0 did not look at.

- SanText let the length of a text hang on its words, so that its epsilon did not bound what left. A metric-local charge
  of that time is known by its place: it stands before its account says which words it protects.
- A metric-local account added epsilons of several lists of protected words, and claimed the sum for all of them.
- No account said which columns mean its unit, so that recipes with another "user" could share one. Whether they did
  cannot be told from the book.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rayprivacy.ledger.audit.events import read_leaves
from rayprivacy.ledger.audit.rows import Row
from rayprivacy.ledger.audit.terms import CENTRAL, METRIC


@dataclass
class _Release:
    """What is known of the charges of one release that were not cancelled.

    Attributes:
        lists: the lists of words that they protect; an empty name for all words.
        has_words, has_unit: whether the account said, when they were reserved, which words and which columns count.
    """

    lists: frozenset[str]
    has_words: bool
    has_unit: bool


@dataclass
class _Account:
    name: str
    kind: str
    unit: str
    said: dict[str, Any]
    charges: dict[str, tuple[str, _Release]] = field(default_factory=dict)


def doubts(entries: list[Row]) -> tuple[str, ...]:
    """Sentences on a book that replays; none where each account said what it protects before it was charged."""
    accounts: dict[str, _Account] = {}
    for row in entries:
        if row["kind"] == "create":
            terms = {"kind": CENTRAL, "parameters": {}} | json.loads(row["detail"])
            accounts[row["account"]] = _Account(row["account"], terms["kind"], terms["unit"], dict(terms["parameters"]))
        account = accounts[row["account"]]
        if row["kind"] == "meaning":
            account.said |= json.loads(row["detail"])
        elif row["kind"] == "reserve":
            lists = _lists(row) if account.kind == METRIC else frozenset[str]()
            release = _Release(lists, "protected" in account.said, "of" in account.said)
            account.charges[row["charge"]] = row["release_id"], release
        elif row["kind"] == "cancel":
            del account.charges[row["charge"]]
    return tuple(sentence for account in accounts.values() for sentence in _of(account))


def _of(account: _Account) -> Iterator[str]:
    name, charges = f"account '{account.name}'", account.charges.values()
    if account.kind == METRIC:
        for release in dict.fromkeys(release for release, charge in charges if not charge.has_words):
            yield (
                f"release '{release}' of {name} was made before 0.6.0 kept lengths apart from words: its epsilon does"
                " not hold, so make it again."
            )
        lists = sorted(set().union(*(charge.lists for _, charge in charges)))
        if len(lists) > 1:
            shown = " and ".join(f"the words of list {each[:16]}" if each else "all words" for each in lists)
            yield (
                f"{name} has admitted releases that protect {shown}: these epsilons do not add, and its claim does not"
                " hold, so make them again, each kind in an account of its own."
            )
    older = dict.fromkeys(release for release, charge in charges if not charge.has_unit)
    if older:
        of = account.said.get("of")
        meaning = f"said that its unit is '{of}'" if of else f"says which columns mean its unit, {account.unit}"
        yield (
            f"{name} has releases from before it {meaning} ({len(older)} of them): if their recipes named different"
            " columns, its claim does not hold."
        )


def _lists(row: Row) -> frozenset[str]:
    """The list of protected words of one charge, as a set of one."""
    found = {str(leaf.facts.get("sensitive", "")) for leaf, _ in read_leaves(row["events"], f"entry {row['seq']}")}
    return frozenset(found - {""} or {""})
