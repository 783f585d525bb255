"""The first page of an export: head, counts, and where every account stands, all of it computed from the rows."""

import math
from typing import Any

from rayprivacy.ledger.audit.replay import Audit

SCHEMA_VERSION = 1
SUMMARY = "summary.json"
TABLES = {"accounts.jsonl": "accounts", "entries.jsonl": "entries", "outputs.jsonl": "outputs"}
MEASURES = {
    "gdp": "sum of 1/sigma^2",
    "zcdp": "sum of rho",
    "rdp": "sum of the Renyi cost at the order",
    "pld": "runs of each line of the plan",
    "metric": "sum of tokens * epsilon * diameter",
}


def summarize(audited: Audit) -> dict[str, Any]:
    """The summary as JSON values, without digests and signature.

    A balance is given in the integers of the book (2^-80 of the measure; runs for a plan), what is left in the measure.
    """
    report = audited.report
    accounts = [
        {
            "name": name,
            "created_at": book.terms.created_at,
            "terms": dict(book.terms.values) | {"parameters": book.terms.parameters},
            "measure": MEASURES[book.terms.composition],
            "balance": {state: list(sums) for state, sums in book.sums.items()},
            "left": book.rule.left(book.live),
        }
        for name, book in sorted(audited.books.items())
    ]
    counts = {"entries": report.entries, "charges": report.charges, "outputs": report.outputs}
    return {"schema_version": SCHEMA_VERSION, "head": report.head, **counts, "accounts": accounts}


def agree(found: Any, stated: Any) -> bool:
    """Whether two summaries say the same; floats may differ as two machines' libraries do, nothing else may."""
    if isinstance(found, float) and isinstance(stated, float):
        return math.isclose(found, stated, rel_tol=1e-6, abs_tol=1e-9)
    if type(found) is not type(stated):
        return False
    if isinstance(found, dict):
        return found.keys() == stated.keys() and all(agree(found[key], stated[key]) for key in found)
    if isinstance(found, list):
        return len(found) == len(stated) and all(map(agree, found, stated))
    return bool(found == stated)
