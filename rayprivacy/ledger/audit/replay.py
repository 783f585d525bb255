"""One walk over the rows of a book that applies every check, in the order of the book.

Every entry carries its hash, its predecessor's and its mac; charges moved as they can; costs are those of the events,
and balances their sums; live charges never exceeded a cap; outputs, rows of accounts and exposures are all there.
"""

from dataclasses import dataclass

from rayprivacy.core.keys import Key
from rayprivacy.ledger.audit.book import AccountBook, Charges, Exposures
from rayprivacy.ledger.audit.rows import Row, Rows, check_links, check_types, fail
from rayprivacy.ledger.audit.terms import check_row, read_meaning, read_terms

_NO_CHARGE = ("release_id", "input_digest", "charge", "events", "cost")
_BLANK: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("create", "meaning", "plan"), _NO_CHARGE),
    "reserve": ("detail",),
    **dict.fromkeys(("start", "renew", "takeover", "commit"), ("events", "cost")),
    "cancel": ("events", "cost", "detail"),
    "exposure": ("charge", "cost"),
}


@dataclass(frozen=True)
class VerifyReport:
    """A ledger that replays: how many accounts, entries, charges and outputs it has, and the hash of its last entry.

    `macs` is 'checked' with the key, 'unchecked' for want of it, or 'none' in a book kept without a key. Of a book that
    was keyed later, 'checked from entry 17 on': the entries before may have been written anew. `signature`, of an
    export, is 'checked' against a key, 'unchecked' for want of one, or 'none'.
    """

    accounts: int
    entries: int
    charges: int
    outputs: int
    head: str
    macs: str = "none"
    signature: str = "none"


def audit(
    rows: Rows, key: Key | None = None, expected_head: str | None = None
) -> tuple[VerifyReport, dict[str, AccountBook]]:
    """Replay a book that must hold `expected_head`; LedgerError names the first misfit. Macs need the key."""
    check_types(rows)
    head, macs = check_links(rows.entries, key, expected_head)
    walk = _Walk()
    for row in rows.entries:
        walk.take(row)
    walk.exposures.check_none_due("the end")
    _check_accounts(walk, rows.accounts)
    _check_outputs(walk, rows.outputs)
    counts = len(walk.books), len(rows.entries), len(walk.charges.by_id), len(rows.outputs)
    return VerifyReport(*counts, head, macs), walk.books


class _Walk:
    """The state of the replay between two entries."""

    def __init__(self) -> None:
        self.books: dict[str, AccountBook] = {}
        self.charges = Charges()
        self.exposures = Exposures(self.books)

    def take(self, row: Row) -> None:
        """Apply one entry."""
        kind, where = row["kind"], f"entry {row['seq']}"
        _check_shape(row, kind, where)
        if kind != "exposure":
            self.exposures.check_none_due(where)
        if kind == "create":
            self._create(row, where)
        book = self.books.get(row["account"])
        if book is None:
            fail(where, "names an account that was not created")
        if kind == "plan":
            book.register_plan(row, where)
        elif kind == "meaning":
            before, book.terms = book.terms, read_meaning(book.terms, row, where)
            self.exposures.opened(book.terms, before)
        elif kind == "exposure":
            self.exposures.recorded(row, where)
        elif kind == "reserve":
            self.charges.reserve(row, book.reserve(row, where), where)
            self.exposures.reserved(book.terms, row, where)
        elif kind != "create":
            self._advance(book, row, where)
        book.check_balance(row, where)

    def _create(self, row: Row, where: str) -> None:
        if row["account"] in self.books:
            fail(where, "creates an account twice")
        terms = read_terms(row, where)
        self.books[terms.name] = AccountBook(terms, where)
        self.exposures.opened(terms)

    def _advance(self, book: AccountBook, row: Row, where: str) -> None:
        charge, before = self.charges.advance(row, where)
        book.move(charge.cost, before, charge.state)
        if charge.state == "cancelled":
            self.exposures.cancelled(book.terms, row)
        elif row["kind"] == "start":
            self.exposures.started(book.terms, row, charge.cost)


def _check_shape(row: Row, kind: str, where: str) -> None:
    if kind not in _BLANK:
        fail(where, "is of an unknown kind")
    has_rung = kind not in ("create", "meaning", "plan", "exposure")
    if any(row[column] for column in _BLANK[kind]) or (row["rung"] and not has_rung):
        fail(where, f"fills a column that a {kind} entry leaves empty")


def _check_accounts(walk: _Walk, rows: list[Row]) -> None:
    waiting = {name: book.terms for name, book in walk.books.items()}
    for row in rows:
        check_row(waiting.pop(row["name"], None), row)
    for name in sorted(waiting):
        fail(f"the row of account {name!r}", "differs from its create entry")


def _check_outputs(walk: _Walk, rows: list[Row]) -> None:
    waiting = {name: charge for name, charge in walk.charges.by_id.items() if charge.state == "committed"}
    for row in rows:
        where = f"the output of release {row['release_id']!r}"
        charge = waiting.pop(row["charge"], None)
        if charge is None or row["digest"] != charge.output or row["size"] < 0:
            fail(where, "is not what was committed")
        if (row["release_id"], row["input_digest"]) != charge.identity[1:3]:
            fail(where, "names another release than its charge")
    for charge in waiting.values():
        fail(f"the output of release {charge.identity[1]!r}", "is missing")
