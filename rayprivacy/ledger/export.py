"""Export a ledger for an auditor outside, and verify such an export without the database.

An export is a directory of four files, readable by the owner alone:

    accounts.jsonl, entries.jsonl, outputs.jsonl     one canonical JSON object per row; of outputs the digest, no bytes
    summary.json                                     head, counts, what each account has left, SHA-256 of the files,
                                                     signature

All entries of all accounts are in it, because one hash chain runs through them. It holds release names and keyed
digests, no released and no private text. `verify_export` believes none of it: it compares the digests, checks the
signature, replays the rows with the auditor's code, and compares the summary with what came out.

A signature proves the origin of the export to a reader who knows the public key beforehand. One that is only compared
with the public key inside the export proves nothing about its origin, and is reported as unchecked.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection

from rayprivacy.core.errors import ConfigError, LedgerError
from rayprivacy.core.files import private_directory, write_atomic
from rayprivacy.core.keys import Key
from rayprivacy.ledger.audit import exported
from rayprivacy.ledger.audit.replay import VerifyReport, audit
from rayprivacy.ledger.audit.rows import canonical, read_rows


def export_ledger(connection: Connection, directory: Path, key: Key | None = None) -> Path:
    """Write the whole ledger to a new directory, after replaying it.

    Args:
        connection: inside a transaction, so that all rows are of one moment.
        directory: new or empty.
        key: the ledger's key; signs the export. Without it the summary says "unsigned".

    Returns:
        the directory.

    Raises:
        ConfigError: the directory is a file, or holds something.
        LedgerError: the ledger does not replay.
    """
    _require_empty(directory)
    rows = read_rows(connection)
    report, books = audit(rows, key)
    files = {
        name: "".join(f"{canonical(row)}\n" for row in getattr(rows, table)).encode()
        for name, table in exported.TABLES.items()
    }
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    summary = exported.summarize(report, books) | {"files": digests, "signed_with": "ed25519" if key else "unsigned"}
    summary |= {"public_key": exported.public_key_of(key) if key else None}
    summary |= {"signature": exported.sign(key, canonical(summary).encode()) if key else None}
    with _usable():
        private_directory(directory)
    for name, data in files.items():
        write_atomic(directory / name, data)
    write_atomic(directory / exported.SUMMARY, f"{canonical(summary)}\n".encode())  # last: an export has it or is none
    return directory


def verify_export(
    directory: Path, key: Key | None = None, public_key: str | None = None, expected_head: str | None = None
) -> VerifyReport:
    """Verify an export.

    Args:
        directory: what `export_ledger` wrote.
        key: the ledger's key, to check macs and signature.
        public_key: 64 hex digits known from elsewhere, to check the signature without the key.
        expected_head: a head seen earlier, which the ledger must still contain.

    Raises:
        LedgerError: a file is missing or altered, the signature is missing or another's, or a row does not replay.
    """
    expected = exported.public_key_of(key) if key else None
    if public_key is not None and expected not in (None, public_key.lower()):
        raise LedgerError("the public key given is not that of the ledger key given: give one of the two.")
    trusted = expected or (public_key.lower() if public_key is not None else None)
    return exported.verify(directory, key, trusted, expected_head)


def _require_empty(directory: Path) -> None:
    with _usable():
        taken = directory.exists() and (not directory.is_dir() or any(directory.iterdir()))
    if taken:
        raise ConfigError(f"the export directory {directory} is not empty: give a new one.")


@contextmanager
def _usable() -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # a name with a NUL is a ValueError
        reason = getattr(error, "strerror", None) or "no path"
        raise ConfigError(f"the export directory cannot be used ({reason}): give a new one.") from None
