"""What the account of a search can still pay, counting what trials that are running have yet to charge.

The ledger alone decides whether a charge is admitted. The purse looks first, in the one process that starts trials, so
that no trial begins that the account cannot see through, however many run at once.
"""

from collections.abc import Iterable

from dp_accounting.dp_event import ComposedDpEvent, DpEvent

from rayprivacy.core.errors import BudgetRefusedError
from rayprivacy.ledger.api import LedgerApi
from rayprivacy.ledger.charges import Charge, ChargeState
from rayprivacy.tuning.trials import Trials, Values


class Purse:
    """The account of a search in `pay_for_all`."""

    def __init__(self, trials: Trials, ledger: LedgerApi) -> None:
        """Look after the account that the space's budget names."""
        assert trials.space.budget is not None
        self._trials, self._ledger, self._account = trials, ledger, trials.space.budget.account

    def fits(self, values: Values, running: Iterable[Values]) -> bool:
        """Whether the account can pay a new trial beside what the running ones will still charge."""
        owed = [event for each in (*running, values) for event in self._owed(each)]
        if not owed:
            return True
        try:
            self._ledger.check(self._account, ComposedDpEvent(owed), self._trials.protection(values))
        except BudgetRefusedError:
            return False
        return True

    def _owed(self, values: Values) -> list[DpEvent]:
        """The charges of a trial that are not made yet; those of one release are made in order."""
        bill = self._trials.bill(values)
        releases = {release for release, _ in bill}
        paid = {release: len(live_charges(self._ledger, self._account, release)) for release in releases}
        owed = []
        for release, event in bill:
            if paid[release] == 0:
                owed.append(event)
            else:
                paid[release] -= 1
        return owed


def live_charges(ledger: LedgerApi, account: str, release: str) -> list[Charge]:
    """The charges of a release that have not been cancelled."""
    return [each for each in ledger.charges_of(account, release) if each.state is not ChargeState.CANCELLED]
