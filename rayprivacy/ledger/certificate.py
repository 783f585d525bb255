"""The certificate: what one release claims, from the rows of the ledger, in JSON and for a privacy officer to read.

The claim is the account's cap (epsilon, delta), because releases are adaptive; what has been spent up to this release
is printed as a diagnostic. Nothing in it moves: it speaks of the book as it stood at this release's commit entry, whose
hash it carries, and holds no clock time, so that a resumed run writes the same bytes.
"""

import math
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from dp_accounting.dp_event import DpEvent

from rayprivacy.accounting.accountant import epsilon, total_mu_squared
from rayprivacy.accounting.events import leaves, to_json
from rayprivacy.core.errors import LedgerError
from rayprivacy.core.units import Budget
from rayprivacy.ledger.accounts import Account
from rayprivacy.ledger.chain import Entry
from rayprivacy.ledger.charges import fold
from rayprivacy.ledger.store import Ledger

SCHEMA_VERSION = 1
DIAGNOSTIC = "diagnostic, not the claim"
TEST_KEY_WARNING = "not private: test key"


def build_certificate(
    ledger: Ledger,
    account: str,
    release_id: str,
    *,
    corpus_digest: str,
    run_request: Budget,
    assumptions: Sequence[str],
    test_key: bool,
    versions: Mapping[str, str],
    stages: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Build the certificate of a committed release.

    Args:
        ledger: the book.
        account: the account that paid.
        release_id: which release.
        corpus_digest: names the corpus, keyed.
        run_request: what the run asked for.
        assumptions: what the guarantee rests on, in sentences.
        test_key: whether the public test key was used.
        versions: of the software.
        stages: the run's stages, as JSON objects without clock times.

    Raises:
        LedgerError: the release has no commit entry.
    """
    terms = ledger.account(account)
    book = _until_commit(ledger.entries(account), release_id)
    charges = [charge for charge in fold(book).values() if charge.is_live]
    own = [charge.event for charge in charges if charge.release_id == release_id]
    return {
        "schema_version": SCHEMA_VERSION,
        "release_id": release_id,
        "corpus_digest": corpus_digest,
        "account": account,
        "unit": terms.unit.value,
        "relation": terms.relation.value,
        "epsilon": terms.epsilon,
        "delta": terms.delta,
        "composition": terms.composition,
        "accountant": {
            "claim": "analytic Gaussian (GDP filter)",
            "diagnostic": f"dp-accounting {version('dp-accounting')}",
        },
        "events": [row for event in own for row in _rows(event, terms)],
        "spent_diagnostic": _spent([charge.event for charge in charges], terms.delta),
        "run_request": {"epsilon": run_request.epsilon, "delta": run_request.delta},
        "tuning_charge": None,
        "assumptions": list(assumptions),
        "as_published": None,
        "audit": None,
        "ledger_head": book[-1].hash,
        "warnings": [TEST_KEY_WARNING] if test_key else [],
        "versions": dict(versions),
        "stages": [dict(stage) for stage in stages],
    }


def to_markdown(certificate: Mapping[str, Any]) -> str:
    """The certificate for people: the claim first, then what it rests on."""
    claim = f"epsilon = {certificate['epsilon']:g} at delta = {certificate['delta']:g}"
    lines = [f"# Privacy certificate of release `{certificate['release_id']}`", ""]
    lines += [f"> **Warning: {warning}.**\n" for warning in certificate["warnings"]]
    lines += [
        f"**Claim.** All that is ever released from account `{certificate['account']}`, taken together, is"
        f" differentially private with {claim}.",
        f"Protected unit: {certificate['unit']}. Neighbouring relation: {certificate['relation']}.",
        "",
        *_table(("Fact", "Value"), _facts(certificate)),
        "",
        "## What was released",
        "",
        *_table(("Mechanism", "sigma_eff", "q", "times"), [_event_cells(row) for row in certificate["events"]]),
        "",
        *dict.fromkeys(f"- {row['sensitivity']}" for row in certificate["events"]),
        "",
        "## What the claim rests on",
        "",
        *[f"- {sentence}" for sentence in certificate["assumptions"]],
    ]
    return "\n".join(lines) + "\n"


def _until_commit(entries: list[Entry], release_id: str) -> list[Entry]:
    commits = [entry.seq for entry in entries if entry.release_id == release_id and entry.kind == "commit"]
    if not commits:
        raise LedgerError(f"release '{release_id}' has no committed output: finish the run before its certificate.")
    return [entry for entry in entries if entry.seq <= commits[-1]]


def _rows(event: DpEvent, terms: Account) -> list[dict[str, Any]]:
    note = f"sigma_eff = noise std / L2 sensitivity to one {terms.unit.value} under {terms.relation.value}"
    rows = []
    for leaf, count in leaves(event):
        facts = to_json(leaf)
        sigma, q = facts.get("noise_multiplier"), facts.get("sampling_probability")
        rows.append({"kind": facts["kind"], "sigma_eff": sigma, "q": q, "count": count, "sensitivity": note})
    return rows


def _spent(events: list[DpEvent], delta: float) -> dict[str, Any]:
    rho = total_mu_squared(events) / 2
    return {
        "label": DIAGNOSTIC,
        "epsilon": epsilon(events, delta),
        "delta": delta,
        "epsilon_rdp": epsilon(events, delta, "rdp"),
        "epsilon_zcdp": rho + 2 * math.sqrt(rho * math.log(1 / delta)),
    }


def _facts(certificate: Mapping[str, Any]) -> list[tuple[str, ...]]:
    spent, request = certificate["spent_diagnostic"], certificate["run_request"]
    return [
        ("This run asked for", f"epsilon = {request['epsilon']:g}, delta = {request['delta']:g}"),
        (f"Spent up to this release ({spent['label']})", f"epsilon = {spent['epsilon']:.4g}"),
        ("The same by Renyi DP and by zCDP", f"{spent['epsilon_rdp']:.4g} and {spent['epsilon_zcdp']:.4g}"),
        ("Composition rule", f"{certificate['composition']}, {certificate['accountant']['claim']}"),
        ("Corpus (keyed digest)", f"`{certificate['corpus_digest']}`"),
        ("Ledger entry", f"`{certificate['ledger_head']}`"),
    ]


def _event_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    sigma, q = row["sigma_eff"], row["q"]
    return row["kind"], "-" if sigma is None else f"{sigma:.6g}", "-" if q is None else f"{q:g}", str(row["count"])


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in (header, ("---",) * len(header), *rows)]
