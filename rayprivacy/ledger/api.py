"""What runs ask of a ledger, wherever it is: in this process (`store.Ledger`) or an actor (`client.LedgerClient`).

The methods, their arguments and their errors are documented at `store.Ledger`.
"""

from typing import Protocol, Unpack

from dp_accounting.dp_event import DpEvent

from rayprivacy.core.units import Budget, NeighbouringRelation, PrivacyUnit, Protection
from rayprivacy.ledger.accounts import Account
from rayprivacy.ledger.admission import Terms
from rayprivacy.ledger.chain import Entry
from rayprivacy.ledger.charges import Charge
from rayprivacy.ledger.leases import TERM_SECONDS
from rayprivacy.ledger.opening import More
from rayprivacy.ledger.status import AccountStatus, Line


class LedgerApi(Protocol):
    """A ledger, as runs use it."""

    def create_account(
        self,
        name: str,
        unit: PrivacyUnit,
        relation: NeighbouringRelation,
        budget: Budget,
        composition: str = "gdp",
        **more: Unpack[More],
    ) -> Account:
        """Open a new account."""

    def ensure_account(
        self,
        name: str,
        unit: PrivacyUnit,
        relation: NeighbouringRelation,
        budget: Budget,
        composition: str = "gdp",
        **more: Unpack[More],
    ) -> Account:
        """Return the account of this name, or open it."""

    def fix_meaning(self, name: str, of: str) -> None:
        """Let an account say, for good, which columns mean its unit."""

    def account(self, name: str) -> Account:
        """The account of this name."""

    def accounts(self) -> list[Account]:
        """Every account, by name."""

    def terms(self, name: str) -> Terms:
        """The account of this name, with its admission rule."""

    def group(self, name: str) -> list[Account]:
        """The other accounts of the same corpus."""

    def entries(self, name: str) -> list[Entry]:
        """The account's entries, in order."""

    def status(self, name: str) -> AccountStatus:
        """What an account has spent, and has left."""

    def lines(self, name: str) -> list[Line]:
        """A line for each charge of an account, in the order of reservation."""

    def check(self, name: str, event: DpEvent, protection: Protection | None = None) -> None:
        """Do nothing when the event fits what the account has left now."""

    def find_charge(self, name: str, release_id: str, input_digest: str, rung: int = 0) -> Charge | None:
        """The charge of this release, input and rung that has not been cancelled."""

    def charges_of(self, name: str, release_id: str) -> list[Charge]:
        """Every charge of a release, cancelled ones included."""

    def reserve(
        self,
        name: str,
        release_id: str,
        input_digest: str,
        event: DpEvent,
        *,
        rung: int = 0,
        protection: Protection | None = None,
    ) -> Charge:
        """Charge the account, durably, once for the same release, input and rung."""

    def start(self, charge: Charge, holder: str | None = None, seconds: float = TERM_SECONDS) -> Charge:
        """Lease the charge: its holder, this process when left out, may draw noise from now on."""

    def renew(self, charge: Charge, seconds: float = TERM_SECONDS) -> Charge:
        """Extend the lease of a started charge."""

    def cancel(self, charge: Charge) -> Charge:
        """Give a reserved charge back; after `start` there is no refund."""

    def commit_output(self, charge: Charge, output: bytes) -> None:
        """Store the output once, with the commit entry."""

    def output(self, charge: Charge) -> bytes | None:
        """The stored output, or None before the commit."""

    def head(self) -> str:
        """The hash of the last entry."""

    def close(self) -> None:
        """Let go of the ledger, which stays what it is."""
