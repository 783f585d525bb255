"""What one account of a corpus tells the others: a run that does not protect what they protect is recorded there.

A selective or metric-local charge gives no central guarantee, and a charge of an account that means another thing
(other columns behind its unit, other words, another policy) gives none for this one. So every account of the same
corpus for which a charge is a non-private run must hold an `exposure` entry for it: right after the reserve, or right
after the account was opened, or said what it means, when the charge came first. The entries between are in no fixed
order, but nothing else may come before they are complete.

There is none where a central account of the corpus pays for the same rung of the same release, by a charge that had
started before the other one was reserved and that took at least what the event costs there: whatever was drawn has a
central epsilon too. Where that hangs on the rounding of a price, an exposure may be there or not.
"""

import json
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from rayprivacy.ledger.audit import strict
from rayprivacy.ledger.audit.book import AccountBook
from rayprivacy.ledger.audit.rows import Row
from rayprivacy.ledger.audit.rules import Vector
from rayprivacy.ledger.audit.terms import CENTRAL, METRIC, Terms

_NON_PRIVATE = {"kind": "non-private"}
_Rung = tuple[str, str, str, int]


class _Exposure(NamedTuple):
    exposed: str
    release_id: str
    input_digest: str
    account: str
    kind: str


class _Charge(NamedTuple):
    """A live charge; of the central accounts that pay for its rung, whether that is for sure or hangs on rounding."""

    release_id: str
    input_digest: str
    payers: Mapping[str, bool]


class Exposures:
    """Which exposures are due, and which will be when another account is opened or says what it means.

    `books` holds every account by name; the walk adds to them.
    """

    def __init__(self, books: Mapping[str, AccountBook]) -> None:
        self._books = books
        self._groups: dict[str, list[str]] = {}  # names of accounts by corpus
        self._due: Counter[_Exposure] = Counter()
        self._may: Counter[_Exposure] = Counter()
        self._charges: dict[str, dict[str, _Charge]] = {}
        self._started: dict[_Rung, list[tuple[str, Vector]]] = {}

    def opened(self, terms: Terms, before: Terms | None = None) -> None:
        """An account is new, or says more than before: what its corpus was exposed to already is due."""
        if terms.corpus and before is None:
            self._groups.setdefault(terms.corpus, []).append(terms.name)
        for other in self._others(terms):
            for charged, exposed in ((other, terms), (terms, other)):
                was = before and _exposes(*(before if each is terms else each for each in (charged, exposed)))
                if _exposes(charged, exposed) and not was:
                    for charge in self._charges.get(charged.name, {}).values():
                        self._call(charged, exposed, charge)

    def reserved(self, terms: Terms, row: Row, where: str) -> None:
        """A new charge: one exposure is due in each account of the corpus that it does not protect."""
        if not terms.corpus:
            return
        paying = [each for each in self._started.get(_rung(terms, row), []) if each[0] != terms.name]
        verdicts = {name: self._books[name].rule.pays(row["events"], cost, where) for name, cost in paying}
        payers = {name: sure is True for name, sure in verdicts.items() if sure is not False}
        charge = _Charge(row["release_id"], row["input_digest"], payers)
        self._charges.setdefault(terms.name, {})[row["charge"]] = charge
        for other in self._others(terms):
            if _exposes(terms, other):
                self._call(terms, other, charge)

    def started(self, terms: Terms, row: Row, cost: Vector) -> None:
        """A charge has started, and cannot be taken back: a central one pays for its rung of the release."""
        if terms.kind == CENTRAL and terms.corpus:
            self._started.setdefault(_rung(terms, row), []).append((terms.name, cost))

    def cancelled(self, terms: Terms, row: Row) -> None:
        """A charge that will not run exposes no account opened from now on."""
        self._charges.get(terms.name, {}).pop(row["charge"], None)

    def recorded(self, row: Row, where: str) -> None:
        """An exposure entry: it must be due."""
        detail = strict.mapping(strict.parse(row["detail"], where, "detail"), {"account", "kind"}, where, "detail")
        account, kind = (strict.text(detail[key], where, "detail") for key in ("account", "kind"))
        exposure = _Exposure(row["account"], row["release_id"], row["input_digest"], account, kind)
        waiting = self._due if self._due[exposure] else self._may
        if strict.parse(row["events"], where, "events") != _NON_PRIVATE or not waiting[exposure]:
            strict.fail(where, "records an exposure that no charge calls for")
        waiting.subtract([exposure])
        self._due, self._may = +self._due, +self._may

    def check_none_due(self, where: str) -> None:
        """Nothing else may come, and the book may not end, while an exposure is due."""
        if self._due:
            account = json.dumps(next(iter(self._due)).exposed)
            strict.fail(where, f"comes where an exposure entry of account {account} is due")
        self._may.clear()

    def _others(self, terms: Terms) -> list[Terms]:
        return [self._books[name].terms for name in self._groups.get(terms.corpus, []) if name != terms.name]

    def _call(self, charged: Terms, exposed: Terms, charge: _Charge) -> None:
        """Count one exposure as due, as possible, or as neither where the charge is paid for in central terms."""
        paid = [
            sure
            for name, sure in charge.payers.items()
            if exposed.kind != METRIC and not _differ(self._books[name].terms.meaning, exposed.meaning)
        ]
        if not any(paid):
            called = self._may if paid else self._due
            called[_Exposure(exposed.name, charge.release_id, charge.input_digest, charged.name, charged.kind)] += 1


def _exposes(charged: Terms, exposed: Terms) -> bool:
    if charged.kind != exposed.kind:
        return exposed.kind == CENTRAL
    return charged.policy != exposed.policy or _differ(charged.meaning, exposed.meaning)


def _differ(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether two meanings contradict each other; what one of them leaves open is not compared."""
    return any(name in other and other[name] != value for name, value in one.items())


def _rung(terms: Terms, row: Row) -> _Rung:
    return terms.corpus, row["release_id"], row["input_digest"], row["rung"]
