"""The certificate: what one release claims, from the rows of the ledger, as JSON with a published schema, and in words.

The claim is the account's cap (epsilon, delta), because releases are adaptive; what has been spent up to this release
is printed as a diagnostic. Nothing in it moves: it speaks of the book as it stood at this release's commit entry, whose
hash it carries, and holds no clock time, so that a resumed run writes the same bytes.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from typing import Any, Literal

from dp_accounting.dp_event import DpEvent, RepeatAndSelectDpEvent
from pydantic import Field

from rayprivacy.accounting.accountant import epsilon
from rayprivacy.accounting.events import delta_left, leaves, to_json, without_thresholds
from rayprivacy.accounting.gaussian import epsilon_of_rho, rho
from rayprivacy.core.config import Config
from rayprivacy.core.errors import EventError, LedgerError
from rayprivacy.core.units import AccountKind, Budget, NeighbouringRelation, PrivacyUnit
from rayprivacy.ledger.accounts import Account, unit_named, words_named
from rayprivacy.ledger.admission import Balance
from rayprivacy.ledger.book import Entry, Values
from rayprivacy.ledger.charges import fold
from rayprivacy.ledger.rules import Rule, Vector
from rayprivacy.ledger.store import Ledger

_SHOWN = ("kind", "unit", "relation", "epsilon", "delta")  # of the terms of an account
_MEANING = {
    "central": "differentially private",
    "selective": "selectively differentially private (what its policy calls sensitive, and nothing else)",
    "metric-local": "metric-local private, token by token,",
}
_ANOTHER = "is about other columns, words or another policy: for what this account protects it is non-private."
_OF_KIND = "is {}: for plain differential privacy it counts as non-private."
AUDIT_WARNING = "audit run: made-up secrets were planted into its corpus, so nothing of it is to be shared"
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
    """Epsilon of all charges up to this release, at the account's delta, by several accountants; not the claim.

    `left` is the largest epsilon that one more release might ask for then; certificates of earlier versions lack it.
    """

    label: str = "diagnostic, not the claim"
    epsilon: float = Field(ge=0)
    delta: float = Field(gt=0, lt=1)
    epsilon_rdp: float | None
    epsilon_zcdp: float | None
    left: float | None = None


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
    parameters: Values
    accountant: Accountant
    events: list[EventRow]
    spent_diagnostic: Spent
    run_request: Request
    tuning_charge: Values | None = None
    exposures: list[Exposure]
    other_accounts: list[Neighbour]
    assumptions: list[str]
    as_published: Values | None = None
    figures: dict[str, str] = Field(default_factory=dict)
    audit: Values | None = None
    ledger_head: str
    ledger_keyed: bool
    warnings: list[str]
    versions: dict[str, str]
    stages: list[Values]


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
) -> Values:
    """Build the certificate of a committed release, as JSON values that fit `Certificate`.

    `corpus_digest` is keyed, `assumptions` are what the guarantee rests on, `stages` are without clock times, `figures`
    are what people should read first, `as_published` is the method's own figure where the paper's analysis differs from
    ours, and `audit` what an audit run planted. LedgerError when the release has no commit entry.
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
        **{name: getattr(terms, name) for name in (*_SHOWN, "composition")},
        parameters=_parameters(terms, book),
        accountant=Accountant(claim=rule.claim, diagnostic=f"dp-accounting {version('dp-accounting')}"),
        events=[row for event in own for row in _rows(event, terms)],
        spent_diagnostic=_spent([charge.event for charge in charges], rule, used, terms.delta),
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
        + ["not private: test key"] * test_key
        + [EXPOSED_WARNING] * bool(exposures)
        + [AUDIT_WARNING] * bool(audit),
        versions=dict(versions),
        stages=[dict(stage) for stage in stages],
    )
    return certificate.model_dump(mode="json")


def _tuning(events: list[DpEvent], terms: Account) -> Values | None:
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


def _parameters(terms: Account, book: list[Entry]) -> Values:
    """The account's parameters at this release: what the account said later is not in them."""
    said = {name for entry in book if entry.kind == "meaning" for name in entry.facts}
    return {name: value for name, value in terms.parameters.items() if name not in terms.later or name in said}


def _rows(event: DpEvent, terms: Account) -> list[EventRow]:
    noise = f"sigma_eff = noise std / L2 sensitivity to one {terms.unit.value} under {terms.relation.value}"
    rows = []
    for leaf, count in leaves(event):
        facts = to_json(leaf)
        note = _of_words(facts) if "tokens" in facts else noise + _of_threshold(facts, terms)
        sigma, q = facts.get("noise_multiplier"), facts.get("sampling_probability")
        rows.append(EventRow(kind=facts["kind"], sigma_eff=sigma, q=q, count=count, sensitivity=note))
    return rows


def _of_threshold(facts: Mapping[str, Any], terms: Account) -> str:
    """What the threshold of a mechanism takes of delta, if it has one."""
    if "delta" not in facts:
        return ""
    return (
        f"; delta_T = {facts['delta']:g}, taken off the account's delta: keys that one {terms.unit.value} alone has are"
        " released with no larger probability"
    )


def _of_words(facts: Mapping[str, Any]) -> str:
    """A mechanism on words, which has no noise multiplier."""
    sensitive = f", those of the list {facts['sensitive'][:16]} alone" if "sensitive" in facts else ""
    return (
        f"{facts['tokens']} words{sensitive}: epsilon {facts['epsilon']:.6g} for each unit of distance, distances up to"
        f" {facts['diameter']:.6g}, and {facts.get('keep_cost', 0.0):.6g} for words that may be kept"
    )


def _spent(events: list[DpEvent], rule: Rule, used: Vector, delta: float) -> Spent:
    by_rdp: float | None = None  # where the accountant does not take such an event
    by_zcdp: float | None = None
    with suppress(EventError):
        by_rdp = epsilon(events, delta, "rdp")
    with suppress(EventError):
        plain, taken = without_thresholds(events)
        by_zcdp = epsilon_of_rho(float(sum(map(rho, plain))), delta_left(delta, taken))
    return Spent(
        epsilon=rule.epsilon(used), delta=delta, epsilon_rdp=by_rdp, epsilon_zcdp=by_zcdp, left=rule.left(used)
    )


def _neighbours(ledger: Ledger, terms: Account, until: int) -> list[Neighbour]:
    group = [other for other in ledger.group(terms.name) if ledger.entries(other.name)[0].seq <= until]
    return [Neighbour(account=other.name, **{name: getattr(other, name) for name in _SHOWN}) for other in group]


def meaning_of(kind: str, parameters: Mapping[str, Any]) -> str:
    """What a guarantee of this kind is; a metric-local one names the words that it is about, if its account does."""
    words = f" for {words_named(parameters['protected'])}," if "protected" in parameters else ""
    return _MEANING[kind] + words


def unit_of(unit: str, parameters: Mapping[str, Any]) -> str:
    """The unit, with the columns that mean it, if the account says which."""
    return f"{unit} ({unit_named(parameters['of'])})" if "of" in parameters else unit


def to_markdown(certificate: Mapping[str, Any]) -> str:
    """The certificate as Markdown that a privacy officer can read."""
    local = certificate["kind"] == "metric-local"  # which has no delta
    figures, published = list(certificate["figures"].items()), certificate["as_published"] or {}
    # Each stage alone, as planned; the claim is the account's cap all the same.
    stages = [(str(s["name"]), _number(s["epsilon"])) for s in certificate["stages"] if s.get("epsilon") is not None]
    claim = f"epsilon = {certificate['epsilon']:g}" + ("" if local else f" at delta = {certificate['delta']:g}")
    lines = [f"# Privacy certificate of release `{certificate['release_id']}`", ""]
    lines += [f"> **Warning: {warning}.**\n" for warning in certificate["warnings"]]
    lines += [
        f"**Claim.** All that is ever released from account `{certificate['account']}`, taken together, is"
        f" {meaning_of(certificate['kind'], certificate['parameters'])} with {claim}.",
        f"Protected unit: {unit_of(certificate['unit'], certificate['parameters'])}. Neighbouring relation:"
        f" {certificate['relation']}.",
        "",
        *([*_table(("Figure", "Value"), figures), ""] if figures else []),
        *_table(("Fact", "Value"), _facts(certificate)),
        "",
        "## What was released",
        "",
        *_table(("Mechanism", "sigma_eff", "q", "times"), [_event_cells(row) for row in certificate["events"]]),
        "",
        *dict.fromkeys(f"- {row['sensitivity']}" for row in certificate["events"]),
        "",
        *_section("Stages", _table(("Stage", "epsilon, as planned"), stages) if stages else []),
        *_section("What else was done with this corpus", [f"- {each}" for each in caveats(certificate)]),
        *_section("As published", [f"- {name}: {_number(value)}" for name, value in published.items()]),
        "## What the claim rests on",
        "",
        *[f"- {sentence}" for sentence in certificate["assumptions"]],
    ]
    return "\n".join(lines) + "\n"


def _facts(certificate: Mapping[str, Any]) -> list[tuple[str, ...]]:
    spent, request = certificate["spent_diagnostic"], certificate["run_request"]
    others = ", ".join(_number(spent[name]) for name in ("epsilon_rdp", "epsilon_zcdp"))
    keyed = "authenticated with the ledger's key" if certificate["ledger_keyed"] else "not authenticated"
    return [
        ("This run asked for", f"epsilon = {request['epsilon']:g}, delta = {request['delta']:g}"),
        (f"Spent up to this release ({spent['label']})", f"epsilon = {spent['epsilon']:.4g}"),
        ("The same by Renyi DP, by zCDP", others),
        ("Composition rule", f"{certificate['composition']}, {certificate['accountant']['claim']}"),
        *((("Policy of the claim", f"`{policy}`"),) if (policy := certificate["parameters"].get("policy")) else ()),
        ("Corpus (keyed digest)", f"`{certificate['corpus_digest']}`"),
        (f"Ledger entry ({keyed})", f"`{certificate['ledger_head']}`"),
    ]


def caveats(certificate: Mapping[str, Any], quote: str = "`") -> list[str]:
    """What else was done with the corpus, and adds to the claim or voids it; names stand between quotes."""
    accounts = [
        f"Account {quote}{other['account']}{quote} ({other['kind']}, {other['unit']}, {other['relation']}) may release"
        f" at epsilon = {other['epsilon']:g}, delta = {other['delta']:g} from the same corpus, on top of this claim."
        for other in certificate["other_accounts"]
    ]
    runs = [
        f"Release {quote}{run['release_id']}{quote} of account {quote}{run['account']}{quote}"
        f" {_ANOTHER if run['kind'] == certificate['kind'] else _OF_KIND.format(run['kind'])}"
        for run in certificate["exposures"]
    ]
    return accounts + runs


def _section(title: str, lines: list[str]) -> list[str]:
    return [f"## {title}", "", *lines, ""] if lines else []


def _event_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    sigma, q = row["sigma_eff"], row["q"]
    return row["kind"], "-" if sigma is None else f"{sigma:.6g}", "-" if q is None else f"{q:g}", str(row["count"])


def _number(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in (header, ("---",) * len(header), *rows)]
