"""The hash chain of a ledger: each entry names the hash of the one before, so that no earlier one changes unseen.

hash = SHA-256 of the canonical JSON of every other field, `prev_hash` and `seq` included. Changing, removing or
reordering an entry breaks every later link. What a chain alone cannot show is a tail cut off, or a whole ledger written
anew. Against the first, a process that has seen a head asks for it again (`Ledger.open(url, expected_head=...)`: runs
and certificates carry heads). Against the second, a ledger may be kept with a key: then every entry is authenticated.

>>> first = chain_entry(GENESIS, 1, account="a", kind="create", created_at="2026-01-01T00:00:00+00:00")
>>> second = chain_entry(first.hash, 2, account="a", kind="reserve", created_at="2026-01-01T00:00:01+00:00")
>>> second.prev_hash == first.hash
True
"""

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, bindparam, insert, select

from rayprivacy.core.artifacts import digest_json
from rayprivacy.core.errors import LedgerError
from rayprivacy.core.keys import Key
from rayprivacy.ledger.rows import Query, decoding, find
from rayprivacy.ledger.schema import entries

GENESIS = "0" * 64
_E = entries.c
_SEEN = select(_E.hash).where(_E.seq == bindparam("seen")).scalar_subquery()
_LAST = Query(select(_E.seq, _E.hash, _E.mac, _E.account, _E.balance, _SEEN).order_by(_E.seq.desc()).limit(1))
_BALANCE = Query(select(_E.balance).where(_E.account == bindparam("account")).order_by(_E.seq.desc()).limit(1))
_INSERT = Query(insert(entries))


@dataclass(frozen=True)
class Entry:
    """One row of the ledger.

    Attributes:
        seq: 1, 2, 3, ... over the whole ledger.
        account: the account that the entry belongs to.
        kind: create, meaning, plan, reserve, start, renew, takeover, commit, cancel or exposure.
        release_id, input_digest, charge: which charge; empty for `create`, `meaning` and `plan`.
        events: JSON of the accounting event, for `reserve`.
        detail: JSON of what else is fixed by the entry (the account's terms, the lease, the digest of the output).
        created_at: UTC time, for people; nothing depends on it.
        prev_hash, hash: the chain.
        rung: which chunk of a long release; 0 for a release charged as a whole.
        cost: JSON of the integers that a `reserve` takes from the account.
        balance: JSON of the account's totals after this entry.
        mac: the hash, authenticated with the ledger's key when it has one.
    """

    seq: int
    account: str
    kind: str
    created_at: str
    prev_hash: str
    release_id: str = ""
    input_digest: str = ""
    charge: str = ""
    events: str = ""
    detail: str = ""
    hash: str = ""
    rung: int = 0
    cost: str = ""
    balance: str = ""
    mac: str = ""

    @property
    def facts(self) -> Any:
        """The detail as JSON values."""
        return json.loads(self.detail) if self.detail else {}


def entry_hash(entry: Entry) -> str:
    """The hash that the entry must carry; `rung`, `cost` and `balance` count only where they say something."""
    content = dict(vars(entry))
    for name in ("rung", "cost", "balance"):
        if not content[name]:
            del content[name]
    del content["hash"], content["mac"]
    return digest_json(content)


def chain_entry(prev_hash: str, seq: int, **facts: Any) -> Entry:
    """A new entry, linked and hashed."""
    entry = Entry(seq=seq, prev_hash=prev_hash, **facts)
    return replace(entry, hash=entry_hash(entry))


@dataclass(frozen=True)
class Head:
    """Where the ledger ended when it was last seen."""

    seq: int
    hash: str


class _Last(NamedTuple):
    """What is read of the last row; `hash_at_seen` is the hash of the row that was seen before, if any."""

    seq: int = 0
    hash: str = GENESIS
    mac: str = ""
    account: str = ""
    balance: str = ""
    hash_at_seen: str | None = None


def _last(connection: Connection, seen: int) -> _Last:
    """The last row as it stands, unchecked; the genesis for an empty ledger."""
    return _Last(*(_LAST.first(connection, seen=seen) or ()))


class Tail:
    """The end of the ledger inside one write transaction; entries are appended here.

    A ledger that is kept with another key is refused, and one that lacks the end `seen` by this process before.
    """

    def __init__(self, connection: Connection, key: Key | None, seen: Head) -> None:
        self.connection = connection
        self._key = key
        self._last = _last(connection, seen.seq)
        with decoding("the last entry"):
            if not (isinstance(self._last.seq, int) and isinstance(self._last.hash, str)):
                raise TypeError
        if self._last.mac and (key is None or _mac(key, self._last.hash) != self._last.mac):
            raise LedgerError("the ledger is kept with a key: give its key file (privacy.ledger_key, --ledger-key).")
        if seen.seq and self._last.hash_at_seen != seen.hash:
            raise older_copy(seen.hash)

    @property
    def head(self) -> Head:
        """Where the ledger ends now."""
        return Head(self._last.seq, self._last.hash)

    def balance(self, account: str) -> str:
        """The JSON of an account's totals after its last entry."""
        last = self._last
        return str(last.balance) if last.account == account else last_balance(self.connection, account)

    def append(self, **facts: Any) -> Entry:
        """Write the next entry."""
        facts.setdefault("created_at", datetime.now(UTC).isoformat(timespec="seconds"))
        entry = chain_entry(self.head.hash, self.head.seq + 1, **facts)
        entry = replace(entry, mac=_mac(self._key, entry.hash)) if self._key else entry
        _INSERT.run(self.connection, **vars(entry))
        self._last = _Last(entry.seq, entry.hash, entry.mac, entry.account, entry.balance)
        return entry


def last_balance(connection: Connection, account: str) -> str:
    """The JSON of an account's totals after its last entry."""
    return str(next(iter(_BALANCE.first(connection, account=account) or ()), ""))


def older_copy(digest: str) -> LedgerError:
    """What to raise when the ledger lacks an entry that was seen earlier."""
    return LedgerError(
        f"the ledger lacks the entry {digest[:12]} seen earlier: an older copy was put back, so restore the newest one."
    )


def _mac(key: Key, digest: str) -> str:
    return key.digest("ledger-entry", digest)


def read(connection: Connection, **values: Any) -> list[Entry]:
    """The entries whose columns have these values, as in `find`, in order."""
    # Sorted here: to save the sort, a database may choose to walk a whole account in the order of its entries.
    with decoding("the entries"):
        return sorted((Entry(**row) for row in find(connection, entries, **values)), key=lambda entry: entry.seq)


def head(connection: Connection) -> Head:
    """The end of the ledger, unchecked so that a damaged one can be opened and verified; GENESIS for an empty one."""
    last = _last(connection, seen=0)
    return Head(last.seq, last.hash)


def contains(connection: Connection, digest: str) -> bool:
    """Whether the ledger holds an entry of this hash."""
    return digest == GENESIS or bool(find(connection, entries, hash=digest))
