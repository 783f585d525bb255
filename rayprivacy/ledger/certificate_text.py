"""The certificate for people: the claim first, then what else is known of the corpus, then what the claim rests on."""

from collections.abc import Mapping
from typing import Any

from rayprivacy.ledger.meaning import unit_named, words_named

MEANING = {
    "central": "differentially private",
    "selective": "selectively differentially private (what its policy calls sensitive, and nothing else)",
    "metric-local": "metric-local private, token by token,",
}


def meaning_of(kind: str, parameters: Mapping[str, Any]) -> str:
    """What a guarantee of this kind is; a metric-local one names the words that it is about, if its account does."""
    words = f" for {words_named(parameters['protected'])}," if "protected" in parameters else ""
    return MEANING[kind] + words


def unit_of(unit: str, parameters: Mapping[str, Any]) -> str:
    """The unit, with the columns that mean it, if the account says which."""
    return f"{unit} ({unit_named(parameters['of'])})" if "of" in parameters else unit


def to_markdown(certificate: Mapping[str, Any]) -> str:
    """The certificate as Markdown that a privacy officer can read."""
    local = certificate["kind"] == "metric-local"  # which has no delta
    claim = f"epsilon = {certificate['epsilon']:g}" + ("" if local else f" at delta = {certificate['delta']:g}")
    lines = [f"# Privacy certificate of release `{certificate['release_id']}`", ""]
    lines += [f"> **Warning: {warning}.**\n" for warning in certificate["warnings"]]
    lines += [
        f"**Claim.** All that is ever released from account `{certificate['account']}`, taken together, is"
        f" {meaning_of(certificate['kind'], certificate['parameters'])} with {claim}.",
        f"Protected unit: {unit_of(certificate['unit'], certificate['parameters'])}. Neighbouring relation:"
        f" {certificate['relation']}.",
        "",
        *_figures(certificate),
        *_table(("Fact", "Value"), _facts(certificate)),
        "",
        "## What was released",
        "",
        *_table(("Mechanism", "sigma_eff", "q", "times"), [_event_cells(row) for row in certificate["events"]]),
        "",
        *dict.fromkeys(f"- {row['sensitivity']}" for row in certificate["events"]),
        "",
        *_stages(certificate),
        *_corpus(certificate),
        *_published(certificate),
        "## What the claim rests on",
        "",
        *[f"- {sentence}" for sentence in certificate["assumptions"]],
    ]
    return "\n".join(lines) + "\n"


def _figures(certificate: Mapping[str, Any]) -> list[str]:
    """What the method wants to be read first."""
    return [*_table(("Figure", "Value"), list(certificate["figures"].items())), ""] if certificate["figures"] else []


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


def _stages(certificate: Mapping[str, Any]) -> list[str]:
    """What each stage costs alone, as planned; the claim is the account's cap all the same."""
    priced = [stage for stage in certificate["stages"] if stage.get("epsilon") is not None]
    if not priced:
        return []
    cells: list[tuple[str, ...]] = [(str(stage["name"]), _number(stage["epsilon"])) for stage in priced]
    return ["## Stages", "", *_table(("Stage", "epsilon, as planned"), cells), ""]


def caveats(certificate: Mapping[str, Any], quote: str = "`") -> list[str]:
    """What else was done with the corpus, and adds to the claim or voids it; names stand between quotes."""
    accounts = [
        f"Account {quote}{other['account']}{quote} ({other['kind']}, {other['unit']}, {other['relation']}) may release"
        f" at epsilon = {other['epsilon']:g}, delta = {other['delta']:g} from the same corpus, on top of this claim."
        for other in certificate["other_accounts"]
    ]
    runs = [
        f"Release {quote}{run['release_id']}{quote} of account {quote}{run['account']}{quote}"
        f" {_of_another(run['kind'], certificate['kind'])}"
        for run in certificate["exposures"]
    ]
    return accounts + runs


def _of_another(run: str, own: str) -> str:
    if run == own:
        return "is about other columns, words or another policy: for what this account protects it is non-private."
    return f"is {run}: for plain differential privacy it counts as non-private."


def _corpus(certificate: Mapping[str, Any]) -> list[str]:
    found = caveats(certificate)
    return ["## What else was done with this corpus", "", *[f"- {one}" for one in found], ""] if found else []


def _published(certificate: Mapping[str, Any]) -> list[str]:
    figures = certificate["as_published"]
    if not figures:
        return []
    return ["## As published", "", *[f"- {name}: {_number(value)}" for name, value in figures.items()], ""]


def _event_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    sigma, q = row["sigma_eff"], row["q"]
    return row["kind"], "-" if sigma is None else f"{sigma:.6g}", "-" if q is None else f"{q:g}", str(row["count"])


def _number(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in (header, ("---",) * len(header), *rows)]
