"""What an account can still pay, counting the charges that running trials have yet to make.

The ledger alone decides whether a charge is admitted. A search looks first, in the one process that starts trials, so
that no trial begins that the account cannot pay to its end, however many run at once.
"""

from collections.abc import Iterable, Sequence

from dp_accounting.dp_event import DpEvent

from rayprivacy.core.errors import BudgetRefusedError
from rayprivacy.core.units import Protection
from rayprivacy.ledger.api import LedgerApi
from rayprivacy.ledger.charges import Charge
from rayprivacy.runs.account import whole

Owed = tuple[str, DpEvent]  # a release, and one charge of it


def can_pay(ledger: LedgerApi, account: str, bills: Iterable[Sequence[Owed]], protection: Protection) -> bool:
    """Whether the account can pay all that several trials have not charged yet.

    Args:
        ledger: of the account.
        account: its name.
        bills: every charge of each trial, in the order in which it is made.
        protection: what the charges protect.
    """
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
