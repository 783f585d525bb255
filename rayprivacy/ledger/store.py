"""The ledger: accounts and their charges, in database transactions, so that racing processes cannot overspend.

The order of a release is reserve (durable) -> start -> draw once -> commit_output. The charge is on disk before noise
exists, so a crash can waste budget but never spend it unseen; the output and its commit entry are written in one
transaction, so a reader sees both or neither; a release that is asked for again is answered from the stored output.

>>> import tempfile
>>> from dp_accounting.dp_event import GaussianDpEvent
>>> ledger = Ledger.open(f"sqlite:///{tempfile.mkdtemp()}/ledger.db")
>>> account = ledger.create_account("chat", PrivacyUnit.USER, NeighbouringRelation.ADD_OR_REMOVE, Budget(3.0, 1e-6))
>>> charge = ledger.start(ledger.reserve("chat", "run-1", "d0", GaussianDpEvent(2.0)))
>>> ledger.commit_output(charge, b"noisy")
>>> ledger.output(charge), ledger.verify().charges
(b'noisy', 1)
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Self, Union, Unpack

from dp_accounting.dp_event import DpEvent
from sqlalchemy import Connection, insert

from rayprivacy.accounting.events import protected_by, to_json
from rayprivacy.core.errors import LedgerError
from rayprivacy.core.keys import Key
from rayprivacy.core.private import digest_bytes
from rayprivacy.core.units import AccountKind, Budget, NeighbouringRelation, PrivacyUnit, Protection
from rayprivacy.ledger import accounts, admission, book, charges, opening
from rayprivacy.ledger.accounts import Account
from rayprivacy.ledger.admission import Terms
from rayprivacy.ledger.audit.replay import VerifyReport, audit
from rayprivacy.ledger.audit.rows import read_rows
from rayprivacy.ledger.book import Entry, Head, Tail
from rayprivacy.ledger.charges import TERM_SECONDS, Charge, ChargeState
from rayprivacy.ledger.database import Database
from rayprivacy.ledger.opening import More
from rayprivacy.ledger.status import AccountStatus, Line, read_lines

if TYPE_CHECKING:
    from rayprivacy.ledger.client import LedgerClient  # imports Ray

LedgerApi = Union["Ledger", "LedgerClient"]  # in this process, or through an actor: both have the same methods
_STORE = book.Query(insert(book.outputs))


class Ledger:
    """Accounts in one database, safe for many processes at once; `with Ledger.open(url)` closes it.

    `news` is a sentence about an account or a ledger that was opened here, unspent; None while nothing was opened.
    """

    def __init__(self, database: Database, key: Key | None = None) -> None:
        self._database = database
        self._key = key
        self._seen = Head(0, book.GENESIS)
        self._terms: dict[str, Terms] = {}
        self.news: str | None = None

    @property
    def url(self) -> str:
        """The URL that it was opened at; it may hold a password."""
        return self._database.url

    @classmethod
    def open(cls, url: str, expected_head: str | None = None, key: Key | None = None) -> "Ledger":
        """Open the ledger at a SQLAlchemy URL; create it when there is none.

        Args:
            url: e.g. `sqlite:///ledger.db` (a file of mode 0600) or `postgresql://host/database`.
            expected_head: a head seen earlier, which the ledger must still contain.
            key: authenticates every entry from now on; every later writer needs it.

        Raises:
            LedgerError: the URL is no ledger, or one of another version, or an older copy of it was put back.
        """
        ledger = cls(Database(url), key)
        with ledger._database.read() as connection:
            if expected_head is not None and not book.contains(connection, expected_head):
                raise book.older_copy(expected_head)
            ledger._seen = book.head(connection)
        return ledger

    def create_account(
        self,
        name: str,
        unit: PrivacyUnit,
        relation: NeighbouringRelation,
        budget: Budget,
        composition: str = "gdp",
        **more: Unpack[More],
    ) -> Account:
        """Open a new account, with the plan of composition 'pld' if one is given; `more` is as at `opening.More`.

        Raises:
            LedgerError: the name is taken.
            ConfigError: the composition rule is unknown, or its parameters do not fit.
            BudgetRefusedError: the plan costs more than the account's cap; nothing was opened.
        """
        wanted = opening.draft(name, unit, relation, budget, composition, more)
        plan = opening.first_plan(wanted, more.get("plan", ()))
        with self._write() as tail:
            return self._open_account(tail, wanted, plan)

    def ensure_account(
        self,
        name: str,
        unit: PrivacyUnit,
        relation: NeighbouringRelation,
        budget: Budget,
        composition: str = "gdp",
        **more: Unpack[More],
    ) -> Account:
        """Return the account of this name, or open it as `create_account` does.

        One under which nothing was charged registers the plan, if its own does not pay for it. LedgerError when it
        protects something else or composes otherwise; cap and parameters are not compared.
        """
        wanted = opening.draft(name, unit, relation, budget, composition, more)
        known, plan = self.draft_plan(wanted, more.get("plan", ()))
        with self._write() as tail:
            found = accounts.find_account(tail.connection, name)
            if found is None:
                return self._open_account(tail, wanted, plan)
            accounts.check_same_meaning(found, wanted)
            if known and plan:
                opening.register_plan(tail, admission.read_terms(tail.connection, name), plan)
            return found

    def draft_plan(self, wanted: Account, events: Sequence[DpEvent]) -> tuple[Account | None, opening.Plan | None]:
        """The account of this name, and the plan that it, or else the wanted one, would register; nothing is written.

        LedgerError as in `ensure_account`, BudgetRefusedError when the plan costs more than the account's cap.
        """
        with self._database.read() as connection:
            known = accounts.find_account(connection, wanted.name)
            lacks = known is None or opening.lacks_plan(connection, accounts.check_same_meaning(known, wanted), events)
        return known, opening.first_plan(known or wanted, events) if lacks else None  # PLD takes seconds: no lock

    def fix_meaning(self, name: str, of: str) -> None:
        """Let an account say, for good, which columns mean its unit, where it was opened without; `of` is as at `More`.

        LedgerError when it says something else, ConfigError when it cannot say that.
        """
        with self._write() as tail:
            opening.fix_meaning(tail, name, {"of": of})
        self._terms.pop(name, None)

    def register_plan(self, name: str, events: Sequence[DpEvent]) -> float:
        """Fix what an account of composition 'pld' may ever run; returns the plan's epsilon, by PLD.

        A plan may be replaced as long as nothing was charged under it.

        Raises:
            BudgetRefusedError: the plan costs more than the account's cap.
            LedgerError: the account has another composition rule, or was charged under its plan.
        """
        plan = opening.price_plan(self.account(name), events)
        with self._write() as tail:
            opening.register_plan(tail, admission.read_terms(tail.connection, name), plan)
        return plan.epsilon

    def account(self, name: str) -> Account:
        """The account of this name; LedgerError when there is none."""
        return self.terms(name).account

    def terms(self, name: str) -> Terms:
        """The account of this name, with its admission rule."""
        with self._database.read() as connection:
            return admission.read_terms(connection, name)

    def group(self, name: str) -> list[Account]:
        """The other accounts of the same corpus."""
        with self._database.read() as connection:
            return accounts.group_of(connection, accounts.get_account(connection, name))

    def accounts(self) -> list[Account]:
        """Every account, by name."""
        with self._database.read() as connection:
            return accounts.find_accounts(connection)

    def entries(self, name: str) -> list[Entry]:
        """The account's entries, in order."""
        self._known(name)
        with self._database.read() as connection:
            return book.read(connection, account=name)

    def status(self, name: str) -> AccountStatus:
        """What an account has spent, and has left."""
        account, rule = self.terms(name)
        with self._database.read() as connection:
            balance = admission.read_balance(connection, name, rule)
            exposures = len(book.read(connection, account=name, kind="exposure"))
        return AccountStatus(account, rule, balance, exposures)

    def lines(self, name: str) -> list[Line]:
        """A line for each charge of an account, in the order of reservation."""
        self._known(name)
        with self._database.read() as connection:
            return read_lines(connection, name)

    def check(self, name: str, event: DpEvent, protection: Protection | None = None) -> None:
        """Do nothing when the event fits what the account has left now, else refuse it as `reserve` does."""
        terms = self._known(name)
        accounts.check_protection(terms.account, protection or Protection())
        accounts.check_words(terms.account, event)
        with self._database.read() as connection:
            used = admission.read_balance(connection, name, terms.rule).used
        with admission.explaining():
            admission.admit(terms, used, terms.rule.cost(event, used))

    def find_charge(self, name: str, release_id: str, input_digest: str, rung: int = 0) -> Charge | None:
        """The charge of this release, input and rung that has not been cancelled."""
        self._known(name)
        with self._database.read() as connection:
            found = charges.read_rungs(connection, name, release_id, input_digest, rung)
        return charges.live(found, rung)

    def charges_of(self, name: str, release_id: str) -> list[Charge]:
        """Every charge of a release, cancelled ones included, in the order of reservation."""
        self._known(name)
        with self._database.read() as connection:
            return charges.fold(book.read(connection, account=name, release_id=release_id))

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
        """Charge the account, durably; asking again for the same release, input and rung returns the same charge.

        Args:
            name: the account.
            release_id: names the release.
            input_digest: keyed digest of what it is computed from.
            event: what the mechanism does.
            rung: 1, 2, 3, ... for a release that is charged in chunks; 0 for one that is charged as a whole.
            protection: what the mechanism protects; central user-level add-or-remove when left out.

        Raises:
            BudgetRefusedError: the event does not fit; nothing was charged.
            LedgerError: the release was charged for another event, the account protects something else, the rung before
                is missing, or a name is empty or too long.
            EventError: the account's composition rule does not take such an event.
        """
        charges.check_names(release_id, input_digest, rung)
        terms = self._known(name)
        text = json.dumps(to_json(event), sort_keys=True)
        accounts.check_protection(terms.account, protection or Protection())
        accounts.check_words(terms.account, event)
        terms.rule.cost(event, (0,) * terms.rule.size)  # prices may take long the first time: not while others wait
        with admission.explaining(), self._write() as tail:
            earlier = charges.read_rungs(tail.connection, name, release_id, input_digest, rung)
            paid = charges.live(earlier, rung)
            if paid is not None:
                return charges.same_event(paid, event)
            charges.check_rung(earlier, release_id, rung)
            if name not in self._terms:  # its plan may have been replaced since it was read
                terms = admission.read_terms(tail.connection, name)
            attempt = sum(charge.rung == rung for charge in earlier)
            identity = charges.charge_id(name, release_id, input_digest, rung, attempt)
            terms = self._with_words(tail, terms, event)
            charge = admission.record(tail, terms, identity, release_id, input_digest, rung, event, text)
            opening.record_exposures(tail, terms.account, charge)
            return charge

    def start(self, charge: Charge, holder: str | None = None, seconds: float = TERM_SECONDS) -> Charge:
        """Lease the charge: its holder, this process when left out, may draw noise from now on.

        After the `seconds` of the term another process may take it over. A committed charge is returned as it is.

        Raises:
            LeaseHeldError: another process that may be alive has the lease.
            LedgerError: the charge was cancelled.
        """
        with self._write() as tail:
            known = charges.reload(tail.connection, charge)
            grant = charges.granted(known, holder or charges.this_process(), seconds)
            return self._move(tail, known, grant[0], vars(grant[1])) if grant else known

    def renew(self, charge: Charge, seconds: float = TERM_SECONDS) -> Charge:
        """Extend the lease of a started charge; that of a selection is left as it is until its day is nearly over.

        LedgerError when the charge has not started, or another process has taken it over.
        """
        with self._write() as tail:
            known = charges.fenced(charges.reload(tail.connection, charge), charge, "renew")
            if known.is_selection and not known.lease.is_nearly_over:
                return known
            lease = known.lease.renewed(seconds, daily=known.is_selection)
            return self._move(tail, known, "renew", vars(lease))

    def cancel(self, charge: Charge) -> Charge:
        """Give a reserved charge back; LedgerError when it has started, or is a rung with a later one on top of it."""
        with self._write() as tail:
            known = charges.reload(tail.connection, charge)
            if known.state is ChargeState.CANCELLED:
                return known
            charges.require(known, ChargeState.RESERVED, "cancel")
            charges.require_last(tail.connection, known)
            return self._move(tail, known, "cancel")

    def commit_output(self, charge: Charge, output: bytes) -> None:
        """Store the output once, with the commit entry, in one transaction; an output already stored stays.

        LedgerError when the charge has not started, or another process has taken it over.
        """
        digest = digest_bytes(output)
        with self._write() as tail:
            known = charges.reload(tail.connection, charge)
            if known.state is ChargeState.COMMITTED:
                return  # another process won: its output is the release, this one was never seen
            charges.fenced(known, charge, "commit")
            row = {"charge": known.id, "release_id": known.release_id, "input_digest": known.input_digest}
            _STORE.run(tail.connection, blob=output, digest=digest, **row)
            self._move(tail, known, "commit", {"output_digest": digest, "token": known.lease.token})

    def output(self, charge: Charge) -> bytes | None:
        """The stored output, or None before the commit; LedgerError when the bytes are not those committed."""
        with self._database.read() as connection:
            stored = [row["blob"] for row in book.find(connection, book.outputs, charge=charge.id)]
            committed = charges.committed_digest(connection, charge.id)
        if not stored and committed is None:
            return None
        blob = stored[0] if stored else b""
        if not isinstance(blob, bytes) or digest_bytes(blob) != committed:
            raise LedgerError(f"the stored output of release '{charge.release_id}' was altered: restore the ledger.")
        return blob

    def head(self) -> str:
        """The hash of the last entry; checkpoints carry it, and `open` takes it back as `expected_head`."""
        with self._database.read() as connection:
            return book.head(connection).hash

    def verify(self, expected_head: str | None = None) -> VerifyReport:
        """Replay the ledger from its rows alone, with code of its own (`ledger.audit`).

        Hash chain, states, costs, budgets and outputs are computed again; without the key, macs are reported unchecked.
        LedgerError names the first row that does not replay, or says that the head seen earlier is not among them.
        """
        with self._database.read() as connection:
            self._database.check_storage(connection)
            return audit(read_rows(connection), self._key, expected_head)[0]

    def snapshot(self) -> AbstractContextManager[Connection]:
        """A consistent view of all rows, for `export`."""
        return self._database.read()

    def close(self) -> None:
        """Give the database connections back."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    @contextmanager
    def _write(self) -> Iterator[Tail]:
        with self._database.write() as connection:
            tail = Tail(connection, self._key, self._seen)
            yield tail
        self._seen = tail.head

    def _move(self, tail: Tail, charge: Charge, kind: str, detail: Mapping[str, object] | None = None) -> Charge:
        return admission.record_move(tail, self._known(charge.account), charge, kind, detail or {})

    def _open_account(self, tail: Tail, wanted: Account, plan: opening.Plan | None) -> Account:
        where = "a new ledger," if tail.head.seq == 0 else "a new account in the ledger"
        opened = opening.open_account(tail, wanted, plan)
        self.news = (
            f"opened {where} {self._database.name}: account '{opened.name}', epsilon {opened.epsilon:g} at delta"
            f" {opened.delta:g}, from which nothing was spent before"
        )
        return opened

    def _with_words(self, tail: Tail, terms: Terms, event: DpEvent) -> Terms:
        """The terms, in which a metric-local account says which words it protects: those of its first release."""
        account = terms.account
        if account.kind is not AccountKind.METRIC_LOCAL or "protected" in account.parameters:
            return terms
        opening.fix_meaning(tail, account.name, {"protected": protected_by(event)})
        self._terms.pop(account.name, None)
        return admission.read_terms(tail.connection, account.name)

    def _known(self, name: str) -> Terms:
        if name in self._terms:
            return self._terms[name]
        with self._database.read() as connection:
            terms = admission.read_terms(connection, name)
            if terms.account.composition != "pld" or book.is_charged(connection, name):  # else a plan may still come
                self._terms[name] = terms
        return terms
