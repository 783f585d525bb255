"""Reading an export that anyone may have written: every file whole, every line a row, every claim checked.

Its signature is Ed25519, with a private key derived from the ledger's key. The macs inside the book convince only those
who hold the ledger's key. A signature convinces anyone who knows the public key, which may be printed in a report: the
auditor outside needs no secret. The seed of the private key is PRF(ledger key, "ledger-signature"), so that there is no
second secret to keep.
"""

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from rayprivacy.core.errors import LedgerError
from rayprivacy.core.keys import Key
from rayprivacy.ledger.audit.book import AccountBook
from rayprivacy.ledger.audit.replay import VerifyReport, audit
from rayprivacy.ledger.audit.rows import Row, Rows, canonical, mapping, parse

SCHEMA_VERSION = 1
SUMMARY = "summary.json"
TABLES = {"accounts.jsonl": "accounts", "entries.jsonl": "entries", "outputs.jsonl": "outputs"}
_MEASURES = {
    "gdp": "sum of 1/sigma^2",
    "zcdp": "sum of rho",
    "rdp": "sum of the Renyi cost at the order",
    "pld": "runs of each line of the plan",
    "metric": "sum of tokens * epsilon * diameter",
}
_OF_ROWS = {"schema_version", "head", "entries", "charges", "outputs", "accounts"}
_OF_EXPORT = {"files", "signed_with", "public_key", "signature"}
_IN_SUMMARY = (f"the file {SUMMARY}", "its only line")
_PUBLIC, _SIGNATURE = re.compile("[0-9a-f]{64}"), re.compile("[0-9a-f]{128}")  # one spelling each


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


def summarize(report: VerifyReport, books: Mapping[str, AccountBook]) -> Row:
    """The first page of an export, from its rows, as JSON values without digests and signature.

    A balance is given in the integers of the book (2^-80 of the measure; runs for a plan), what is left in the measure.
    """
    accounts = [
        {
            "name": name,
            "created_at": book.terms.created_at,
            "terms": book.terms.values | {"parameters": book.terms.parameters},
            "measure": _MEASURES[book.terms.composition],
            "balance": {state: list(sums) for state, sums in book.sums.items()},
            "left": book.rule.left(book.live),
        }
        for name, book in sorted(books.items())
    ]
    counts = {"entries": report.entries, "charges": report.charges, "outputs": report.outputs}
    return {"schema_version": SCHEMA_VERSION, "head": report.head, **counts, "accounts": accounts}


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


def verify(directory: Path, key: Key | None, trusted: str | None, expected_head: str | None) -> VerifyReport:
    """Verify an export; `trusted` is the public key it must be signed with, if one is known."""
    summary = _summary(_read(directory / SUMMARY))
    signature = _check_signature(summary, trusted)
    tables = {table: _rows(directory, name, summary["files"][name]) for name, table in TABLES.items()}
    report, books = audit(Rows(**tables), key, expected_head)
    if not _agree(summarize(report, books), {name: summary[name] for name in _OF_ROWS}):
        _fail(SUMMARY, "says something else than its rows")
    return replace(report, signature=signature)


def _summary(data: bytes) -> Row:
    text = _text(data, SUMMARY)
    summary = mapping(parse(text, *_IN_SUMMARY), _OF_ROWS | _OF_EXPORT, *_IN_SUMMARY)
    if text != f"{_canonical(summary)}\n":
        _fail(SUMMARY, "is not spelled as an export spells it")
    if summary["schema_version"] != SCHEMA_VERSION:
        raise LedgerError(
            f"the export is not of version {SCHEMA_VERSION}: verify it with the rayprivacy that wrote it."
        )
    mapping(summary["files"], set(TABLES), *_IN_SUMMARY)
    return summary


def _check_signature(summary: Row, trusted: str | None) -> str:
    signature, public_key = summary["signature"], summary["public_key"]
    if signature is None and public_key is None and summary["signed_with"] == "unsigned":
        if trusted is not None:
            _fail(SUMMARY, "is not signed")
        return "none"
    if not (isinstance(signature, str) and isinstance(public_key, str) and summary["signed_with"] == "ed25519"):
        _fail(SUMMARY, "holds no signature that can be read")
    if trusted is not None and public_key != trusted:
        _fail(SUMMARY, "is signed with another key")
    signed = _canonical({name: value for name, value in summary.items() if name != "signature"})
    if not _is_signed(public_key, signature, signed.encode()):
        _fail(SUMMARY, "does not match its signature")
    return "unchecked" if trusted is None else "checked"


def _canonical(summary: Row) -> str:
    try:
        return canonical(summary)
    except RecursionError:
        _fail(SUMMARY, "is nested too deep")


def _rows(directory: Path, name: str, digest: Any) -> list[Row]:
    data = _read(directory / name)
    if hashlib.sha256(data).hexdigest() != digest:
        _fail(name, "is not the one its summary names")
    text = _text(data, name)
    if text and not text.endswith("\n"):
        _fail(name, "breaks off in a line")
    return [
        parse(line, f"line {number} of {name}", "the row") for number, line in enumerate(text.split("\n")[:-1], start=1)
    ]


def _text(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        _fail(name, "is not UTF-8")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise LedgerError(f"the export file {path.name} cannot be read ({error.strerror}): copy it again.") from None


def _fail(name: str, what: str) -> NoReturn:
    raise LedgerError(f"the file {name} of the export {what}: it was altered, so ask for a new export.")
