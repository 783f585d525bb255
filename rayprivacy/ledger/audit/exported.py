"""Reading an export that anyone may have written: every file whole, every line a row, every claim checked."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from rayprivacy.core.errors import LedgerError
from rayprivacy.core.keys import Key
from rayprivacy.ledger.audit.replay import VerifyReport, audit
from rayprivacy.ledger.audit.rows import Row, Rows
from rayprivacy.ledger.audit.signing import is_signed
from rayprivacy.ledger.audit.strict import canonical, mapping, parse
from rayprivacy.ledger.audit.summary import SCHEMA_VERSION, SUMMARY, TABLES, agree, summarize

_OF_ROWS = {"schema_version", "head", "entries", "charges", "outputs", "accounts"}
_OF_EXPORT = {"files", "signed_with", "public_key", "signature"}
_IN_SUMMARY = (f"the file {SUMMARY}", "its only line")


def verify(directory: Path, key: Key | None, trusted: str | None, expected_head: str | None) -> VerifyReport:
    """Verify an export; `trusted` is the public key it must be signed with, if one is known."""
    summary = _summary(_read(directory / SUMMARY))
    signature = _check_signature(summary, trusted)
    tables = {table: _rows(directory, name, summary["files"][name]) for name, table in TABLES.items()}
    audited = audit(Rows(**tables), key, expected_head)
    if not agree(summarize(audited), {name: summary[name] for name in _OF_ROWS}):
        _fail(SUMMARY, "says something else than its rows")
    return replace(audited.report, signature=signature)


def _summary(data: bytes) -> dict[str, Any]:
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


def _check_signature(summary: dict[str, Any], trusted: str | None) -> str:
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
    if not is_signed(public_key, signature, signed.encode()):
        _fail(SUMMARY, "does not match its signature")
    return "unchecked" if trusted is None else "checked"


def _canonical(summary: dict[str, Any]) -> str:
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
