"""Gauges follow the book, cost no charge when they fail, and show nothing of a trial whose existence is secret."""

import time
from typing import ClassVar

import pytest
from dp_accounting import GaussianDpEvent
from usual import TERMS

from rayprivacy.core.errors import LedgerError
from rayprivacy.ledger import service
from rayprivacy.ledger.charges import ChargeState
from rayprivacy.ledger.service import Address, LedgerService
from rayprivacy.ledger.store import Ledger

EVENT = GaussianDpEvent(100.0)


class FakeGauge:
    values: ClassVar[dict[tuple[str, str], float]] = {}
    fails: ClassVar[bool] = False

    def __init__(self, name, description, tag_keys):
        assert tag_keys == ("account",)
        self._name = name

    def set(self, value, tags):
        if FakeGauge.fails:
            raise RuntimeError("the metrics agent is gone")
        self.values[self._name, tags["account"]] = value


@pytest.fixture(autouse=True)
def _fake(monkeypatch):
    monkeypatch.setattr(service, "Gauge", FakeGauge)
    monkeypatch.setattr(FakeGauge, "values", {})


def test_gauges_follow_the_book_and_fail_alone(sqlite_url, monkeypatch):
    door, elsewhere = LedgerService(Address.of(sqlite_url)), Ledger.open(sqlite_url)
    monkeypatch.setattr(FakeGauge, "fails", True)
    door.call("ensure_account", ("chat", *TERMS), {})
    charge = door.call("reserve", ("chat", "r", "d", EVENT), {})
    assert charge.state is ChargeState.RESERVED, "gauges that fail cost no charge"
    assert isinstance(door.refresh(), LedgerError)
    monkeypatch.setattr(FakeGauge, "fails", False)
    door.call("cancel", (charge,), {})
    elsewhere.start(elsewhere.reserve("chat", "s", "d", EVENT))
    elsewhere.reserve("chat", "t", "d", EVENT)
    assert door.refresh() is True
    figures = elsewhere.status("chat").figures
    expected = {name: figures[service._FIGURE.get(name, name)] for name in service.GAUGES if name != "charges"}
    expected["charges"] = 2
    assert FakeGauge.values == {(f"rayprivacy_account_{name}", "chat"): value for name, value in expected.items()}
    assert figures["epsilon_spent"] > figures["epsilon_reserved"] > 0


def test_the_door_of_a_secret_trial_has_no_gauges(sqlite_url):
    """Their number would be the number of a selection's trials."""

    def shown():
        return [account for _, account in FakeGauge.values if account == "trial"]  # doors of other tests show theirs

    quiet, watched = Address.of(sqlite_url, watched=False), Address.of(sqlite_url)
    assert quiet.name != watched.name, "or whoever opens it first decides"
    door = LedgerService(quiet)
    door.call("ensure_account", ("trial", *TERMS), {})
    door.call("reserve", ("trial", "r", "d", EVENT), {})
    time.sleep(3 * service.REST_SECONDS)
    assert door.refresh() is True
    assert shown() == []
    LedgerService(watched).call("status", ("trial",), {})
    until = time.monotonic() + 30
    while not shown():
        assert time.monotonic() < until
        time.sleep(0.1)
