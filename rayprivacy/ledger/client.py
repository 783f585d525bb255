"""The ledger as drivers and workers of a Ray cluster use it: the methods of `store.Ledger`, through its front door.

A call that comes back is one that ran once. When the front door dies during a call, nobody knows whether the call ran,
so it is not repeated blindly: the client finds the door again, or opens a new one, asks the book what has become of the
release, and repeats the call at most once if there is nothing. That cannot charge twice, however the first call ended:

- its transaction was rolled back: the repeated call is the first;
- it was committed: `reserve` finds the charge of (account, release id, digest, rung) in its own transaction and returns
  it, `start` finds this process's lease, `commit_output` keeps the first output;
- it is still running, behind a door that was only out of reach: the database lets one of the two write first, and the
  other finds what it wrote.

Leases belong to the process that calls, not to the actor: a door that dies frees nobody's draw, and a caller that dies
frees its own.
"""

import functools
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack

import ray
from dp_accounting.dp_event import DpEvent
from ray.exceptions import ActorUnschedulableError, RayActorError, RayError

from rayprivacy.core.errors import LedgerError, RayPrivacyError
from rayprivacy.core.units import Budget, NeighbouringRelation, PrivacyUnit, Protection
from rayprivacy.ledger.api import LedgerApi
from rayprivacy.ledger.charges import Charge, ChargeState, same_event
from rayprivacy.ledger.leases import TERM_SECONDS, this_process
from rayprivacy.ledger.opening import More
from rayprivacy.ledger.service import SEAL, Address, find_door, front_door
from rayprivacy.ledger.store import Ledger

RECOVERY_SECONDS = 60.0
POLL_SECONDS = 0.1
P = ParamSpec("P")
R = TypeVar("R")


class FrontDoorError(LedgerError):
    """The front door died during a call, again, or did not come back: nobody knows yet whether the call ran."""


def connect(url: str, key_path: Path | None = None, expected_head: str | None = None) -> "LedgerClient":
    """Find the front door of a ledger, or open it.

    Args:
        url: as for `Ledger.open`.
        key_path: file of the key that authenticates entries; the front door reads it.
        expected_head: a head seen earlier, which the book must still contain.

    Raises:
        LedgerError: the URL is no ledger, or an older copy of the ledger was put back.
        KeyFileError: the key cannot be read.
        ConfigError: Ray is not started.
    """
    return LedgerClient(Address.of(url, key_path), expected_head)


def close_front_door(url: str, key_path: Path | None = None, watched: bool = True) -> None:
    """End the front door, e.g. after a change of password; the book loses nothing, and clients open another."""
    door = find_door(Address.of(url, key_path, watched))
    if door is not None:
        ray.kill(door)


def _forward(
    method: Callable[Concatenate[Ledger, P], R],
    found: "Callable[Concatenate[LedgerClient, P], Sequence[R]] | None" = None,
) -> "Callable[Concatenate[LedgerClient, P], R]":
    """The same method, behind the door; `found` looks up what a call has left when the door died during it."""

    @functools.wraps(method)
    def call(self: "LedgerClient", /, *args: P.args, **kwargs: P.kwargs) -> R:
        with suppress(FrontDoorError):
            first: R = self._ask(method.__name__, args, kwargs)
            return first
        self._enter()
        for earlier in found(self, *args, **kwargs) if found else ():
            return earlier
        second: R = self._ask(method.__name__, args, kwargs)
        return second

    return call


class LedgerClient(LedgerApi):
    """A ledger behind its front door; may be handed to tasks and actors of the same cluster."""

    def __init__(self, address: Address, expected_head: str | None = None) -> None:
        self._address, self._seen = address, expected_head
        self._node: str | None = None
        self._enter()

    def _unknown(
        self,
        name: str,
        unit: PrivacyUnit,
        relation: NeighbouringRelation,
        budget: Budget,
        composition: str = "gdp",
        **more: Unpack[More],
    ) -> Sequence[Any]:
        raise LedgerError(
            f"the front door of the ledger died while it opened account '{name}': it is open or it is not, so look,"
            " or open it with ensure_account."
        )

    def _reserved(
        self,
        name: str,
        release_id: str,
        input_digest: str,
        event: DpEvent,
        *,
        rung: int = 0,
        protection: Protection | None = None,
    ) -> Sequence[Charge]:
        charge = self.find_charge(name, release_id, input_digest, rung)
        return (same_event(charge, event),) if charge else ()

    def _started(self, charge: Charge, holder: str | None = None, seconds: float = TERM_SECONDS) -> Sequence[Charge]:
        known = self._now(charge)
        mine = [each for each in known if each.state is ChargeState.STARTED and each.lease.holder == holder]
        return mine or [each for each in known if each.state is ChargeState.COMMITTED]

    def _cancelled(self, charge: Charge) -> Sequence[Charge]:
        return [each for each in self._now(charge) if each.state is ChargeState.CANCELLED]

    def _stored(self, charge: Charge, output: bytes) -> Sequence[None]:
        return () if self.output(charge) is None else (None,)

    def _now(self, charge: Charge) -> list[Charge]:
        return [each for each in self.charges_of(charge.account, charge.release_id) if each.id == charge.id]

    create_account = _forward(Ledger.create_account, _unknown)
    ensure_account = _forward(Ledger.ensure_account)
    account = _forward(Ledger.account)
    accounts = _forward(Ledger.accounts)
    terms = _forward(Ledger.terms)
    group = _forward(Ledger.group)
    entries = _forward(Ledger.entries)
    status = _forward(Ledger.status)
    lines = _forward(Ledger.lines)
    check = _forward(Ledger.check)
    find_charge = _forward(Ledger.find_charge)
    charges_of = _forward(Ledger.charges_of)
    reserve = _forward(Ledger.reserve, _reserved)
    renew = _forward(Ledger.renew)
    cancel = _forward(Ledger.cancel, _cancelled)
    commit_output = _forward(Ledger.commit_output, _stored)
    output = _forward(Ledger.output)
    head = _forward(Ledger.head)
    _start = _forward(Ledger.start, _started)

    def start(self, charge: Charge, holder: str | None = None, seconds: float = TERM_SECONDS) -> Charge:
        """As `Ledger.start`; the holder is the calling process when left out."""
        return self._start(charge, holder or this_process(), seconds)

    def refresh(self) -> None:
        """Set the gauges of the accounts now, rather than within a second or so."""
        _answer("refreshing gauges", self._door.refresh.remote())

    def close(self) -> None:
        """Nothing to let go: the front door stays open for others."""

    def _ask(self, method: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        answer = _answer(f"calling {method}", self._door.call.remote(method, args, kwargs))
        self._seen = answer.entry_hash if isinstance(answer, Charge) else self._seen
        return answer

    def _enter(self) -> None:
        """Come to the front door, wait until it is open, and see whether the book is the one seen before."""
        until = time.monotonic() + RECOVERY_SECONDS
        while time.monotonic() < until:
            with suppress(FrontDoorError):
                return self._open()
            time.sleep(POLL_SECONDS)
        self._open()

    def _open(self) -> None:
        self._door = front_door(self._address, self._node)
        try:
            self._node = _answer("opening the ledger", self._door.open.remote())
        except FrontDoorError:
            raise
        except RayPrivacyError:
            ray.kill(self._door)  # it serves nobody, and would keep its URL from whoever brings a better one
            raise
        if self._seen is not None:
            _answer("looking for a ledger head", self._door.expect.remote(self._seen))


def _answer(step: str, reference: Any) -> Any:
    failure: RayPrivacyError
    try:
        answer = ray.get(reference)
    except RayActorError:
        failure = FrontDoorError(f"the front door of the ledger died while {step}: run again with --resume.")
    except ActorUnschedulableError:
        failure = LedgerError(
            "the node that keeps the ledger file has left the cluster: bring it back, and connect again from there."
        )
    except RayError as error:
        failure = SEAL.unwrap(step, error)
    else:
        if not isinstance(answer, RayPrivacyError):
            return answer
        failure = answer
    raise failure  # outside the except block, so that Ray's text does not come along
