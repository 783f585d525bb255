"""The charges that a search makes for its trials: one for each run of a trial, started before the trial is.

Privacy argument. A charge pays for one draw of a trial's noise. A trial of the user's own may draw fresh noise whenever
it runs, so a second run of an equal config is a second release. Hence a trial that came to its end is not run again:
the ledger stores its last figures, and serves them. A trial that did not (it failed, or the search was killed) stays
charged, since its noise may have been seen, and its next run is a release of its own, charged anew: `<release>-2`,
`<release>-3`, ...

A trial is `repeatable` when all of its noise is a function of a secret key and of its config, as it is behind the
release gate: a second run releases the same once more. It runs again on the charge that it has.

The ledger alone decides whether a charge is admitted. A search whose trials charge themselves looks first (`can_pay`),
in the one process that starts trials, so that no trial begins that the account cannot pay to its end, however many run
at once.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from dp_accounting.dp_event import DpEvent

from rayprivacy.core.artifacts import digest_bytes, digest_json
from rayprivacy.core.errors import BudgetRefusedError, ConfigError, LeaseHeldError
from rayprivacy.core.units import Protection
from rayprivacy.ledger.api import LedgerApi
from rayprivacy.ledger.charges import Charge, ChargeState, same_event
from rayprivacy.runs.account import whole

Owed = tuple[str, DpEvent]  # a release, and one charge of it


def trial_release(name: str, config: Mapping[str, Any]) -> str:
    """The release id of a trial: the name of its search, and a digest of its whole config.

    >>> trial_release("lr", {"rate": 0.5}) == trial_release("lr", {"rate": np.float64(0.5)})
    True

    Raises:
        ConfigError: a value of the config has no JSON form.
    """
    return f"{name}-{digest_json({key: _plain(key, value) for key, value in config.items()})[:16]}"


@dataclass(frozen=True)
class TrialCharges:
    """How a search charges one account; a trial that is repeatable draws the same noise when it runs again."""

    account: str
    protection: Protection
    repeatable: bool

    def begin(self, ledger: LedgerApi, release: str, event: DpEvent) -> Charge:
        """Charge the next run of a trial, and start the charge; LeaseHeldError if another process runs it."""
        run = 1
        while True:
            charge = ledger.reserve(self.account, *_run(release, run), event, protection=self.protection)
            if self.repeatable:
                return ledger.start(charge)
            if charge.state is ChargeState.RESERVED:
                with suppress(LeaseHeldError):  # another process was faster, and this run is its own
                    started = ledger.start(charge)
                    if started.lease.token == 1:
                        return started
            run += 1

    def end(self, ledger: LedgerApi, charge: Charge, figures: Mapping[str, float]) -> None:
        """Store the last figures of a trial that came to its end."""
        with suppress(LeaseHeldError):  # a process that runs the same trial took it over, and stores its own
            ledger.commit_output(ledger.start(charge), json.dumps(dict(figures)).encode())

    def figures(self, ledger: LedgerApi, release: str, event: DpEvent) -> dict[str, float] | None:
        """The last figures of a trial that came to its end before; None if none of its runs did."""
        run = 1
        while True:
            name, _ = _run(release, run)
            charges = live_charges(ledger, self.account, name)
            if not charges:
                return None
            charge = same_event(charges[0], event)
            if charge.state is ChargeState.COMMITTED:
                found: dict[str, float] = json.loads(ledger.output(charge) or b"{}")
                return found
            run += 1


def can_pay(ledger: LedgerApi, account: str, bills: Iterable[Sequence[Owed]], protection: Protection) -> bool:
    """Whether the account can pay all that several trials have not charged yet; a bill is in the order of charging."""
    unpaid = [event for bill in bills for event in _unpaid(ledger, account, bill)]
    if not unpaid:
        return True
    try:
        ledger.check(account, whole(unpaid), protection)
    except BudgetRefusedError:
        return False
    return True


def live_charges(ledger: LedgerApi, account: str, release: str) -> list[Charge]:
    """The charges of a release that have not been cancelled."""
    return [charge for charge in ledger.charges_of(account, release) if charge.is_live]


def _unpaid(ledger: LedgerApi, account: str, bill: Sequence[Owed]) -> list[DpEvent]:
    """The charges of a trial that are not made yet; those of one release are made in order."""
    paid = {release: len(live_charges(ledger, account, release)) for release, _ in bill}
    unpaid = []
    for release, event in bill:
        if paid[release] == 0:
            unpaid.append(event)
        else:
            paid[release] -= 1
    return unpaid


def _run(release: str, run: int) -> tuple[str, str]:
    """Release id and input digest of one run; the search does not know the corpus, which its name stands for."""
    name = release if run == 1 else f"{release}-{run}"
    return name, digest_bytes(name.encode())


def _plain(key: str, value: Any) -> Any:
    try:
        return json.loads(json.dumps(value, default=_scalar, allow_nan=False))
    except (TypeError, ValueError):
        raise ConfigError(
            f"the config of a trial has '{key}' of type {type(value).__name__}, which has no JSON form that could name"
            " the trial: search plain values, and hand over the rest with ray.tune.with_parameters."
        ) from None


def _scalar(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError
