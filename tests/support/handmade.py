"""Books written by hand: rows as the format defines them, with a hash chain of the tests' own and no ledger code.

`Handmade` keeps the balances that an honest store would write; costs are given by the caller, as whole numbers of 2^-80
(or counts). `chain` links any list of entries, forged ones too.
"""

import hashlib
import json
from fractions import Fraction
from typing import Any

import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant
from sqlalchemy import Engine, create_engine, insert

from rayprivacy.core.errors import LedgerError
from rayprivacy.core.keys import Key
from rayprivacy.ledger import book as schema
from rayprivacy.ledger.audit.replay import VerifyReport, audit
from rayprivacy.ledger.audit.rows import Rows

Row = dict[str, Any]
STATES = ("reserved", "started", "committed")
UNTIL = "2026-01-01T00:05:00.000+00:00"
USUAL: Row = {"composition": "gdp", "epsilon": 3.0, "kind": "central", "corpus": "", "parameters": {}, "size": 1}
USUAL |= {"unit": "user", "relation": "add-or-remove", "delta": 1e-6}


def steps(value: float | Fraction) -> int:
    return -((-Fraction(value) * 2**80) // 1)


def gaussian(sigma: float) -> Row:
    return {"kind": "gaussian", "noise_multiplier": sigma}


def laplace(b: float) -> Row:
    return {"kind": "laplace", "noise_multiplier": b}


def sampled(q: float, sigma: float) -> Row:
    return {"kind": "poisson-sampled-gaussian", "sampling_probability": q, "noise_multiplier": sigma}


def times(count: int, event: Row) -> Row:
    return {"kind": "self-composed", "count": count, "event": event}


def gdp_cost(*sigmas: float) -> list[int]:
    return [steps(sum((1 / Fraction(sigma) ** 2 for sigma in sigmas), Fraction(0)))]


def renyi_cost(q: float, sigma: float, count: int, order: float) -> list[int]:
    accountant = RdpAccountant([order])
    one = dp_event.PoissonSampledDpEvent(q, dp_event.GaussianDpEvent(sigma))
    accountant.compose(dp_event.SelfComposedDpEvent(one, count))
    return [steps(float(value) * (1 + 1e-8)) for value in accountant.rdp]


def digest_of(release: str) -> str:
    return hashlib.sha256(f"output of {release}".encode()).hexdigest()


def entry_hash(entry: Row) -> str:
    content = {key: value for key, value in entry.items() if key not in ("hash", "mac")}
    for key in ("rung", "cost", "balance"):
        if content.get(key) in (0, ""):
            content.pop(key, None)
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def chain(entries: list[Row], key: Key | None = None) -> list[Row]:
    """The entries numbered, linked and, with a key, authenticated anew."""
    linked, head = [], "0" * 64
    for seq, entry in enumerate(entries, start=1):
        row = entry | {"seq": seq, "prev_hash": head, "hash": "", "mac": ""}
        head = row["hash"] = entry_hash(row)
        row["mac"] = key.digest("ledger-entry", head) if key else ""
        linked.append(row)
    return linked


class Handmade:
    """A book in the making; a key authenticates its entries."""

    def __init__(self, key: Key | None = None) -> None:
        self.key = key
        self.accounts: list[Row] = []
        self.entries: list[Row] = []
        self.outputs: list[Row] = []
        self.sums: dict[str, dict[str, list[int]]] = {}
        self.charges: dict[str, Row] = {}

    @property
    def rows(self) -> Rows:
        return Rows([*self.accounts], chain(self.entries, self.key), [*self.outputs])

    def entry(self, kind: str, account: str, **columns: Any) -> Row:
        row: Row = {"account": account, "kind": kind, "created_at": "2026-01-01T00:00:00+00:00"}
        row |= dict.fromkeys(("release_id", "input_digest", "charge", "events", "detail", "cost", "balance"), "")
        self.entries.append(row | {"rung": 0, "balance": json.dumps(self.sums[account], sort_keys=True)} | columns)
        return self.entries[-1]

    def open(self, name: str, *terms: Any, **more: Any) -> "Handmade":
        """Open an account; the terms that are not usual are named, or stand in the order of `USUAL`."""
        given: Row = USUAL | dict(zip(USUAL, terms, strict=False)) | more
        size = given.pop("size")
        self.sums[name] = {state: [0] * size for state in STATES}
        entry = self.entry("create", name, detail=json.dumps(given, sort_keys=True))
        row = given | {"parameters": json.dumps(given["parameters"], sort_keys=True)}
        self.accounts.append({"name": name, "created_at": entry["created_at"], **row})
        return self

    def say(self, account: str, **meaning: Any) -> None:
        """What the account protects, said after it was opened."""
        self.entry("meaning", account, detail=json.dumps(meaning))

    def plan(self, account: str, lines: list[tuple[Row, int]], epsilon: float) -> None:
        self.sums[account] = {state: [0] * len(lines) for state in STATES}
        detail = {"events": [line for line, _ in lines], "counts": [n for _, n in lines], "epsilon": epsilon}
        self.entry("plan", account, detail=json.dumps(detail))

    def reserve(self, account: str, release: str, event: Any, cost: list[int], rung: int = 0, name: str = "") -> str:
        charge = name or f"{account}/{release}/{rung}"
        self._move(account, cost, "", "reserved")
        identity = {"release_id": release, "input_digest": "d", "charge": charge, "rung": rung}
        self.charges[charge] = identity | {"account": account, "given": cost, "state": "reserved"}
        self.entry("reserve", account, **identity, events=json.dumps(event), cost=json.dumps(cost))
        return charge

    def step(self, kind: str, charge: str, detail: Row | str = "") -> None:
        known = self.charges[charge]
        after = {"cancel": "cancelled", "commit": "committed"}.get(kind, "started")
        self._move(known["account"], known["given"], known["state"], after)
        known["state"] = after
        text = detail if isinstance(detail, str) else json.dumps(detail)
        identity = {key: known[key] for key in ("release_id", "input_digest", "charge", "rung")}
        self.entry(kind, known["account"], **identity, detail=text)

    def lease(self, kind: str, charge: str, token: int = 1, holder: str = "me") -> None:
        self.step(kind, charge, {"token": token, "holder": holder, "until": UNTIL})

    def commit(self, charge: str, token: int = 1) -> None:
        known = self.charges[charge]
        digest = digest_of(known["release_id"])
        self.step("commit", charge, {"output_digest": digest, "token": token})
        named = {"charge": charge, "release_id": known["release_id"], "input_digest": known["input_digest"]}
        self.outputs.append(named | {"digest": digest, "size": len(f"output of {known['release_id']}")})

    def release(self, account: str, release: str, event: Any, cost: list[int], rung: int = 0) -> None:
        charge = self.reserve(account, release, event, cost, rung)
        self.lease("start", charge)
        self.commit(charge)

    def expose(self, central: str, account: str, kind: str, release: str) -> None:
        detail = json.dumps({"account": account, "kind": kind})
        events = json.dumps({"kind": "non-private"})
        self.entry("exposure", central, release_id=release, input_digest="d", events=events, detail=detail)

    def _move(self, account: str, cost: list[int], before: str, after: str) -> None:
        for state, sign in ((before, -1), (after, 1)):
            if state in STATES:
                moved = [a + sign * b for a, b in zip(self.sums[account][state], cost, strict=True)]
                self.sums[account] = {**self.sums[account], state: moved}


SELECTIVE = {"kind": "selective", "corpus": "mail", "parameters": {"policy": "names"}}


def every_kind(key: Key | None = None) -> Handmade:
    """A book with every composition, every kind of account and every kind of entry."""
    book = Handmade(key).open("chat")
    taken = book.reserve("chat", "run-0", gaussian(5.0), gdp_cost(5.0))
    book.lease("start", taken)
    book.lease("renew", taken)
    book.lease("takeover", taken, 2, "you")
    book.lease("renew", taken, 2, "you")
    book.commit(taken, 2)
    book.step("cancel", book.reserve("chat", "run-1", times(7, gaussian(9.0)), gdp_cost(*[9.0] * 7)))
    book.release("chat", "run-2", {"kind": "composed", "events": [gaussian(9), gaussian(8.0)]}, gdp_cost(9.0, 8.0))
    for rung in (1, 2):
        book.lease("start", book.reserve("chat", "chunks", gaussian(40.0), gdp_cost(40.0), rung))
    book.open("zero", "zcdp")
    book.release("zero", "z", {"kind": "composed", "events": [gaussian(8.0), laplace(8.0)]}, [steps(1 / 64)])
    book.open("renyi", "rdp", parameters={"order": 12.5})
    book.release("renyi", "r", times(100, sampled(0.01, 2.0)), renyi_cost(0.01, 2.0, 100, 12.5))
    book.open("planned", "pld", size=0)
    book.plan("planned", [(sampled(0.01, 1.0), 200), (gaussian(20.0), 10), (laplace(50.0), 2)], 1.29082)
    book.release("planned", "p", {"kind": "composed", "events": [sampled(0.005, 2.0), laplace(50.0)]}, [1, 0, 1])
    book.open("central", corpus="mail", parameters={"of": "user: author"})
    book.open("policy", **SELECTIVE)
    book.say("policy", of="user: author")
    exposing = book.reserve("policy", "s", gaussian(6.0), gdp_cost(6.0))
    book.expose("central", "policy", "selective", "s")
    book.lease("start", exposing)
    book.open("words", "metric", 500.0, kind="metric-local", corpus="mail")
    metric = {"kind": "metric-local", "epsilon": 0.5, "diameter": 1.5, "tokens": 100}
    book.say("words", protected="", of="user: author; words of text")
    charge = book.reserve("words", "m", metric, [75 * 2**80])
    book.expose("central", "words", "metric-local", "m")
    book.lease("start", charge)
    book.commit(charge)
    book.open("later", "zcdp", corpus="mail")
    book.expose("later", "words", "metric-local", "m")
    book.expose("later", "policy", "selective", "s")
    book.say("later", of="user: thread")
    charge = book.reserve("later", "t", gaussian(8.0), [steps(1 / 128)])
    book.expose("central", "later", "central", "t")
    book.lease("start", charge)
    book.commit(charge)
    return book


def stored(book: Handmade, url: str) -> Engine:
    engine = create_engine(url)
    schema.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(insert(schema.accounts), book.accounts)
        connection.execute(insert(schema.entries), book.rows.entries)
        for row in book.outputs:
            blob = f"output of {row['release_id']}".encode()
            values = {key: value for key, value in row.items() if key != "size"}
            connection.execute(insert(schema.outputs).values(**values, blob=blob))
    return engine


def copy(rows: Rows) -> Rows:
    return Rows(*([dict(row) for row in table] for table in (rows.accounts, rows.entries, rows.outputs)))


def replay(rows: Rows, key: Key | None = None, expected_head: str | None = None) -> VerifyReport:
    return audit(rows, key, expected_head)[0]


def refuse(rows: Rows, match: str | None = None, **more: Any) -> None:
    with pytest.raises(LedgerError, match=match):
        replay(rows, **more)


def refuse_next(book: Handmade, match: str) -> None:
    refuse(book.rows, match)


def judge(book: Handmade, honest: bool, match: str) -> None:
    """The auditor passes an honest book, and refuses another one for this reason."""
    if honest:
        replay(book.rows)
    else:
        refuse_next(book, match)
