"""What accounts have spent and have left, as gauges for Prometheus.

Ray's metrics agent exports them on every node as `ray_rayprivacy_account_<what>{account="..."}`. The account is the
only tag: account names are public labels that a user chose, so choose names that may stand on a dashboard. Releases,
digests and users never become tags. Every figure follows from the terms and the events of the ledger, which say nothing
about the corpus; 'spent' is a diagnostic, the claim of an account is its cap.

The gauges follow the ledger, not the calls: a thread reads what has been appended since it last looked, so that charges
wait for no gauge, and charges made elsewhere (another service, the command line) show too. When metrics fail, they
stop; the ledger goes on.

Two services export the same accounts: ask Prometheus for `max by (account)`.
"""

import threading
import time
from collections import Counter
from contextlib import suppress

from ray.util.metrics import Gauge
from sqlalchemy import func, select

from rayprivacy.ledger.schema import entries
from rayprivacy.ledger.store import Ledger

IDLE_SECONDS = 10.0  # how late a charge made elsewhere may show; Ray drops a gauge that is not set for 20 seconds
REST_SECONDS = 0.5  # how often a busy ledger is looked at
GAUGES = {
    "epsilon_cap": "Epsilon of the account's cap, which is its claim.",
    "delta_cap": "Delta of the account's cap.",
    "epsilon_spent": "Epsilon of all charges that are not cancelled, at the account's delta: a diagnostic.",
    "epsilon_reserved": "Epsilon of charges reserved and not started: they can still be given back.",
    "epsilon_remaining": "The largest epsilon, at the account's delta, that one more release may ask for.",
    "share_used": "Part of the cap that all charges take together.",
    "charges": "Number of charges that are not cancelled.",
}
_FIGURE = {"epsilon_cap": "epsilon", "delta_cap": "delta"}
_CHANGE = {"reserve": 1, "cancel": -1}


class AccountGauges:
    """The gauges of one ledger, in one process of a Ray cluster."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._gauges: dict[str, Gauge] = {}
        self._seen = 0
        self._charges = Counter[str]()
        self._figures: dict[str, dict[str, float]] = {}
        self._one_reader = threading.Lock()
        self._due = threading.Event()

    def watch(self) -> None:
        """Follow the ledger from now on, in a thread that ends with the process."""
        threading.Thread(target=self._watch, name="account-gauges", daemon=True).start()

    def wake(self) -> None:
        """Say that something may have been appended; returns at once."""
        self._due.set()

    def refresh(self) -> None:
        """Set the gauges of every account; figures are computed again for those that have new entries."""
        with self._one_reader:
            self._gauges = self._gauges or {
                name: Gauge(f"rayprivacy_account_{name}", text, ("account",)) for name, text in GAUGES.items()
            }
            end, charges, touched = self._news()
            for account in touched:
                self._figures[account] = self._ledger.status(account).figures | {"charges": charges[account]}
            for account, figures in self._figures.items():
                for name, gauge in self._gauges.items():
                    gauge.set(float(figures[_FIGURE.get(name, name)]), tags={"account": account})
            self._seen, self._charges = end, charges  # last: what failed is tried again

    def _news(self) -> tuple[int, Counter[str], set[str]]:
        counts = select(entries.c.account, entries.c.kind, func.count(), func.max(entries.c.seq))
        news = counts.where(entries.c.seq > self._seen).group_by(entries.c.account, entries.c.kind)
        with self._ledger.snapshot() as connection:
            rows = connection.execute(news).all()
        charges = self._charges.copy()
        for account, kind, count, _ in rows:
            charges[account] += _CHANGE.get(kind, 0) * count
        return max((last for *_, last in rows), default=self._seen), charges, {row[0] for row in rows}

    def _watch(self) -> None:
        while True:
            with suppress(Exception):  # a gauge is worth no charge
                self.refresh()
            time.sleep(REST_SECONDS)
            self._due.wait(IDLE_SECONDS)
            self._due.clear()
