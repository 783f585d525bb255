"""The certificate: what one release claims, from the rows of the ledger, as JSON with a published schema.

The claim is the account's cap (epsilon, delta), because releases are adaptive; what has been spent up to this release
is printed as a diagnostic. Nothing in it moves: it speaks of the book as it stood at this release's commit entry, whose
hash it carries, and holds no clock time, so that a resumed run writes the same bytes.
"""

import math
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, Literal

from dp_accounting.dp_event import DpEvent, RepeatAndSelectDpEvent
from pydantic import Field

from rayprivacy.accounting.accountant import epsilon
from rayprivacy.accounting.events import leaves, to_json
from rayprivacy.accounting.zcdp import epsilon_of_rho, rho
from rayprivacy.core.config import Config
from rayprivacy.core.errors import EventError, LedgerError
from rayprivacy.core.units import AccountKind, Budget, NeighbouringRelation, PrivacyUnit
from rayprivacy.ledger.accounts import Account
from rayprivacy.ledger.balances import Balance
from rayprivacy.ledger.chain import Entry
from rayprivacy.ledger.charges import fold
from rayprivacy.ledger.store import Ledger

AUDIT_WARNING = "audit run: made-up secrets were planted into its corpus, so nothing of it is to be shared"
DIAGNOSTIC = "diagnostic, not the claim"
TEST_KEY_WARNING = "not private: test key"
EXPOSED_WARNING = (
    "the corpus has been used by runs that do not protect what this account protects; the claim covers this account "
    "only"
)


class EventRow(Config):
    """One mechanism of the release: noise std / L2 sensitivity, sampling rate, and how often it ran."""

    kind: str
    sigma_eff: float | None
    q: float | None
    count: int = Field(ge=1)
    sensitivity: str


class Request(Config):
    """What the run asked for."""

    epsilon: float = Field(gt=0)
    delta: float = Field(gt=0, lt=1)


class Accountant(Config):
    """How the claim and the diagnostics were computed."""

    claim: str
    diagnostic: str


class Spent(Config):
    """Epsilon of all charges up to this release, at the account's delta, by several accountants; not the claim."""

    label: str = DIAGNOSTIC
    epsilon: float = Field(ge=0)
    delta: float = Field(gt=0, lt=1)
    epsilon_rdp: float | None
    epsilon_zcdp: float | None


class Exposure(Config):
    """A run of the same corpus that is non-private for this account."""

    account: str
    kind: AccountKind
    release_id: str


class Neighbour(Config):
    """Another account of the same corpus: its guarantee and this one add up."""

    account: str
    kind: AccountKind
    unit: PrivacyUnit
    relation: NeighbouringRelation
    epsilon: float
    delta: float


class Certificate(Config):
    """The certificate of one release. `epsilon` and `delta` are the account's cap, which is the claim."""

    schema_version: Literal[2] = 2
    release_id: str
    corpus_digest: str
    account: str
    kind: AccountKind
    unit: PrivacyUnit
    relation: NeighbouringRelation
    epsilon: float = Field(gt=0)
    delta: float = Field(gt=0, lt=1)
    composition: str
    parameters: dict[str, Any]
    accountant: Accountant
    events: list[EventRow]
    spent_diagnostic: Spent
    run_request: Request
    tuning_charge: dict[str, Any] | None = None
    exposures: list[Exposure]
    other_accounts: list[Neighbour]
    assumptions: list[str]
    as_published: dict[str, Any] | None = None
    figures: dict[str, str] = Field(default_factory=dict)
    audit: dict[str, Any] | None = None
    ledger_head: str
    ledger_keyed: bool
    warnings: list[str]
    versions: dict[str, str]
    stages: list[dict[str, Any]]


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
    figures: Mapping[str, str] | None = None,
    warnings: Sequence[str] = (),
    as_published: Mapping[str, Any] | None = None,
    audit: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Build the certificate of a committed release, as JSON values that fit `Certificate`.

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
        figures: what people should read first of the claim, by label.
        warnings: of the method.
        as_published: the method's own figure where the paper's analysis differs from ours.
        audit: what was planted, if this is an audit run.

    Raises:
        LedgerError: the release has no commit entry.
    """
    (terms, rule), book = ledger.terms(account), _until_commit(ledger.entries(account), release_id)
    charges = [charge for charge in fold(book) if charge.is_live]
    exposures = [Exposure(release_id=each.release_id, **each.facts) for each in book if each.kind == "exposure"]
    own = [charge.event for charge in charges if charge.release_id == release_id]
    used = Balance.of(charges, rule).used
    certificate = Certificate(
        release_id=release_id,
        corpus_digest=corpus_digest,
        account=account,
        kind=terms.kind,
        unit=terms.unit,
        relation=terms.relation,
        epsilon=terms.epsilon,
        delta=terms.delta,
        composition=terms.composition,
        parameters=_parameters(terms, book),
        accountant=Accountant(claim=rule.claim, diagnostic=f"dp-accounting {version('dp-accounting')}"),
        events=[row for event in own for row in _rows(event, terms)],
        spent_diagnostic=_spent([charge.event for charge in charges], rule.epsilon(used), terms.delta),
        run_request=Request(epsilon=run_request.epsilon, delta=run_request.delta),
        exposures=exposures,
        tuning_charge=_tuning(own, terms),
        other_accounts=_neighbours(ledger, terms, book[-1].seq),
        assumptions=list(assumptions),
        as_published=dict(as_published) if as_published else None,
        figures=dict(figures or {}),
        audit=dict(audit) if audit else None,
        ledger_head=book[-1].hash,
        ledger_keyed=bool(book[-1].mac),
        warnings=[*warnings]
        + [TEST_KEY_WARNING] * test_key
        + [EXPOSED_WARNING] * bool(exposures)
        + [AUDIT_WARNING] * bool(audit),
        versions=dict(versions),
        stages=[dict(stage) for stage in stages],
    )
    return certificate.model_dump(mode="json")


def _tuning(events: list[DpEvent], terms: Account) -> dict[str, Any] | None:
    """For the winner of a search: how many trials were expected, and what one of them costs."""
    for event in events:
        if isinstance(event, RepeatAndSelectDpEvent):
            trial = [row.model_dump(mode="json") for row in _rows(event.event, terms)]
            shape = None if math.isinf(event.shape) else event.shape
            return {"rule": "repeat-and-select", "expected_trials": event.mean, "shape": shape, "trial": trial}
    return None


def _until_commit(entries: list[Entry], release_id: str) -> list[Entry]:
    commits = [entry.seq for entry in entries if entry.release_id == release_id and entry.kind == "commit"]
    if not commits:
        raise LedgerError(f"release '{release_id}' has no committed output: finish the run before its certificate.")
    return [entry for entry in entries if entry.seq <= commits[-1]]


def _parameters(terms: Account, book: list[Entry]) -> dict[str, Any]:
    """The account's parameters at this release: what the account said later is not in them."""
    said: dict[str, Any] = {}
    for entry in book:
        said |= entry.facts if entry.kind == "meaning" else {}
    return {name: value for name, value in terms.parameters.items() if name not in terms.later or name in said}


def _rows(event: DpEvent, terms: Account) -> list[EventRow]:
    noise = f"sigma_eff = noise std / L2 sensitivity to one {terms.unit.value} under {terms.relation.value}"
    rows = []
    for leaf, count in leaves(event):
        facts = to_json(leaf)
        note = _of_words(facts) if "tokens" in facts else noise
        sigma, q = facts.get("noise_multiplier"), facts.get("sampling_probability")
        rows.append(EventRow(kind=facts["kind"], sigma_eff=sigma, q=q, count=count, sensitivity=note))
    return rows


def _of_words(facts: Mapping[str, Any]) -> str:
    """A mechanism on words, which has no noise multiplier."""
    sensitive = f", those of the list {facts['sensitive'][:16]} alone" if "sensitive" in facts else ""
    return (
        f"{facts['tokens']} words{sensitive}: epsilon {facts['epsilon']:.6g} for each unit of distance, distances up to"
        f" {facts['diameter']:.6g}, and {facts.get('keep_cost', 0.0):.6g} for words that may be kept"
    )


def _spent(events: list[DpEvent], spent: float, delta: float) -> Spent:
    try:
        by_rdp = epsilon(events, delta, "rdp")
    except EventError:
        by_rdp = None
    try:
        by_zcdp = epsilon_of_rho(float(sum(rho(event) for event in events)), delta)
    except EventError:
        by_zcdp = None
    return Spent(epsilon=spent, delta=delta, epsilon_rdp=by_rdp, epsilon_zcdp=by_zcdp)


def _neighbours(ledger: Ledger, terms: Account, until: int) -> list[Neighbour]:
    group = [other for other in ledger.group(terms.name) if ledger.entries(other.name)[0].seq <= until]
    shown = ("kind", "unit", "relation", "epsilon", "delta")
    return [Neighbour(account=other.name, **{name: getattr(other, name) for name in shown}) for other in group]
