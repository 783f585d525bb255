"""What one account of a corpus tells the others: a run that is private only selectively is recorded where it is not.

A selective or metric-local charge gives no central guarantee, so every central account of the same corpus must hold an
`exposure` entry for it: right after the reserve, or right after the account is opened when the charge came first. The
entries between are in no fixed order, but nothing else may come before they are complete.

There is none where a central account of the corpus pays for the same rung of the same release, by a charge that had
started before the other one was reserved: whatever was drawn has a central epsilon too.
"""

import json
from collections import Counter
from typing import NamedTuple

from rayprivacy.ledger.audit import strict
from rayprivacy.ledger.audit.rows import Row
from rayprivacy.ledger.audit.terms import CENTRAL, Terms

_NON_PRIVATE = {"kind": "non-private"}


class _Exposure(NamedTuple):
    central: str
    release_id: str
    input_digest: str
    account: str
    kind: str


class Exposures:
    """Which exposures are due, and which will be when another central account is opened."""

    def __init__(self) -> None:
        self._due: Counter[_Exposure] = Counter()
        self._centrals: dict[str, list[str]] = {}
        self._charges: dict[str, dict[str, tuple[str, str, str, str]]] = {}
        self._paid: set[tuple[str, str, str, int]] = set()

    def opened(self, terms: Terms) -> None:
        """A new account: what its corpus was exposed to already is due."""
        if terms.kind == CENTRAL and terms.corpus:
            self._centrals.setdefault(terms.corpus, []).append(terms.name)
            self._due.update(_Exposure(terms.name, *known) for known in self._charges.get(terms.corpus, {}).values())

    def reserved(self, terms: Terms, row: Row) -> None:
        """A new charge: when it is not central, one exposure is due in each central account of the corpus."""
        if terms.kind != CENTRAL and terms.corpus and _rung(terms, row) not in self._paid:
            known = (row["release_id"], row["input_digest"], terms.name, terms.kind)
            self._charges.setdefault(terms.corpus, {})[row["charge"]] = known
            self._due.update(_Exposure(central, *known) for central in self._centrals.get(terms.corpus, []))

    def started(self, terms: Terms, row: Row) -> None:
        """A charge has started, and cannot be taken back: a central one pays for its rung of the release."""
        if terms.kind == CENTRAL:
            self._paid.add(_rung(terms, row))

    def cancelled(self, terms: Terms, row: Row) -> None:
        """A charge that will not run exposes no account opened from now on."""
        self._charges.get(terms.corpus, {}).pop(row["charge"], None)

    def recorded(self, row: Row, where: str) -> None:
        """An exposure entry: it must be due."""
        detail = strict.mapping(strict.parse(row["detail"], where, "detail"), {"account", "kind"}, where, "detail")
        account, kind = (strict.text(detail[key], where, "detail") for key in ("account", "kind"))
        exposure = _Exposure(row["account"], row["release_id"], row["input_digest"], account, kind)
        if strict.parse(row["events"], where, "events") != _NON_PRIVATE or not self._due[exposure]:
            strict.fail(where, "records an exposure that no charge calls for")
        self._due -= Counter([exposure])

    def check_none_due(self, where: str) -> None:
        """Nothing else may come, and the book may not end, while an exposure is due."""
        if self._due:
            account = json.dumps(next(iter(self._due)).central)
            strict.fail(where, f"comes where an exposure entry of account {account} is due")


def _rung(terms: Terms, row: Row) -> tuple[str, str, str, int]:
    return terms.corpus, row["release_id"], row["input_digest"], row["rung"]
