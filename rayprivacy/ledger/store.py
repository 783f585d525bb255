"""The ledger: who has paid what, decided inside database transactions so that racing processes cannot overspend.

The order of a release is reserve (durable) -> start -> draw once -> commit_output. The charge is on disk before noise
exists, so a crash can waste budget but never spend it unseen; the output and its commit entry are written in one
transaction, so a reader sees both or neither; whatever is asked again is answered from the stored output.

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
import math
from collections.abc import Iterable
from datetime import UTC, datetime

from dp_accounting.dp_event import DpEvent
from sqlalchemy import Connection, insert, select

from rayprivacy.accounting.accountant import gdp_mu_squared
from rayprivacy.accounting.events import to_json
from rayprivacy.accounting.gaussian import epsilon_of
from rayprivacy.core.artifacts import digest_bytes
from rayprivacy.core.errors import LedgerError
from rayprivacy.core.units import Budget, NeighbouringRelation, PrivacyUnit
from rayprivacy.ledger import chain, filter
from rayprivacy.ledger.accounts import (
    Account,
    AccountStatus,
    all_accounts,
    check_same_terms,
    find_account,
    get_account,
    insert_account,
)
from rayprivacy.ledger.charges import Charge, ChargeState, advance, charge_id, fold
from rayprivacy.ledger.database import Database
from rayprivacy.ledger.schema import outputs
from rayprivacy.ledger.verify import VerifyReport, verify_rows


class Ledger:
    """One book of accounts in one SQLite file, safe for several processes at once."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    def open(cls, url: str, expected_head: str | None = None) -> "Ledger":
        """Open the ledger at a SQLAlchemy URL; create it with mode 0600, or migrate it, when needed.

        Args:
            url: e.g. `sqlite:///ledger.db`.
            expected_head: a head seen earlier, which the book must still contain.

        Raises:
            LedgerError: the URL is no SQLite file, or an older copy of the ledger was put back.
        """
        ledger = cls(Database(url))
        with ledger._database.read() as connection:
            if expected_head is not None and not chain.contains(connection, expected_head):
                raise LedgerError(
                    f"the ledger {ledger._database.path} lacks the entry {expected_head[:12]} seen earlier:"
                    " an older copy was put back, so restore the newest one."
                )
        return ledger

    def create_account(
        self,
        name: str,
        unit: PrivacyUnit,
        relation: NeighbouringRelation,
        budget: Budget,
        composition: str = "gdp",
    ) -> Account:
        """Open a new account.

        Raises:
            LedgerError: the name is taken, or the composition rule is unknown.
        """
        wanted = Account(name, unit, relation, budget.epsilon, budget.delta, composition, _now())
        with self._database.write() as connection:
            return insert_account(connection, wanted)

    def ensure_account(
        self,
        name: str,
        unit: PrivacyUnit,
        relation: NeighbouringRelation,
        budget: Budget,
        composition: str = "gdp",
    ) -> Account:
        """Return the account of this name, or create it; the cap of an existing account is not compared.

        Raises:
            LedgerError: the account exists with another unit, relation or composition rule.
        """
        wanted = Account(name, unit, relation, budget.epsilon, budget.delta, composition, _now())
        with self._database.write() as connection:
            found = find_account(connection, name)
            return check_same_terms(found, wanted) if found else insert_account(connection, wanted)

    def account(self, name: str) -> Account:
        """The account of this name.

        Raises:
            LedgerError: there is none; the message names those there are.
        """
        with self._database.read() as connection:
            return get_account(connection, name)

    def accounts(self) -> list[Account]:
        """Every account, by name."""
        with self._database.read() as connection:
            return all_accounts(connection)

    def entries(self, name: str) -> list[chain.Entry]:
        """The rows of the book about one account, in order."""
        with self._database.read() as connection:
            return chain.read(connection, get_account(connection, name).name)

    def status(self, name: str) -> AccountStatus:
        """What an account has used and what is left."""
        with self._database.read() as connection:
            account = get_account(connection, name)
            entries = chain.read(connection, name)
        used = _used(fold(entries).values())
        total = math.fsum(used)
        return AccountStatus(
            account=account,
            mu_squared_cap=filter.cap(account.budget),
            mu_squared_used=total,
            epsilon_spent=epsilon_of(math.sqrt(total), account.delta),
            epsilon_remaining=filter.remaining_epsilon(account.budget, used),
            entries=entries,
        )

    def check(self, name: str, event: DpEvent) -> None:
        """Do nothing when the event fits what the account has left now; nothing is reserved.

        Raises:
            BudgetRefusedError: it does not fit.
            EventError: the account's composition rule does not take such an event.
        """
        with self._database.read() as connection:
            _admit(connection, name, event)

    def find_charge(self, name: str, release_id: str, input_digest: str) -> Charge | None:
        """The charge of this release and input that has not been cancelled."""
        return next((c for c in self.charges_of(name, release_id) if _pays(c, input_digest)), None)

    def charges_of(self, name: str, release_id: str) -> list[Charge]:
        """Every charge of a release, cancelled ones included, in the order of reservation."""
        with self._database.read() as connection:
            get_account(connection, name)
            return _charges_of(connection, name, release_id)

    def reserve(self, name: str, release_id: str, input_digest: str, event: DpEvent) -> Charge:
        """Charge the account, durably; asking again for the same release and input returns the same charge.

        Raises:
            BudgetRefusedError: the event does not fit; nothing was charged.
            LedgerError: the release and input have been charged for another event, or a name is empty or too long.
            EventError: the account's composition rule does not take such an event.
        """
        _check_names(release_id, input_digest)
        events = json.dumps(to_json(event), sort_keys=True)
        with self._database.write() as connection:
            get_account(connection, name)
            earlier = _charges_of(connection, name, release_id)
            paid = next((charge for charge in earlier if _pays(charge, input_digest)), None)
            if paid is not None:
                return _same_event(paid, event)
            _admit(connection, name, event)
            attempt = sum(charge.input_digest == input_digest for charge in earlier)
            identity = charge_id(name, release_id, input_digest, attempt)
            charge = Charge(identity, name, release_id, input_digest, event, ChargeState.RESERVED, "")
            return _record(connection, charge, "reserve", events=events)

    def start(self, charge: Charge) -> Charge:
        """Say that noise may be drawn from now on; a started or committed charge is returned as it is.

        Raises:
            LedgerError: the charge was cancelled.
        """
        with self._database.write() as connection:
            known = _reload(connection, charge)
            if known.state in (ChargeState.STARTED, ChargeState.COMMITTED):
                return known
            return _record(connection, _require(known, ChargeState.RESERVED, "start"), "start")

    def cancel(self, charge: Charge) -> Charge:
        """Give a reserved charge back; after `start` there is no refund.

        Raises:
            LedgerError: the charge has started.
        """
        with self._database.write() as connection:
            known = _reload(connection, charge)
            if known.state is ChargeState.CANCELLED:
                return known
            return _record(connection, _require(known, ChargeState.RESERVED, "cancel"), "cancel")

    def commit_output(self, charge: Charge, output: bytes) -> None:
        """Store the output once, with the commit entry, in one transaction; an output already stored stays.

        Raises:
            LedgerError: the charge has not started.
        """
        with self._database.write() as connection:
            known = _reload(connection, charge)
            if known.state is ChargeState.COMMITTED:
                return  # another process won: its output is the release, this one was never seen
            _require(known, ChargeState.STARTED, "commit")
            digest = digest_bytes(output)
            row = {"charge": known.id, "release_id": known.release_id, "input_digest": known.input_digest}
            connection.execute(insert(outputs).values(**row, blob=output, digest=digest))
            _record(connection, known, "commit", detail=json.dumps({"output_digest": digest}))

    def output(self, charge: Charge) -> bytes | None:
        """The stored output, or None before the commit.

        Raises:
            LedgerError: the stored bytes are not those that were committed.
        """
        with self._database.read() as connection:
            row = connection.execute(select(outputs).where(outputs.c.charge == charge.id)).first()
            book = chain.read(connection, charge.account)
        commits = [entry for entry in book if entry.charge == charge.id and entry.kind == "commit"]
        if row is None and not commits:
            return None
        blob = b"" if row is None else bytes(row.blob)
        if not commits or json.loads(commits[0].detail) != {"output_digest": digest_bytes(blob)}:
            raise LedgerError(f"the stored output of release '{charge.release_id}' was altered: restore the ledger.")
        return blob

    def head(self) -> str:
        """The hash of the last entry; checkpoints carry it, and `open` takes it back as `expected_head`."""
        with self._database.read() as connection:
            return chain.head(connection)

    def verify(self) -> VerifyReport:
        """Replay the book from its rows alone: hash chain, states, budgets, outputs.

        Raises:
            LedgerError: the first row that does not replay.
        """
        with self._database.read() as connection:
            return verify_rows(connection)

    def close(self) -> None:
        """Release the database."""
        self._database.close()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _used(charges: Iterable[Charge]) -> list[float]:
    return [gdp_mu_squared(charge.event) for charge in charges if charge.is_live]


def _admit(connection: Connection, name: str, event: DpEvent) -> None:
    account, request = get_account(connection, name), gdp_mu_squared(event)
    filter.admit(name, account.budget, _used(fold(chain.read(connection, name)).values()), request)


def _charges_of(connection: Connection, name: str, release_id: str) -> list[Charge]:
    return [charge for charge in fold(chain.read(connection, name)).values() if charge.release_id == release_id]


def _pays(charge: Charge, input_digest: str) -> bool:
    return charge.is_live and charge.input_digest == input_digest


def _reload(connection: Connection, charge: Charge) -> Charge:
    known = fold(chain.read(connection, charge.account)).get(charge.id)
    if known is None:
        raise LedgerError(f"the ledger holds no charge for release '{charge.release_id}': reserve it first.")
    return known


def _require(charge: Charge, state: ChargeState, verb: str) -> Charge:
    if charge.state is not state:
        raise LedgerError(f"cannot {verb} release '{charge.release_id}': it is {charge.state} and must be {state}.")
    return charge


def _same_event(charge: Charge, event: DpEvent) -> Charge:
    if charge.event != event:
        raise LedgerError(
            f"release '{charge.release_id}' is charged for {to_json(charge.event)}, not {to_json(event)}:"
            " use another release id for another mechanism."
        )
    return charge


def _check_names(release_id: str, input_digest: str) -> None:
    if not 1 <= len(release_id) <= 200:
        raise LedgerError(f"the release id has {len(release_id)} characters: give 1 to 200.")
    if not 1 <= len(input_digest) <= 64:
        raise LedgerError(f"the input digest has {len(input_digest)} characters: give 1 to 64.")


def _record(connection: Connection, charge: Charge, kind: str, events: str = "", detail: str = "") -> Charge:
    entry = chain.append(
        connection,
        account=charge.account,
        kind=kind,
        release_id=charge.release_id,
        input_digest=charge.input_digest,
        charge=charge.id,
        events=events,
        detail=detail,
        created_at=_now(),
    )
    return advance(None if kind == "reserve" else charge, entry)
