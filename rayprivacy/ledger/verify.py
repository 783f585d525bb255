"""Verify a ledger: replay it from its rows alone, with code of its own (`rayprivacy.ledger.audit` says how and why)."""

from sqlalchemy import Connection

from rayprivacy.core.keys import Key
from rayprivacy.ledger.audit.replay import VerifyReport, replay
from rayprivacy.ledger.audit.rows import Rows, read_rows

__all__ = ["Rows", "VerifyReport", "read_rows", "replay", "verify_rows"]


def verify_rows(connection: Connection, key: Key | None = None, expected_head: str | None = None) -> VerifyReport:
    """Replay every row of a database.

    Args:
        connection: inside a transaction, so that all rows are of one moment.
        key: the ledger's key, to check the macs; without it they are reported as unchecked.
        expected_head: a head seen earlier, which the book must still contain.

    Raises:
        LedgerError: the first row that does not replay.
    """
    return replay(read_rows(connection), key, expected_head)
