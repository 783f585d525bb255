"""A charge and its life: reserved -> started -> committed, or cancelled before it started.

A charge is identified by (account, release id, input digest, rung). Its state is never stored: it is read off the
entries, so that state and entries cannot disagree. There is no way back after `start`: from then on noise may have been
drawn. A long release may be charged in chunks, *rungs* 1, 2, 3, ..., each reserved before it runs; rung 0 is a release
charged as a whole.

A started charge belongs to one process by a *lease*. Two processes may resume the same release: the one that starts
the charge gets token 1 and a term; meanwhile others wait. When the term is over, or when the holder is known to be
dead, another takes the charge over with the next token, and the ledger accepts no output under an older one. Clocks
decide how long one waits, never whose output counts.

The charge of a search among a secret number of trials (`RepeatAndSelectDpEvent`) is drawn for as long as its trials
take, and how long that is must not be read off the ledger. So its term is a day, it is renewed once a day at most, and
all its entries carry the time at which the current day began, counted in days from its start.
"""

import json
import operator
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from pathlib import Path

from dp_accounting.dp_event import DpEvent, RepeatAndSelectDpEvent
from sqlalchemy import Connection

from rayprivacy.accounting.events import from_json, to_json
from rayprivacy.core.errors import LeaseHeldError, LedgerError
from rayprivacy.core.private import digest_json
from rayprivacy.ledger.book import Entry, decoding, read
from rayprivacy.ledger.rules import Vector

TERM_SECONDS = 300
DAY_SECONDS = 86_400


@dataclass(frozen=True)
class Lease:
    """The right of a process to draw one charge, `until` a UTC time in ISO 8601; the token is 0 before the start."""

    token: int = 0
    holder: str = ""
    until: str = ""

    @property
    def is_free(self) -> bool:
        """Whether no process is known to be drawing: the term is over, or the holder has died."""
        return self.until <= _now() or _has_died(self.holder)

    @property
    def is_nearly_over(self) -> bool:
        """Whether less than an hour of the term is left."""
        return datetime.fromisoformat(self.until) - datetime.now(UTC) < timedelta(hours=1)

    @property
    def day(self) -> tuple[datetime, datetime]:
        """Begin and end of the current day, counted from the start of a charge whose terms are days."""
        day = timedelta(seconds=DAY_SECONDS)
        end = datetime.fromisoformat(self.until)
        while end <= datetime.now(UTC):
            end += day
        return end - day, end

    def granted(self, holder: str, seconds: float, daily: bool) -> "Lease":
        """The next lease of the charge; where terms are days, for a day, or until the end of one that has begun."""
        until = (_written(self.day[1]) if self.until else _now(DAY_SECONDS)) if daily else _now(seconds)
        return Lease(self.token + 1, holder, until)

    def renewed(self, seconds: float, daily: bool) -> "Lease":
        """The same lease with a new term: until the end of the next day, or of this one where the term was over."""
        if not daily:
            return replace(self, until=_now(seconds))
        end = self.day[1]
        more = timedelta(seconds=DAY_SECONDS if _written(end) == self.until else 0)
        return replace(self, until=_written(end + more))


def this_process() -> str:
    """This process as a holder, told from every other one that ever ran: host and boot, process id, start time."""
    return _name(os.getpid())


@lru_cache(maxsize=1)
def _name(process: int) -> str:
    return f"{_machine()}:{process}:{_started(process)}"


def _has_died(holder: str) -> bool:
    machine, _, process = holder.rpartition(":")[0].rpartition(":")
    if machine != _machine() or not process.isdigit():
        return False  # not known from here
    return f"{machine}:{process}:{_started(int(process))}" != holder


def _machine() -> str:
    """A digest of the machine, since boot: what an auditor gets must not name hosts."""
    parts = [socket.gethostname()]
    for path in (Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")):
        try:
            parts.append(os.readlink(path) if path.is_symlink() else path.read_text().strip())
        except OSError:
            parts.append("unknown")
    return digest_json(parts)[:24]


def _started(process: int) -> str:
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return "gone" if Path("/proc/self").exists() else "unknown"
    fields = text.rpartition(")")[2].split()  # the name in parentheses may hold spaces
    return "gone" if fields[0] in "ZX" else fields[19]


def _now(ahead: float = 0.0) -> str:
    return _written(datetime.now(UTC) + timedelta(seconds=ahead))


def _written(time: datetime) -> str:
    return time.isoformat(timespec="milliseconds")


class ChargeState(StrEnum):
    """How far a charge has come."""

    RESERVED = "reserved"
    STARTED = "started"
    COMMITTED = "committed"
    CANCELLED = "cancelled"


STATE_AFTER = {
    "start": ChargeState.STARTED,
    "renew": ChargeState.STARTED,
    "takeover": ChargeState.STARTED,
    "commit": ChargeState.COMMITTED,
    "cancel": ChargeState.CANCELLED,
}


@dataclass(frozen=True)
class Charge:
    """What one release, or one rung of it, costs an account, in the integers of its rule, and who may draw it."""

    id: str
    account: str
    release_id: str
    input_digest: str
    rung: int
    event: DpEvent
    cost: Vector
    state: ChargeState
    lease: Lease
    entry_hash: str

    @property
    def is_selection(self) -> bool:
        """Whether it pays for a secret number of trials, so that the ledger must not say how long they took."""
        return isinstance(self.event, RepeatAndSelectDpEvent)

    @property
    def shown_time(self) -> str | None:
        """The time that its next entry carries; None for the time at which that is written."""
        if not (self.is_selection and self.lease.until):
            return None
        return self.lease.day[0].isoformat(timespec="seconds")

    @property
    def is_live(self) -> bool:
        """Whether it counts against the budget."""
        return self.state is not ChargeState.CANCELLED


def charge_id(account: str, release_id: str, input_digest: str, rung: int, attempt: int) -> str:
    """The name of a charge; `attempt` counts the cancelled ones before it."""
    return digest_json(["charge", account, release_id, input_digest, attempt, *([rung] if rung else [])])


def read_rungs(connection: Connection, account: str, release_id: str, input_digest: str, rung: int) -> list[Charge]:
    """Every charge of one rung and of the rung before it."""
    where = {"account": account, "release_id": release_id, "input_digest": input_digest}
    return fold(read(connection, **where, rung=(rung - 1, rung)))


def fold(history: Iterable[Entry]) -> list[Charge]:
    """The charges that a list of entries leaves behind, in the order of their reservation."""
    charges: dict[str, Charge] = {}
    for entry in history:
        if entry.charge:
            charges[entry.charge] = advance(charges.get(entry.charge), entry)
    return list(charges.values())


def advance(charge: Charge | None, entry: Entry) -> Charge:
    """The charge after one more entry about it; LedgerError when no such entry can come next."""
    if charge is None and entry.kind == "reserve":
        return _reserved(entry)
    if charge is None or entry.kind not in STATE_AFTER:
        raise LedgerError(f"entry {entry.seq} of the ledger is out of place: run `rayprivacy ledger verify`.")
    with decoding(f"entry {entry.seq}"):
        lease = Lease(**entry.facts) if entry.kind in ("start", "renew", "takeover") else charge.lease
    return replace(charge, state=STATE_AFTER[entry.kind], lease=lease, entry_hash=entry.hash)


def live(found: Iterable[Charge], rung: int) -> Charge | None:
    """The charge of this rung that has not been cancelled."""
    return next((charge for charge in found if charge.rung == rung and charge.is_live), None)


def reload(connection: Connection, charge: Charge) -> Charge:
    """The charge as the ledger has it now; LedgerError when it does not know it."""
    for known in fold(read(connection, charge=charge.id)):
        return known
    raise LedgerError(f"the ledger holds no charge for release '{charge.release_id}': reserve it first.")


def committed_digest(connection: Connection, identity: str) -> str | None:
    """The digest of the output that the charge committed."""
    with decoding("a commit entry"):
        for entry in read(connection, charge=identity, kind="commit"):
            return str(entry.facts["output_digest"])
    return None


def require(charge: Charge, state: ChargeState, verb: str) -> Charge:
    """Require a state."""
    if charge.state is not state:
        raise LedgerError(f"cannot {verb} release '{charge.release_id}': it is {charge.state} and must be {state}.")
    return charge


def granted(charge: Charge, holder: str, seconds: float) -> tuple[str, Lease] | None:
    """The entry and the lease with which a process may draw from now on; None when it need not ask again."""
    started = charge.state is ChargeState.STARTED
    if charge.state is ChargeState.COMMITTED or (started and charge.lease.holder == holder):
        return None
    if not started:
        require(charge, ChargeState.RESERVED, "start")
    elif not charge.lease.is_free:
        raise LeaseHeldError(
            f"release '{charge.release_id}' is being drawn by another process until {charge.lease.until}:"
            " wait for it, or run again after that time."
        )
    lease = charge.lease.granted(holder, seconds, daily=charge.is_selection)
    return "takeover" if started else "start", lease


def require_last(connection: Connection, charge: Charge) -> None:
    """Require that no later rung stands on this one."""
    where = (charge.account, charge.release_id, charge.input_digest, charge.rung + 1)
    if charge.rung and live(read_rungs(connection, *where), charge.rung + 1):
        raise LedgerError(
            f"cannot cancel rung {charge.rung} of release '{charge.release_id}': rung {charge.rung + 1} was reserved"
            " after it, so cancel that one first."
        )


def fenced(known: Charge, held: Charge, verb: str) -> Charge:
    """Require that the charge has started and that the caller's token is still the newest."""
    require(known, ChargeState.STARTED, verb)
    if known.lease.token != held.lease.token:
        raise LedgerError(
            f"cannot {verb} release '{known.release_id}' with token {held.lease.token}: another process took it over"
            f" with token {known.lease.token}, and its output will be served."
        )
    return known


def same_event(charge: Charge, event: DpEvent) -> Charge:
    """Require that a charge found again is for the same mechanism."""
    if charge.event != event:
        raise LedgerError(
            f"release '{charge.release_id}' is charged for {to_json(charge.event)}, not {to_json(event)}:"
            " use another release id for another mechanism."
        )
    return charge


def check_names(release_id: str, input_digest: str, rung: int) -> None:
    """Require names that the ledger can hold, and a rung that is a whole number."""
    for what, text, most in (("release id", release_id, 200), ("input digest", input_digest, 64)):
        if not 1 <= len(text) <= most or not text.isprintable():
            raise LedgerError(f"the {what} has {len(text)} characters: give 1 to {most} printable ones.")
    if type(rung) is not int or not 0 <= rung < 2**31:
        raise LedgerError(f"rung is {rung!r}: give 0 for a whole release, or 1, 2, 3, ... for its chunks.")


def check_rung(earlier: Iterable[Charge], release_id: str, rung: int) -> None:
    """Require that the rung before this one is charged."""
    if rung > 1 and live(earlier, rung - 1) is None:
        raise LedgerError(f"rung {rung} of release '{release_id}' comes before rung {rung - 1}: reserve them in order.")


def _reserved(entry: Entry) -> Charge:
    with decoding(f"entry {entry.seq}"):
        event = from_json(json.loads(entry.events))
        cost = tuple(map(operator.index, json.loads(entry.cost)))
    where = (entry.charge, entry.account, entry.release_id, entry.input_digest, entry.rung)
    return Charge(*where, event, cost, ChargeState.RESERVED, Lease(), entry.hash)
