"""Who may draw: one holder at a time, the next one at once when it has died, and no output under an old token."""

import json
import os
import signal
import socket
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection as Pipe
from typing import Any

import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from processes import forkserver
from usual import TERMS, kinds

from rayprivacy.core.errors import LeaseHeldError, LedgerError
from rayprivacy.ledger import charges
from rayprivacy.ledger.charges import DAY_SECONDS, Charge, ChargeState, Lease, this_process
from rayprivacy.ledger.store import Ledger

EVENT = GaussianDpEvent(20.0)
ELSEWHERE = "another-host/boot/pid:[1]".replace(":", "-") + ":17:4711"


@pytest.fixture
def charge(ledger: Ledger) -> Charge:
    return ledger.reserve("chat", "run", "d", EVENT)


def _hold(url: str, seconds: float, pipe: Pipe) -> None:
    ledger = Ledger.open(url)
    charge = ledger.start(ledger.reserve("chat", "run", "d", EVENT), seconds=seconds)
    pipe.send((this_process(), charge.lease))
    pipe.recv()  # go on drawing until told
    try:
        ledger.commit_output(charge, b"of the first holder")
        pipe.send("committed")
    except LedgerError as error:
        pipe.send(str(error))


class Holder:
    """Another process that has started the release and not yet committed it."""

    def __init__(self, url: str, seconds: float) -> None:
        context = forkserver()
        self._pipe, theirs = context.Pipe()
        self.process: Any = context.Process(target=_hold, args=(url, seconds, theirs))
        self.process.start()
        self.name, self.lease = self._receive()

    def commit(self) -> str:
        self._pipe.send("commit")
        said = str(self._receive())
        self.process.join()
        return said

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join()

    def _receive(self) -> Any:
        assert self._pipe.poll(60), "the other process says nothing"
        return self._pipe.recv()


@pytest.fixture
def hold(url: str) -> Any:
    holders: list[Holder] = []

    def start(seconds: float) -> Holder:
        holders.append(Holder(url, seconds))
        return holders[-1]

    yield start
    for holder in holders:
        if holder.process.is_alive():
            holder.kill()


def test_a_live_holder_is_waited_for_and_its_output_served(
    ledger: Ledger, charge: Charge, hold: Callable[[float], Holder]
) -> None:
    holder = hold(300)
    assert holder.lease.token == 1
    assert holder.lease.holder == holder.name != this_process()
    for _ in range(2):
        with pytest.raises(LeaseHeldError, match=r"'run' is being drawn by another process until .*: wait"):
            ledger.start(charge)
    assert holder.commit() == "committed"
    assert ledger.start(charge).state is ChargeState.COMMITTED
    assert ledger.output(charge) == b"of the first holder"
    assert kinds(ledger) == ["create", "reserve", "start", "commit"]


def test_a_dead_holder_is_followed_at_once(ledger: Ledger, charge: Charge, hold: Callable[[float], Holder]) -> None:
    holder = hold(3600)
    with pytest.raises(LeaseHeldError):
        ledger.start(charge)
    holder.kill()
    mine = ledger.start(charge)
    assert (mine.lease.token, mine.lease.holder) == (2, this_process())
    ledger.commit_output(mine, b"mine")
    assert ledger.output(charge) == b"mine"
    assert kinds(ledger) == ["create", "reserve", "start", "takeover", "commit"]
    assert ledger.verify().charges == 1


def test_a_killed_process_that_nobody_has_waited_for_counts_as_dead(
    ledger: Ledger, charge: Charge, hold: Callable[[float], Holder]
) -> None:
    holder = hold(3600)
    os.kill(holder.process.pid, signal.SIGKILL)
    for _ in range(2000):  # until the kill arrives; nobody has joined the process
        try:
            assert ledger.start(charge).lease.token == 2
            return
        except LeaseHeldError:
            continue
    pytest.fail("the dead holder is believed to be alive")


def test_an_expired_term_is_taken_over_and_the_stale_holder_refused(
    ledger: Ledger, charge: Charge, hold: Callable[[float], Holder]
) -> None:
    holder = hold(-1)  # over as soon as it is granted, though its holder lives
    mine = ledger.start(charge)
    assert mine.lease.token == 2
    said = holder.commit()
    assert said == (
        "cannot commit release 'run' with token 1: another process took it over with token 2, and its output will be"
        " served."
    )
    assert ledger.output(charge) is None
    ledger.commit_output(mine, b"mine")
    assert ledger.output(charge) == b"mine"
    assert ledger.verify().outputs == 1


def test_a_stale_holder_that_comes_after_the_commit_changes_nothing(
    ledger: Ledger, charge: Charge, hold: Callable[[float], Holder]
) -> None:
    holder = hold(-1)
    ledger.commit_output(ledger.start(charge), b"mine")
    entries = ledger.entries("chat")
    assert holder.commit() == "committed"  # it may ask for the output now, and gets the other one
    assert ledger.output(charge) == b"mine"
    assert ledger.entries("chat") == entries


def test_starting_again_in_the_same_process_changes_nothing(ledger: Ledger, charge: Charge) -> None:
    first = ledger.start(charge, seconds=-1)
    assert ledger.start(charge) == ledger.start(first) == first
    assert first.lease.token == 1
    assert kinds(ledger) == ["create", "reserve", "start"]


def test_a_renewed_term_keeps_others_out(ledger: Ledger, charge: Charge) -> None:
    first = ledger.start(charge, holder=ELSEWHERE, seconds=-1)
    renewed = ledger.renew(first, seconds=300)
    assert renewed.lease.token == 1
    assert renewed.lease.until > first.lease.until
    with pytest.raises(LeaseHeldError):
        ledger.start(charge)
    ledger.commit_output(first, b"x")  # the token counts, not the copy of the lease
    assert ledger.output(charge) == b"x"
    assert kinds(ledger) == ["create", "reserve", "start", "renew", "commit"]
    assert ledger.verify().charges == 1


def test_an_old_token_can_neither_renew_nor_commit(ledger: Ledger, charge: Charge) -> None:
    old = ledger.start(charge, holder=ELSEWHERE, seconds=-1)
    new = ledger.start(charge)
    before = ledger.entries("chat")
    for call in (lambda: ledger.renew(old), lambda: ledger.commit_output(old, b"old")):
        with pytest.raises(LedgerError, match="with token 1: another process took it over with token 2"):
            call()
    assert ledger.entries("chat") == before
    assert ledger.renew(new).lease.token == 2


def test_a_holder_on_another_host_is_believed_until_its_term_is_over(ledger: Ledger, charge: Charge) -> None:
    first = ledger.start(charge, holder=ELSEWHERE, seconds=300)
    with pytest.raises(LeaseHeldError):
        ledger.start(charge)
    ledger.renew(first, seconds=-1)
    assert ledger.start(charge).lease.token == 2


def test_names_tell_processes_apart(hold: Callable[[float], Holder], ledger: Ledger) -> None:
    machine, pid, started = this_process().split(":")
    assert int(pid) == os.getpid()
    assert this_process() == this_process()
    holder = hold(300)
    theirs = holder.name.split(":")
    assert theirs[0] == machine
    assert int(theirs[1]) == holder.process.pid != os.getpid()
    assert started.isdigit()


@pytest.mark.parametrize("holder", ["", "x", "a:b:c", ":::", "host:notanumber:1"])
def test_a_name_that_says_nothing_is_believed_until_the_term_is_over(
    ledger: Ledger, charge: Charge, holder: str
) -> None:
    ledger.start(charge, holder=holder or "-", seconds=300)
    with pytest.raises(LeaseHeldError):
        ledger.start(charge)


def test_a_process_id_used_again_is_another_process() -> None:
    machine, pid, started = this_process().split(":")
    until = "9999-01-01T00:00:00.000+00:00"
    assert not Lease(1, f"{machine}:{pid}:{started}", until).is_free
    assert Lease(1, f"{machine}:{pid}:{int(started) - 1}", until).is_free
    assert not Lease(1, f"{machine}-2:{pid}:{int(started) - 1}", until).is_free


class Clock(datetime):
    """What the leases take for the time."""

    ahead = timedelta()

    @classmethod
    def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
        return datetime.now(tz) + cls.ahead


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> type[Clock]:
    monkeypatch.setattr(Clock, "ahead", timedelta())
    monkeypatch.setattr(charges, "datetime", Clock)
    return Clock


@pytest.fixture
def reserved(ledger: Ledger) -> Charge:
    """The charge of a search among a secret number of trials."""
    ledger.create_account("search", *TERMS, composition="rdp", order=8)
    return ledger.reserve("search", "run", "d", RepeatAndSelectDpEvent(GaussianDpEvent(90.0), 4.0, 1.0))


@pytest.fixture
def search(ledger: Ledger, reserved: Charge) -> Charge:
    return ledger.start(reserved)


def _told(ledger: Ledger) -> list[tuple[str, str]]:
    return [(entry.kind, entry.created_at) for entry in ledger.entries("search")][2:]


def _until(charge: Charge) -> datetime:
    return datetime.fromisoformat(charge.lease.until)


def test_the_book_does_not_say_how_long_a_search_took(ledger: Ledger, search: Charge, clock: type[Clock]) -> None:
    day = timedelta(seconds=DAY_SECONDS)
    assert timedelta() <= datetime.now(UTC) + day - _until(search) < timedelta(minutes=1)
    for hours in (0, 1, 22):  # trials go on; a watcher of the book sees nothing
        clock.ahead = timedelta(hours=hours)
        assert ledger.renew(search, seconds=1).lease == search.lease
    ledger.commit_output(search, b"selection-2:winner")
    (_, start), (commit, committed) = _told(ledger)
    assert commit == "commit"
    apart = datetime.fromisoformat(committed) - datetime.fromisoformat(start)
    assert abs(apart) <= timedelta(seconds=1), "a commit carries the time at which its day began"
    assert ledger.verify().charges == 1


def test_a_search_of_days_is_told_in_days(ledger: Ledger, search: Charge, clock: type[Clock]) -> None:
    day = timedelta(seconds=DAY_SECONDS)
    clock.ahead = timedelta(hours=23, minutes=30)  # of the first day: it needs another one
    renewed = ledger.renew(search)
    assert _until(renewed) - _until(search) == day
    assert ledger.renew(renewed).lease == renewed.lease
    clock.ahead = timedelta(hours=31)
    ledger.commit_output(renewed, b"selection-2:winner")
    kinds, times = zip(*_told(ledger), strict=True)
    assert kinds == ("start", "renew", "commit")
    first, second, last = (datetime.fromisoformat(time) for time in times)
    assert abs(second - first) <= timedelta(seconds=1)
    assert abs(last - first - day) <= timedelta(seconds=1)
    assert ledger.verify().charges == 1


def test_a_search_taken_over_keeps_its_days(ledger: Ledger, reserved: Charge, clock: type[Clock]) -> None:
    first = ledger.start(reserved, holder=ELSEWHERE, seconds=1)
    with pytest.raises(LeaseHeldError):
        ledger.start(first)
    clock.ahead = timedelta(hours=25)
    second = ledger.start(first)
    assert second.lease.token == 2
    assert _until(second) - _until(first) == timedelta(seconds=DAY_SECONDS)
    ledger.commit_output(second, b"selection-2:winner")
    assert [kind for kind, _ in _told(ledger)] == ["start", "takeover", "commit"]
    assert ledger.verify().charges == 1


def test_an_entry_names_no_host(ledger: Ledger, charge: Charge) -> None:
    ledger.start(charge)
    detail = json.dumps([entry.detail for entry in ledger.entries("chat")], default=str)
    assert this_process() in detail
    assert socket.gethostname() not in detail
