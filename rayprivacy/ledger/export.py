"""Export a ledger for an auditor outside, and verify such an export, which anyone may have written, without a database.

An export is a directory of four files, readable by the owner alone:

    accounts.jsonl, entries.jsonl, outputs.jsonl     one canonical JSON object per row; of outputs the digest, no bytes
    summary.json                                     head, counts, what each account has left, SHA-256 of the files,
                                                     signature

All entries of all accounts are in it, because one hash chain runs through them. It holds release names and keyed
digests, no released and no private text. `verify_export` believes none of it.

The signature is Ed25519, with a private key derived from the ledger's key. The macs inside the book convince only those
who hold the ledger's key; a signature convinces anyone who knows the public key, which may be printed in a report. The
seed of the private key is PRF(ledger key, "ledger-signature"), so that there is no second secret to keep. A signature
proves the origin of the export to a reader who knows the public key beforehand. One that is only compared with the
public key inside the export proves nothing about its origin, and is reported as unchecked.
"""

import hashlib
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from sqlalchemy import Connection

from rayprivacy.core.errors import ConfigError, LedgerError
from rayprivacy.core.files import private_directory, write_atomic
from rayprivacy.core.keys import Key
from rayprivacy.ledger.audit.book import AccountBook
from rayprivacy.ledger.audit.replay import VerifyReport, audit
from rayprivacy.ledger.audit.rows import Row, Rows, canonical, mapping, parse, read_rows

_SCHEMA_VERSION = 1
_SUMMARY = "summary.json"
_TABLES = {"accounts.jsonl": "accounts", "entries.jsonl": "entries", "outputs.jsonl": "outputs"}
_MEASURES = {
    "gdp": "sum of 1/sigma^2",
    "zcdp": "sum of rho",
    "rdp": "sum of the Renyi cost at the order",
    "pld": "runs of each line of the plan",
    "metric": "sum of tokens * epsilon * diameter",
}
_OF_THRESHOLDS = ", and sum of the deltas of thresholds"
_OF_ROWS = {"schema_version", "head", "entries", "charges", "outputs", "accounts"}
_OF_EXPORT = {"files", "signed_with", "public_key", "signature"}
_IN_SUMMARY = (f"the file {_SUMMARY}", "its only line")
_PUBLIC, _SIGNATURE = re.compile("[0-9a-f]{64}"), re.compile("[0-9a-f]{128}")  # one spelling each


def export_ledger(connection: Connection, directory: Path, key: Key | None = None) -> Path:
    """Write the whole ledger to a new or empty directory, after replaying it, signed where there is the ledger's key.

    The connection is inside a transaction, so that all rows are of one moment. ConfigError when the directory is a file
    or holds something, LedgerError when the ledger does not replay.
    """
    _require_empty(directory)
    rows = read_rows(connection)
    report, books = audit(rows, key)
    files = {
        name: "".join(f"{canonical(row)}\n" for row in getattr(rows, table)).encode() for name, table in _TABLES.items()
    }
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    summary = _summarize(report, books) | {"files": digests, "signed_with": "ed25519" if key else "unsigned"}
    summary |= {"public_key": public_key_of(key) if key else None}
    summary |= {"signature": sign(key, canonical(summary).encode()) if key else None}
    with _usable():
        private_directory(directory)
    for name, data in files.items():
        write_atomic(directory / name, data)
    write_atomic(directory / _SUMMARY, f"{canonical(summary)}\n".encode())  # last: an export has it or is none
    return directory


def verify_export(
    directory: Path, key: Key | None = None, public_key: str | None = None, expected_head: str | None = None
) -> VerifyReport:
    """Verify an export, which must hold `expected_head`: macs and signature by the ledger's key, or the signature by a
    public key (64 hex digits) known from elsewhere. LedgerError when anything is missing, altered, or does not replay.
    """
    expected = public_key_of(key) if key else None
    if public_key is not None and expected not in (None, public_key.lower()):
        raise LedgerError("the public key given is not that of the ledger key given: give one of the two.")
    trusted = expected or (public_key.lower() if public_key is not None else None)
    summary = _read_summary(directory)
    signature = _check_signature(summary, trusted)
    tables = {table: _rows(directory, name, summary["files"][name]) for name, table in _TABLES.items()}
    report, books = audit(Rows(**tables), key, expected_head)
    if not _agree(_summarize(report, books), {name: summary[name] for name in _OF_ROWS}):
        _fail(_SUMMARY, "says something else than its rows")
    return replace(report, signature=signature)


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


def _summarize(report: VerifyReport, books: Mapping[str, AccountBook]) -> Row:
    """The first page of an export, unsigned; balances are integers of the book, and what is left is in the measure."""
    accounts = [
        {
            "name": name,
            "created_at": book.terms.created_at,
            "terms": book.terms.values | {"parameters": book.terms.parameters},
            "measure": _MEASURES[book.terms.composition] + _OF_THRESHOLDS * book.terms.keeps_delta,
            "balance": {state: list(sums) for state, sums in book.sums.items()},
            "left": book.rule.left(book.live),
        }
        for name, book in sorted(books.items())
    ]
    counts = {"entries": report.entries, "charges": report.charges, "outputs": report.outputs}
    return {"schema_version": _SCHEMA_VERSION, "head": report.head, **counts, "accounts": accounts}


def _agree(found: Any, stated: Any) -> bool:
    """Whether two summaries say the same; floats may differ as two machines' libraries do, nothing else may."""
    if isinstance(found, float) and isinstance(stated, float):
        return math.isclose(found, stated, rel_tol=1e-6, abs_tol=1e-9)
    if type(found) is not type(stated):
        return False
    if isinstance(found, dict):
        return found.keys() == stated.keys() and all(_agree(found[key], stated[key]) for key in found)
    if isinstance(found, list):
        return len(found) == len(stated) and all(map(_agree, found, stated))
    return bool(found == stated)


def _read_summary(directory: Path) -> Row:
    text = _text(directory, _SUMMARY)
    summary = mapping(parse(text, *_IN_SUMMARY), _OF_ROWS | _OF_EXPORT, *_IN_SUMMARY)
    if text != f"{_canonical(summary)}\n":
        _fail(_SUMMARY, "is not spelled as an export spells it")
    if summary["schema_version"] != _SCHEMA_VERSION:
        raise LedgerError(
            f"the export is not of version {_SCHEMA_VERSION}: verify it with the rayprivacy that wrote it."
        )
    mapping(summary["files"], set(_TABLES), *_IN_SUMMARY)
    return summary


def _check_signature(summary: Row, trusted: str | None) -> str:
    signature, public_key = summary["signature"], summary["public_key"]
    if signature is None and public_key is None and summary["signed_with"] == "unsigned":
        if trusted is not None:
            _fail(_SUMMARY, "is not signed")
        return "none"
    if not (isinstance(signature, str) and isinstance(public_key, str) and summary["signed_with"] == "ed25519"):
        _fail(_SUMMARY, "holds no signature that can be read")
    if trusted is not None and public_key != trusted:
        _fail(_SUMMARY, "is signed with another key")
    signed = _canonical({name: value for name, value in summary.items() if name != "signature"})
    if not _is_signed(public_key, signature, signed.encode()):
        _fail(_SUMMARY, "does not match its signature")
    return "unchecked" if trusted is None else "checked"


def _canonical(summary: Row) -> str:
    try:
        return canonical(summary)
    except RecursionError:
        _fail(_SUMMARY, "is nested too deep")


def _rows(directory: Path, name: str, digest: Any) -> list[Row]:
    text = _text(directory, name, digest)
    if text and not text.endswith("\n"):
        _fail(name, "breaks off in a line")
    return [
        parse(line, f"line {number} of {name}", "the row") for number, line in enumerate(text.split("\n")[:-1], start=1)
    ]


def _text(directory: Path, name: str, digest: Any = None) -> str:
    try:
        data = (directory / name).read_bytes()
    except OSError as error:
        raise LedgerError(f"the export file {name} cannot be read ({error.strerror}): copy it again.") from None
    if name != _SUMMARY and hashlib.sha256(data).hexdigest() != digest:
        _fail(name, "is not the one its summary names")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        _fail(name, "is not UTF-8")


def _fail(name: str, what: str) -> NoReturn:
    raise LedgerError(f"the file {name} of the export {what}: it was altered, so ask for a new export.")


def public_key_of(key: Key) -> str:
    """The public key that belongs to a ledger key, as 64 hex digits."""
    return _private(key).public_key().public_bytes_raw().hex()


def sign(key: Key, message: bytes) -> str:
    """The signature of a message, as 128 hex digits."""
    return _private(key).sign(message).hex()


def _is_signed(public_key: str, signature: str, message: bytes) -> bool:
    """Whether the signature is the public key's; False for what is no key or no signature."""
    if not _PUBLIC.fullmatch(public_key) or not _SIGNATURE.fullmatch(signature):
        return False
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key)).verify(bytes.fromhex(signature), message)
    except (InvalidSignature, ValueError):
        return False
    return True


def _private(key: Key) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(key.digest("ledger-signature")))
