"""What a book claims after each entry, kept anew while it is replayed: sums, states of charges, exposures.

A charge moves as a charge can, under one identity, with a fencing token:

    reserve -> start -> (renew | takeover)* -> commit         reserve -> cancel

At most one live charge pays for one (account, release, input, rung), and a later rung needs the one before it alive. A
started charge is held under a token; a takeover raises it by one, and only the newest token may commit, so that of two
processes that both drew, one output is refused.

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
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from rayprivacy.ledger.audit import rows
from rayprivacy.ledger.audit.prices import read_leaves
from rayprivacy.ledger.audit.rows import Row
from rayprivacy.ledger.audit.rules import PlanRule, Rule, SumRule, Vector, read_plan
from rayprivacy.ledger.audit.terms import CENTRAL, METRIC, Terms

COUNTED = ("reserved", "started", "committed")
_NEXT = {
    ("reserved", "start"): "started",
    ("reserved", "cancel"): "cancelled",
    ("started", "renew"): "started",
    ("started", "takeover"): "started",
    ("started", "commit"): "committed",
}

Identity = tuple[str, str, str, int]  # account, release, input and rung
_Rung = tuple[str, str, str, int]  # corpus, release, input and rung


class AccountBook:
    """One account: what it promised, and the `sums` of its charges by state, as exact integers."""

    def __init__(self, terms: Terms, where: str) -> None:
        self.terms = terms
        self.rule: Rule = PlanRule() if terms.composition == "pld" else SumRule(terms, where)
        self.sums = {state: [0] * self.rule.size for state in COUNTED}
        self._has_charges = False

    @property
    def live(self) -> Vector:
        """What counts against the cap: reserved, started and committed together."""
        return tuple(map(sum, zip(*self.sums.values(), strict=True)))

    def register_plan(self, row: Row, where: str) -> None:
        """Take the plan of a pld account: the last one that comes before anything is charged."""
        if self.terms.composition != "pld" or self._has_charges:
            rows.fail(where, "registers a plan that the account cannot take")
        self.rule = read_plan(row, self.terms, where)
        self.sums = {state: [0] * self.rule.size for state in COUNTED}

    def reserve(self, row: Row, where: str) -> Vector:
        """Check the cost of a new charge, count it, and require that the cap holds with it."""
        cost = tuple(rows.amounts(rows.parse(row["cost"], where, "cost"), where, "cost"))
        self.rule.check_cost(row["events"], cost, where)
        self._check_words(row["events"], where)
        self._has_charges = True
        self.move(cost, "", "reserved")
        if not self.rule.fits(self.live):
            rows.fail(where, f"exceeds the cap of account {self.terms.name!r}")
        return cost

    def move(self, cost: Vector, before: str, after: str) -> None:
        """Take a cost from one state to another; what is cancelled, or not reserved yet, is in none."""
        for state, sign in ((before, -1), (after, 1)):
            if state in self.sums:
                self.sums[state] = [have + sign * part for have, part in zip(self.sums[state], cost, strict=True)]

    def check_balance(self, row: Row, where: str) -> None:
        """Compare the entry's balance with the sums."""
        claimed = rows.read_mapping(row, "balance", set(COUNTED), where)
        if any(rows.amounts(claimed[state], where, "balance") != self.sums[state] for state in COUNTED):
            rows.fail(where, "claims a balance that is not the sum of its charges")

    def _check_words(self, events: str, where: str) -> None:
        """A metric-local account adds epsilons of one list of protected words, and says which before it is charged."""
        if self.terms.kind == METRIC:
            lists = {leaf.facts.get("sensitive", "") for leaf, _ in read_leaves(events, where)}
            if (lists - {""} or {""}) != {self.terms.meaning.get("protected")}:
                rows.fail(where, f"protects other words than account {self.terms.name!r}")


@dataclass
class Charge:
    """What is known of a charge so far: who may commit it (`token`, `holder`), and the digest of its `output`."""

    identity: Identity
    cost: Vector
    state: str = "reserved"
    token: int = 0
    holder: str = ""
    output: str = ""


class Charges:
    """All charges of the book, by their ids."""

    def __init__(self) -> None:
        self.by_id: dict[str, Charge] = {}
        self._live: set[Identity] = set()

    def reserve(self, row: Row, cost: Vector, where: str) -> Charge:
        """Add a charge that nothing pays for yet."""
        identity = _identity(row)
        account, release_id, input_digest, rung = identity
        if not row["charge"] or not release_id or not input_digest or row["charge"] in self.by_id:
            rows.fail(where, "reserves under a name that is empty or taken")
        if identity in self._live:
            rows.fail(where, "charges one release and input twice")
        if rung > 1 and (account, release_id, input_digest, rung - 1) not in self._live:
            rows.fail(where, f"reserves rung {rung} of a release whose rung {rung - 1} is not there")
        self._live.add(identity)
        self.by_id[row["charge"]] = charge = Charge(identity, cost)
        return charge

    def advance(self, row: Row, where: str) -> tuple[Charge, str]:
        """Move a charge on; returns it with the state it was in."""
        charge, kind = self.by_id.get(row["charge"]), row["kind"]
        if charge is None or (charge.state, kind) not in _NEXT:
            rows.fail(where, f"cannot {kind} in this state")
        if charge.identity != _identity(row):
            rows.fail(where, "names another release than its charge")
        before, charge.state = charge.state, _NEXT[charge.state, kind]
        if kind == "cancel":
            self._live.discard(charge.identity)
        elif kind == "commit":
            _commit(charge, row, where)
        else:
            _lease(charge, row, where)
        return charge, before


def _identity(row: Row) -> Identity:
    return row["account"], row["release_id"], row["input_digest"], row["rung"]


def _lease(charge: Charge, row: Row, where: str) -> None:
    lease = rows.read_mapping(row, "detail", {"token", "holder", "until"}, where)
    token = rows.whole(lease["token"], 0, rows.MAX_COUNT, where, "detail")
    holder, until = (rows.text(lease[key], where, "detail") for key in ("holder", "until"))
    try:
        datetime.fromisoformat(until)
    except ValueError:
        rows.fail(where, "holds no time in detail")
    renewed = row["kind"] == "renew"
    if token != charge.token + (not renewed) or (renewed and holder != charge.holder):
        rows.fail(where, "holds a token that does not follow the one before")
    charge.token, charge.holder = token, holder


def _commit(charge: Charge, row: Row, where: str) -> None:
    detail = rows.read_mapping(row, "detail", {"output_digest", "token"}, where)
    if rows.whole(detail["token"], 0, rows.MAX_COUNT, where, "detail") != charge.token:
        rows.fail(where, "commits with a token that was taken over")
    charge.output = rows.digest(detail["output_digest"], where, "detail")


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
    """Which exposures are due, and which will be when another account is opened or says what it means."""

    def __init__(self, books: Mapping[str, AccountBook]) -> None:
        self._books = books  # every account by name; the walk adds to them
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
        detail = rows.read_mapping(row, "detail", {"account", "kind"}, where)
        account, kind = (rows.text(detail[key], where, "detail") for key in ("account", "kind"))
        exposure = _Exposure(row["account"], row["release_id"], row["input_digest"], account, kind)
        waiting = self._due if self._due[exposure] else self._may
        if rows.parse(row["events"], where, "events") != {"kind": "non-private"} or not waiting[exposure]:
            rows.fail(where, "records an exposure that no charge calls for")
        waiting.subtract([exposure])
        self._due, self._may = +self._due, +self._may

    def check_none_due(self, where: str) -> None:
        """Nothing else may come, and the book may not end, while an exposure is due."""
        if self._due:
            account = json.dumps(next(iter(self._due)).exposed)
            rows.fail(where, f"comes where an exposure entry of account {account} is due")
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
    policies = charged.parameters.get("policy"), exposed.parameters.get("policy")
    return policies[0] != policies[1] or _differ(charged.meaning, exposed.meaning)


def _differ(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether two meanings contradict each other; what one of them leaves open is not compared."""
    return any(name in other and other[name] != value for name, value in one.items())


def _rung(terms: Terms, row: Row) -> _Rung:
    return terms.corpus, row["release_id"], row["input_digest"], row["rung"]
