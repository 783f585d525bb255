"""Replay a ledger from its rows alone, with code of its own.

The store and this module share the table definitions and nothing else: the hash is computed anew from the row, the
states by a transition table, the spending by walking the event JSON, and the cap by dp-accounting's formula instead of
ours, so that a mistake in one is seen by the other. Four things must hold: every entry carries the hash of its content
and of its predecessor; every charge moved as a charge can; at no time did the charges exceed the cap; every committed
charge has exactly its output.
"""

import hashlib
import json
import math
from dataclasses import dataclass, field
from typing import Any, NoReturn

from dp_accounting import get_epsilon_gaussian
from sqlalchemy import Connection, RowMapping, select

from rayprivacy.core.errors import LedgerError
from rayprivacy.ledger.schema import accounts, entries, outputs

_NEXT = {("", "reserve"), ("reserve", "start"), ("reserve", "cancel"), ("start", "commit")}
_SLACK = 1e-6  # between two ways to compute one epsilon

Row = RowMapping


@dataclass(frozen=True)
class VerifyReport:
    """A ledger that replays: how much of it there is, and the head to compare with."""

    accounts: int
    entries: int
    charges: int
    outputs: int
    head: str


@dataclass
class _Replay:
    terms: dict[str, dict[str, Any]] = field(default_factory=dict)
    state: dict[str, str] = field(default_factory=dict)
    identity: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    spent: dict[str, dict[str, float]] = field(default_factory=dict)
    committed: dict[str, str] = field(default_factory=dict)


def verify_rows(connection: Connection) -> VerifyReport:
    """Replay every row.

    Raises:
        LedgerError: the first row that does not replay.
    """
    book = list(connection.execute(select(entries).order_by(entries.c.seq)).mappings())
    replay, head = _Replay(), "0" * 64
    for number, row in enumerate(book, start=1):
        head = _check_link(row, number, head)
        _apply(replay, row)
    _check_accounts(replay, list(connection.execute(select(accounts)).mappings()))
    stored = list(connection.execute(select(outputs)).mappings())
    _check_outputs(replay, stored)
    return VerifyReport(len(replay.terms), len(book), len(replay.state), len(stored), head)


def _check_link(row: Row, number: int, head: str) -> str:
    if row["seq"] != number or row["prev_hash"] != head:
        _fail(f"entry {number}", "does not follow the one before it")
    content = {key: value for key, value in row.items() if key != "hash"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    if hashlib.sha256(text.encode()).hexdigest() != row["hash"]:
        _fail(f"entry {number}", "does not match its hash")
    return str(row["hash"])


def _apply(replay: _Replay, row: Row) -> None:
    account, kind, where = row["account"], row["kind"], f"entry {row['seq']}"
    if kind == "create":
        if account in replay.terms:
            _fail(where, "creates an account twice")
        replay.terms[account] = json.loads(row["detail"]) | {"created_at": row["created_at"]}
        replay.spent[account] = {}
        return
    charge, identity = row["charge"], (account, row["release_id"], row["input_digest"])
    if account not in replay.terms or (replay.state.get(charge, ""), kind) not in _NEXT:
        _fail(where, f"cannot {kind} in this state")
    if replay.identity.setdefault(charge, identity) != identity:
        _fail(where, "names another release than its charge")
    replay.state[charge] = kind
    if kind == "reserve":
        _reserve(replay, row, identity, where)
    elif kind == "cancel":
        del replay.spent[account][charge]
    elif kind == "commit":
        replay.committed[charge] = json.loads(row["detail"])["output_digest"]


def _reserve(replay: _Replay, row: Row, identity: tuple[str, str, str], where: str) -> None:
    spent, terms = replay.spent[row["account"]], replay.terms[row["account"]]
    if any(replay.identity[charge] == identity for charge in spent):
        _fail(where, "charges one release and input twice")
    spent[row["charge"]] = _mu_squared(json.loads(row["events"]), where)
    sigma = 1 / math.sqrt(math.fsum(spent.values()))
    if get_epsilon_gaussian(sigma, terms["delta"]) > terms["epsilon"] * (1 + _SLACK):
        _fail(where, f"exceeds the cap of account '{row['account']}'")


def _mu_squared(event: dict[str, Any], where: str) -> float:
    kind = event["kind"]
    if kind == "gaussian" and math.isfinite(event["noise_multiplier"]) and event["noise_multiplier"] > 0:
        return 1 / float(event["noise_multiplier"]) ** 2
    if kind == "self-composed" and type(event["count"]) is int and event["count"] >= 1:
        return int(event["count"]) * _mu_squared(event["event"], where)
    if kind == "composed" and event["events"]:
        return math.fsum(_mu_squared(part, where) for part in event["events"])
    _fail(where, f"holds a {kind} event that composition 'gdp' does not take")


def _check_accounts(replay: _Replay, rows: list[Row]) -> None:
    found = {row["name"]: {key: row[key] for key in row if key != "name"} for row in rows}
    if found != replay.terms:
        names = sorted(name for name in found | replay.terms if found.get(name) != replay.terms.get(name))
        _fail(f"the row of account '{names[0]}'", "differs from its create entry")


def _check_outputs(replay: _Replay, rows: list[Row]) -> None:
    for row in rows:
        where = f"the output of release '{row['release_id']}'"
        digest = hashlib.sha256(bytes(row["blob"])).hexdigest()
        if not digest == row["digest"] == replay.committed.pop(row["charge"], None):
            _fail(where, "is not what was committed")
        if (row["release_id"], row["input_digest"]) != replay.identity[row["charge"]][1:]:
            _fail(where, "names another release than its charge")
    if replay.committed:
        release = replay.identity[next(iter(replay.committed))][1]
        _fail(f"the output of release '{release}'", "is missing")


def _fail(where: str, what: str) -> NoReturn:
    raise LedgerError(f"{where} of the ledger {what}: the file was altered, so restore the newest copy of it.")
