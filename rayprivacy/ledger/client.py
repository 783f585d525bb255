"""A client of the ledger for drivers and workers of a Ray cluster: the methods of `store.Ledger`, by way of an actor.

A call that returns was executed exactly once. When the actor dies during a call, the client cannot know whether the
call ran, so it is not repeated blindly: the client finds the actor again, or starts a new one, asks the ledger what has
become of the release, and repeats the call at most once if there is nothing. That cannot charge twice, however the
first call ended:

- its transaction was rolled back: the repeated call is the first;
- it was committed: `reserve` finds the charge of (account, release id, digest, rung) in its own transaction and returns
  it, `start` finds this process's lease, `commit_output` keeps the first output;
- it is still running, in an actor that was only out of reach: the database lets one of the two write first, and the
  other finds what it wrote.

Leases belong to the process that calls, so an actor that dies ends none.
"""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import ray
from dp_accounting.dp_event import DpEvent
from ray.exceptions import ActorUnschedulableError, RayActorError, RayError

from rayprivacy.core.errors import LedgerError, RayPrivacyError
from rayprivacy.ledger.charges import TERM_SECONDS, Charge, ChargeState, same_event, this_process
from rayprivacy.ledger.service import SEAL, Address, ensure_service, find_service
from rayprivacy.ledger.store import Ledger

POLL_SECONDS = 0.1
P = ParamSpec("P")
R = TypeVar("R")


class ServiceLostError(LedgerError):
    """The ledger service died during a call, again, or did not come back: whether the call ran is not known yet."""


def connect(url: str, key_path: Path | None = None, expected_head: str | None = None) -> "LedgerClient":
    """Find the service of a ledger, or start it; `url` and `expected_head` are as for `Ledger.open`.

    The key in the file `key_path`, which the service reads, authenticates entries. LedgerError when the URL is no
    ledger or an older copy was put back, KeyFileError when the key cannot be read, ConfigError when Ray is not started.
    """
    return LedgerClient(Address.of(url, key_path), expected_head)


def close_service(url: str, key_path: Path | None = None, watched: bool = True) -> None:
    """End the service, e.g. after a change of password; the ledger loses nothing, and clients start another."""
    service = find_service(Address.of(url, key_path, watched))
    if service is not None:
        ray.kill(service)


def _forward(
    method: Callable[Concatenate[Ledger, P], R],
    found: "Callable[Concatenate[LedgerClient, P], Sequence[R]] | None" = None,
) -> "Callable[Concatenate[LedgerClient, P], R]":
    """Forward a method; if the service dies in a call, `found` looks for its effect before it is repeated."""

    @functools.wraps(method)
    def call(self: "LedgerClient", /, *args: P.args, **kwargs: P.kwargs) -> R:
        with suppress(ServiceLostError):
            first: R = self._ask(method.__name__, args, kwargs)
            return first
        self._enter()
        for earlier in found(self, *args, **kwargs) if found else ():
            return earlier
        second: R = self._ask(method.__name__, args, kwargs)
        return second

    return call


class LedgerClient:
    """A ledger reached through its service; may be handed to tasks and actors of the same cluster."""

    def __init__(self, address: Address, expected_head: str | None = None) -> None:
        self._address = address
        self._seen = expected_head
        self._node: str | None = None
        self._enter()

    def _unknown(self, name: str, *_: Any, **_more: Any) -> Sequence[Any]:
        raise LedgerError(
            f"the ledger service died while it opened account '{name}': it is open or it is not, so look,"
            " or open it with ensure_account."
        )

    def _reserved(
        self, name: str, release_id: str, input_digest: str, event: DpEvent, *, rung: int = 0, **_: Any
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
    fix_meaning = _forward(Ledger.fix_meaning)
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
        _answer("refreshing gauges", self._service.refresh.remote())

    def close(self) -> None:
        """Nothing to let go: the service keeps running for others."""

    def _ask(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        answer = _answer(f"calling {method}", self._service.call.remote(method, args, kwargs))
        self._seen = answer.entry_hash if isinstance(answer, Charge) else self._seen
        return answer

    def _enter(self) -> None:
        """Find or start the service, wait for it, and see whether the ledger is the one seen before."""
        until = time.monotonic() + 60.0
        while time.monotonic() < until:
            with suppress(ServiceLostError):
                return self._open()
            time.sleep(POLL_SECONDS)
        self._open()

    def _open(self) -> None:
        self._service = ensure_service(self._address, self._node)
        try:
            self._node = _answer("opening the ledger", self._service.open.remote())
        except ServiceLostError:
            raise
        except RayPrivacyError:
            ray.kill(self._service)  # it is of no use, and would keep its URL from a client that has the right key
            raise
        if self._seen is not None:
            _answer("looking for a ledger head", self._service.expect.remote(self._seen))


def _answer(step: str, reference: Any) -> Any:
    failure: RayPrivacyError
    try:
        answer = ray.get(reference)
    except RayActorError:
        failure = ServiceLostError(f"the ledger service died while {step}: run again with --resume.")
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
