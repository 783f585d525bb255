"""Who may draw: one holder at a time, the next one at once when it has died, and no output under an old token."""

import json
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from processes import forkserver
from usual import TERMS, kinds

from rayprivacy.core.errors import LeaseHeldError, LedgerError
from rayprivacy.ledger import charges
from rayprivacy.ledger.charges import DAY_SECONDS, ChargeState, Lease, this_process
from rayprivacy.ledger.store import Ledger

EVENT = GaussianDpEvent(20.0)
DAY = timedelta(seconds=DAY_SECONDS)
ELSEWHERE = "another-host/boot/pid-[1]:17:4711"


@pytest.fixture
def charge(ledger):
    return ledger.reserve("chat", "run", "d", EVENT)


def _hold(url, seconds, pipe):
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

    def __init__(self, url, seconds):
        context = forkserver()
        self._pipe, theirs = context.Pipe()
        self.process: Any = context.Process(target=_hold, args=(url, seconds, theirs))
        self.process.start()
        self.name, self.lease = self._receive()

    def commit(self):
        self._pipe.send("commit")
        said = str(self._receive())
        self.process.join()
        return said

    def kill(self, wait=True):
        os.kill(self.process.pid, signal.SIGKILL)
        if wait:
            self.process.join()

    def _receive(self):
        assert self._pipe.poll(60), "the other process says nothing"
        return self._pipe.recv()


Hold = Callable[[float], Holder]


@pytest.fixture
def hold(url):
    holders: list[Holder] = []

    def start(seconds):
        holders.append(Holder(url, seconds))
        return holders[-1]

    yield start
    for holder in holders:
        if holder.process.is_alive():
            holder.kill()


def test_a_live_holder_is_waited_for_and_its_output_served(ledger, charge, hold):
    holder = hold(300)
    assert holder.lease.token == 1
    assert holder.lease.holder == holder.name != this_process()
    machine, pid, started = this_process().split(":")
    assert holder.name.split(":")[:2] == [machine, str(holder.process.pid)]
    assert int(pid) == os.getpid()
    assert started.isdigit()
    for _ in range(2):
        with pytest.raises(LeaseHeldError, match=r"'run' is being drawn by another process until .*: wait"):
            ledger.start(charge)
    assert holder.commit() == "committed"
    assert ledger.start(charge).state is ChargeState.COMMITTED
    assert ledger.output(charge) == b"of the first holder"
    assert kinds(ledger) == ["create", "reserve", "start", "commit"]


@pytest.mark.parametrize("waited_for", [True, False])
def test_a_dead_holder_is_followed_at_once(ledger, charge, hold, waited_for):
    holder = hold(3600)
    with pytest.raises(LeaseHeldError):
        ledger.start(charge)
    holder.kill(waited_for)
    mine = charge
    for _ in range(1 if waited_for else 2000):
        with suppress(LeaseHeldError):
            mine = ledger.start(charge)
            break
    assert (mine.lease.token, mine.lease.holder) == (2, this_process())
    ledger.commit_output(mine, b"mine")
    assert ledger.output(charge) == b"mine"
    assert kinds(ledger) == ["create", "reserve", "start", "takeover", "commit"]
    assert ledger.verify().charges == 1


def test_an_expired_term_is_taken_over_and_the_stale_holder_refused(ledger, charge, hold):
    stale = hold(-1)  # over as soon as it is granted, though its holder lives
    mine = ledger.start(charge)
    assert mine.lease.token == 2
    taken = "cannot commit release 'run' with token 1: another process took it over with token 2, and its output will"
    assert stale.commit() == f"{taken} be served."
    assert ledger.output(charge) is None
    ledger.commit_output(mine, b"mine")
    assert ledger.output(charge) == b"mine"
    assert ledger.verify().outputs == 1


def test_a_name_that_says_nothing_is_believed_until_the_term_is_over(ledger):
    for holder in ("-", "x", "a:b:c", ":::", "host:notanumber:1"):
        charge = ledger.reserve("chat", holder, "d", EVENT)
        ledger.start(charge, holder=holder, seconds=300)
        with pytest.raises(LeaseHeldError):
            ledger.start(charge)


def test_a_process_id_used_again_is_another_process():
    machine, pid, started = this_process().split(":")
    until = "9999-01-01T00:00:00.000+00:00"
    assert not Lease(1, f"{machine}:{pid}:{started}", until).is_free
    assert Lease(1, f"{machine}:{pid}:{int(started) - 1}", until).is_free
    assert not Lease(1, f"{machine}-2:{pid}:{int(started) - 1}", until).is_free


class Clock(datetime):
    ahead = timedelta()

    @classmethod
    def now(cls, tz=None):  # type: ignore[override]
        return datetime.now(tz) + cls.ahead


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(Clock, "ahead", timedelta())
    monkeypatch.setattr(charges, "datetime", Clock)
    return Clock


@pytest.fixture
def search(ledger):
    """The charge of a search among a secret number of trials."""
    ledger.create_account("search", *TERMS, composition="rdp", order=8)
    return ledger.reserve("search", "run", "d", RepeatAndSelectDpEvent(GaussianDpEvent(90.0), 4.0, 1.0))


def _until(charge):
    return datetime.fromisoformat(charge.lease.until)


def _finished(ledger, charge):
    """What the book says of a search that ends now: its entries, and their seconds after the first."""
    ledger.commit_output(charge, b"selection-2:winner")
    assert ledger.verify().charges == 1
    told = ledger.entries("search")[2:]
    times = [datetime.fromisoformat(entry.created_at) for entry in told]
    return [entry.kind for entry in told], [(time - times[0]).total_seconds() for time in times]


def test_the_book_does_not_say_how_long_a_search_took(ledger, search, clock):
    search = ledger.start(search)
    assert timedelta() <= datetime.now(UTC) + DAY - _until(search) < timedelta(minutes=1)
    for hours in (0, 1, 22):  # trials go on; a watcher of the book sees nothing
        clock.ahead = timedelta(hours=hours)
        assert ledger.renew(search, seconds=1).lease == search.lease
    told, seconds = _finished(ledger, search)
    assert told == ["start", "commit"]
    assert seconds == pytest.approx([0, 0], abs=1), "a commit carries the time at which its day began"


def test_a_search_of_days_is_told_in_days(ledger, search, clock):
    search = ledger.start(search)
    clock.ahead = timedelta(hours=23, minutes=30)  # of the first day: it needs another one
    renewed = ledger.renew(search)
    assert _until(renewed) - _until(search) == DAY
    assert ledger.renew(renewed).lease == renewed.lease
    clock.ahead = timedelta(hours=31)
    told, seconds = _finished(ledger, renewed)
    assert told == ["start", "renew", "commit"]
    assert seconds == pytest.approx([0, 0, DAY_SECONDS], abs=1)


def test_a_search_taken_over_keeps_its_days(ledger, search, clock):
    first = ledger.start(search, holder=ELSEWHERE, seconds=1)
    with pytest.raises(LeaseHeldError):
        ledger.start(first)
    clock.ahead = timedelta(hours=25)
    second = ledger.start(first)
    assert second.lease.token == 2
    assert _until(second) - _until(first) == DAY
    assert _finished(ledger, second)[0] == ["start", "takeover", "commit"]


def test_an_entry_names_no_host(ledger, charge):
    ledger.start(charge)
    detail = json.dumps([entry.detail for entry in ledger.entries("chat")], default=str)
    assert this_process() in detail
    assert socket.gethostname() not in detail
