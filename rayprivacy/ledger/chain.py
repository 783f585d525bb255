"""The hash chain: each entry names the hash of the one before, so that the book cannot change behind its reader.

hash = SHA-256 of the canonical JSON of every other field, `prev_hash` and `seq` included. Changing, removing or
reordering an entry breaks every later link. What a chain alone cannot show is a tail cut off, or the whole book written
anew: for that, a run keeps the head it has seen and `Ledger.open(url, expected_head=...)` asks for it.

>>> first = chain_entry(GENESIS, 1, account="a", kind="create", created_at="2026-01-01T00:00:00+00:00")
>>> second = chain_entry(first.hash, 2, account="a", kind="reserve", created_at="2026-01-01T00:00:01+00:00")
>>> second.prev_hash == first.hash
True
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

from sqlalchemy import Connection, func, insert, select

from rayprivacy.core.artifacts import digest_json
from rayprivacy.ledger.schema import entries

GENESIS = "0" * 64


@dataclass(frozen=True)
class Entry:
    """One row of the book.

    Attributes:
        seq: 1, 2, 3, ... over the whole ledger.
        account: the account that the entry belongs to.
        kind: create, reserve, start, commit or cancel.
        release_id, input_digest, charge: which charge; empty for `create`.
        events: JSON of the accounting event, for `reserve`.
        detail: JSON of what else is fixed by the entry (the account's terms; the digest of the output).
        created_at: UTC time, for people; nothing depends on it.
        prev_hash, hash: the chain.
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


def entry_hash(entry: Entry) -> str:
    """The hash that the entry must carry."""
    fields = asdict(entry)
    del fields["hash"]
    return digest_json(fields)


def chain_entry(prev_hash: str, seq: int, **fields: Any) -> Entry:
    """A new entry, linked and hashed."""
    entry = Entry(seq=seq, prev_hash=prev_hash, **fields)
    return replace(entry, hash=entry_hash(entry))


def append(connection: Connection, **fields: Any) -> Entry:
    """Write the next entry; the caller holds the write transaction."""
    last = connection.execute(select(entries.c.seq, entries.c.hash).order_by(entries.c.seq.desc()).limit(1)).first()
    seq, prev = (last.seq, last.hash) if last else (0, GENESIS)
    entry = chain_entry(prev, seq + 1, **fields)
    connection.execute(insert(entries).values(**asdict(entry)))
    return entry


def read(connection: Connection, account: str | None = None) -> list[Entry]:
    """The entries in order, of one account or of all."""
    query = select(entries).order_by(entries.c.seq)
    if account is not None:
        query = query.where(entries.c.account == account)
    return [Entry(**row) for row in connection.execute(query).mappings()]


def head(connection: Connection) -> str:
    """The hash of the last entry; GENESIS for an empty book."""
    found = connection.execute(select(entries.c.hash).order_by(entries.c.seq.desc()).limit(1)).scalar()
    return str(found) if found else GENESIS


def contains(connection: Connection, digest: str) -> bool:
    """Whether the book holds an entry of this hash."""
    query = select(func.count()).select_from(entries).where(entries.c.hash == digest)
    return digest == GENESIS or bool(connection.execute(query).scalar_one())
