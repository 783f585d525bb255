"""Releases that may be killed at any database action, and finished by running them again.

A run leaves two kinds of files in a folder: `drawn-*`, one for each time noise was drawn, and `served-*`, with every
output that anybody ever got to see.
"""

import os
import secrets
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dp_accounting import GaussianDpEvent
from sqlalchemy import Connection

from rayprivacy.core.units import AccountKind, Budget, NeighbouringRelation, PrivacyUnit
from rayprivacy.ledger.book import Query
from rayprivacy.ledger.charges import ChargeState
from rayprivacy.ledger.store import Ledger

EVENT = GaussianDpEvent(20.0)
RUNGS = (1, 2)
_TERMS = (PrivacyUnit.USER, NeighbouringRelation.ADD_OR_REMOVE, Budget(3.0, 1e-6))


class Fuse:
    """Kills the process at its n-th crossing; every database action is crossed twice, before and after."""

    left = 0

    @classmethod
    def burn(cls) -> None:
        cls.left -= 1
        if cls.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    @classmethod
    def light(cls, crossings: int) -> None:
        """Arm every way in which the ledger talks to a database."""
        cls.left = crossings
        _wire(Query, "_execute")
        for name in ("execute", "_begin_impl", "_commit_impl", "_rollback_impl"):
            _wire(Connection, name)


def _wire(owner: Any, name: str) -> None:
    real = getattr(owner, name)

    def burning(*args: Any, **kwargs: Any) -> Any:
        Fuse.burn()
        result = real(*args, **kwargs)
        Fuse.burn()
        return result

    setattr(owner, name, burning)


def open_accounts(ledger: Ledger, scenario: str, account: str) -> None:
    """What must be there before the run."""
    if scenario == "selective":
        ledger.ensure_account(f"{account}-central", *_TERMS, corpus=account)
        ledger.ensure_account(account, *_TERMS, kind=AccountKind.SELECTIVE, policy="phones", corpus=account)
        return
    ledger.ensure_account(account, *_TERMS, composition="pld" if scenario == "pld" else "gdp")
    if scenario == "take-over":
        ledger.start(ledger.reserve(account, "run", "d", EVENT), holder="another-host:1:1", seconds=-1)


def release(ledger: Ledger, account: str, folder: Path, rung: int = 0) -> None:
    """One release as the gate does it."""
    charge = ledger.reserve(account, "run", "d", EVENT, rung=rung, protection=ledger.account(account).protection)
    started = ledger.start(charge)
    if started.state is not ChargeState.COMMITTED:
        ledger.commit_output(started, _draw(folder, f"{account}-{rung}"))
    output = ledger.output(charge)
    assert output is not None
    with (folder / f"served-{account}-{rung}").open("a") as seen:
        seen.write(output.hex() + "\n")


def _draw(folder: Path, name: str) -> bytes:
    Fuse.burn()
    noise = secrets.token_bytes(8)
    number = len(list(folder.glob(f"drawn-{name}-*")))
    with (folder / f"drawn-{name}-{number}").open("x") as file:
        file.write(noise.hex())
    Fuse.burn()
    return noise


def _in_rungs(ledger: Ledger, account: str, folder: Path) -> None:
    for rung in RUNGS:
        release(ledger, account, folder, rung)


def _after_a_cancel(ledger: Ledger, account: str, folder: Path) -> None:
    if not ledger.charges_of(account, "run") or not _was_cancelled(ledger, account):
        ledger.cancel(ledger.reserve(account, "run", "d", EVENT))
    release(ledger, account, folder)


def _was_cancelled(ledger: Ledger, account: str) -> bool:
    return any(charge.state is ChargeState.CANCELLED for charge in ledger.charges_of(account, "run"))


def _planned(ledger: Ledger, account: str, folder: Path) -> None:
    if not ledger.terms(account).rule.size:
        ledger.register_plan(account, [EVENT])
    release(ledger, account, folder)


SCENARIOS: dict[str, Callable[[Ledger, str, Path], None]] = {
    "plain": release,
    "rungs": _in_rungs,
    "take-over": release,
    "cancel": _after_a_cancel,
    "selective": release,
    "pld": _planned,
}


def run(url: str, scenario: str, account: str, folder: Path) -> Ledger:
    """A whole run that nothing kills; the ledger holds no connection any more."""
    ledger = Ledger.open(url)
    open_accounts(ledger, scenario, account)
    SCENARIOS[scenario](ledger, account, folder)
    ledger.close()
    return ledger


def run_and_die(ledger: Ledger, scenario: str, account: str, folder: Path, crossings: int) -> None:
    """In a child process."""
    Fuse.light(crossings)
    SCENARIOS[scenario](ledger, account, folder)


def open_and_die(_: Ledger, url: str, crossings: int) -> None:
    """In a child process: open a ledger that may not exist yet, and an account in it."""
    Fuse.light(crossings)
    Ledger.open(url).ensure_account("chat", *_TERMS)
