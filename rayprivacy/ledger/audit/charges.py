"""Charges while the book is replayed: each moves as a charge can, under one identity, with a fencing token.

    reserve -> start -> (renew | takeover)* -> commit         reserve -> cancel

At most one live charge pays for one (account, release, input, rung), and a later rung needs the one before it alive. A
started charge is held under a token; a takeover raises it by one, and only the newest token may commit, so that of two
processes that both drew, one output is refused.
"""

from dataclasses import dataclass
from datetime import datetime

from rayprivacy.ledger.audit import strict
from rayprivacy.ledger.audit.rows import Row
from rayprivacy.ledger.audit.rules import Vector

_NEXT = {
    ("reserved", "start"): "started",
    ("reserved", "cancel"): "cancelled",
    ("started", "renew"): "started",
    ("started", "takeover"): "started",
    ("started", "commit"): "committed",
}

Identity = tuple[str, str, str, int]


@dataclass
class Charge:
    """What is known of a charge so far.

    Attributes:
        identity: account, release, input and rung.
        cost: what it takes from the account.
        state: reserved, started, committed or cancelled.
        token, holder: who may commit.
        output: digest of what was committed.
    """

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
            strict.fail(where, "reserves under a name that is empty or taken")
        if identity in self._live:
            strict.fail(where, "charges one release and input twice")
        if rung > 1 and (account, release_id, input_digest, rung - 1) not in self._live:
            strict.fail(where, f"reserves rung {rung} of a release whose rung {rung - 1} is not there")
        self._live.add(identity)
        self.by_id[row["charge"]] = charge = Charge(identity, cost)
        return charge

    def advance(self, row: Row, where: str) -> tuple[Charge, str]:
        """Move a charge on; returns it with the state it was in."""
        charge, kind = self.by_id.get(row["charge"]), row["kind"]
        if charge is None or (charge.state, kind) not in _NEXT:
            strict.fail(where, f"cannot {kind} in this state")
        if charge.identity != _identity(row):
            strict.fail(where, "names another release than its charge")
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
    lease = strict.mapping(strict.parse(row["detail"], where, "detail"), {"token", "holder", "until"}, where, "detail")
    token = strict.whole(lease["token"], 0, strict.MAX_COUNT, where, "detail")
    holder, until = (strict.text(lease[key], where, "detail") for key in ("holder", "until"))
    try:
        datetime.fromisoformat(until)
    except ValueError:
        strict.fail(where, "holds no time in detail")
    renewed = row["kind"] == "renew"
    if token != charge.token + (not renewed) or (renewed and holder != charge.holder):
        strict.fail(where, "holds a token that does not follow the one before")
    charge.token, charge.holder = token, holder


def _commit(charge: Charge, row: Row, where: str) -> None:
    keys = {"output_digest", "token"}
    detail = strict.mapping(strict.parse(row["detail"], where, "detail"), keys, where, "detail")
    if strict.whole(detail["token"], 0, strict.MAX_COUNT, where, "detail") != charge.token:
        strict.fail(where, "commits with a token that was taken over")
    charge.output = strict.digest(detail["output_digest"], where, "detail")
