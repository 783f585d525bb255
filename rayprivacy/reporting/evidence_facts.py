"""What the files of a finished run show, as far as it may be shared: the one source of all forms of evidence.

Read are the certificate, the public part of the recipe, figures of `metrics.json` that say that they may be shared, the
released text, and an export of the ledger, where the run directory has one. Nothing below `private` is opened, and of
internal files no more is told than that they are there.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.private import digest_file
from rayprivacy.ledger.certificate import AUDIT_WARNING, Certificate, EventRow, caveats, meaning_of, unit_of
from rayprivacy.ledger.export import verify_export
from rayprivacy.reporting import claim, inputs
from rayprivacy.reporting.format import number, one_line, percent, whole
from rayprivacy.runs.directory import CERTIFICATE, METRICS, RECIPE
from rayprivacy.runs.questions import require_finished

EXPORT = "ledger-export"  # folder of a run directory, written by `rayprivacy ledger export`
SUMMARY, AUDIT, EVALUATION = f"{EXPORT}/summary.json", "audit.json", "evaluation.json"
# What an assumption of the certificate is about, by its words: the first that fits.
ABOUT = {
    "left": r"left the private side",
    "rounding": r"floating point|on a grid",
    "timing": r"Running time",
    "access": r"[Kk]ey file|dashboard",
    "unprotected": r"not protected|(?<!none )(?:is|are) released|word for word",
    "public": r"(?:is|are) public|^Public input",
    "assumptions": "",
}


class Answer(NamedTuple):
    """What files show, and where: each place is a file, or `file: key, key`."""

    value: Any
    places: tuple[str, ...]


@dataclass(frozen=True)
class Evidence:
    """One finished run."""

    certificate: Certificate
    facts: inputs.RecipeFacts
    texts: pq.FileMetaData | None  # of the file of released text; None for a method that releases none
    size: int  # of that file, in bytes
    digest: str  # of that file, SHA-256
    synthetic: inputs.Synthetic | None  # figures of the text; None where there are none, or they may not be shared
    internal: tuple[str, ...]  # places of figures that were measured on private text
    has_export: bool  # of the ledger; it replays, and holds the entry of the certificate

    @staticmethod
    def read(root: Path) -> "Evidence":
        """Read a run directory; ConfigError where it holds no finished run or one of an audit, LedgerError where the
        export of the ledger is damaged, or does not hold the entry of the certificate.
        """
        require_finished(root)
        certificate, facts = inputs.read_model(root / CERTIFICATE, Certificate), inputs.read_facts(root / RECIPE)
        if AUDIT_WARNING in certificate.warnings:
            raise ConfigError(f"{root} is an {AUDIT_WARNING}: run the recipe without 'audit'.")
        metrics = inputs.read_if_there(root / METRICS, inputs.Metrics) or inputs.Metrics()
        path = root / facts.card.texts if facts.card.texts else None
        has_export = (root / SUMMARY).is_file()
        if has_export:
            verify_export(root / EXPORT, expected_head=certificate.ledger_head)
        private = [f"{METRICS}: heldout"] * bool(metrics.heldout and not metrics.heldout.releasable)
        return Evidence(
            certificate,
            facts,
            texts=inputs.read_texts(path) if path else None,
            size=path.stat().st_size if path else 0,
            digest=digest_file(path) if path else "",
            synthetic=metrics.synthetic if metrics.synthetic and metrics.synthetic.releasable else None,
            internal=(*private, *(name for name in (AUDIT, EVALUATION) if (root / name).is_file())),
            has_export=has_export,
        )

    @property
    def title(self) -> str:
        """What was released."""
        return f"{'Synthetic text' if self.texts else 'Model'} of release {one_line(self.certificate.release_id)}"

    @property
    def description(self) -> str:
        """What it is, and what made it."""
        what = self.facts.card.text if self.texts else "A model, made by"
        return f"{what} {self.facts.method_sentence}"

    def answers(self) -> dict[str, Answer]:
        """All that can be answered, by the name of the question."""
        c = self.certificate
        said = _of_claim(c) | _of_charges(c) | _of_assumptions(c) | _of_recipe(self.facts) | _of_files(self)
        return {name: Answer(one_line(text), tuple(by)) for name, (text, *by) in said.items() if text and by}


def shown(*keys: str, by: str = CERTIFICATE) -> str:
    """A place: keys of a file."""
    return f"{by}: {', '.join(keys)}"


def _listed(said: Iterable[str]) -> str:
    return "; ".join(said)


def _named(said: Mapping[str, str]) -> str:
    return _listed(f"{name}: {value}" for name, value in said.items())


def _epsilons(found: Mapping[str, float | None]) -> str:
    return _named({name: f"epsilon = {number(value)}" for name, value in found.items() if value is not None})


def _mechanism(row: EventRow) -> str:
    scale = [f"{name} {number(value)}" for name, value in (("sigma_eff", row.sigma_eff), ("q", row.q)) if value]
    return ", ".join([row.kind, *scale, f"{whole(row.count)} times"])


_Said = dict[str, tuple[str, ...]]  # a text, empty where nothing is known, and its places


def _of_claim(c: Certificate) -> _Said:
    said = claim.statement(c)
    of, protected = ([f"parameters.{name}"] * (name in c.parameters) for name in ("of", "protected"))
    claimed = said.notes[0] if said.reasons else said.headline
    published = {name: each if isinstance(each, str) else number(each) for name, each in (c.as_published or {}).items()}
    others = _listed(caveats(c.model_dump(mode="json"), "'")) or "the ledger names no other account or run of it"
    return {
        "standing": (_listed(said.reasons) or "it carries no warning", shown("warnings", "epsilon")),
        "claim": (claimed, shown("epsilon", "delta", "kind", "unit", "relation", *of, *protected)),
        "figures": (_named(c.figures), shown("figures")),
        "request": (f"the release asked for {claim.pair(c.run_request)}", shown("run_request")),
        "variant": (meaning_of(c.kind, c.parameters).rstrip(","), shown("kind", *protected)),
        "unit": (unit_of(c.unit, c.parameters), shown("unit", *of)),
        "relation": (c.relation, shown("relation")),
        "published": (_named(published), shown("as_published")),
        "mixed": (others, shown("other_accounts", "exposures")),
        "release": (f"one release of a recipe that was fixed before: {c.release_id}", shown("release_id")),
    }


def _of_charges(c: Certificate) -> _Said:
    spent = c.spent_diagnostic
    left = "" if spent.left is None else f"; one more release might ask for epsilon = {number(spent.left)}"
    by_variant = {"Renyi DP": spent.epsilon_rdp, "zCDP": spent.epsilon_zcdp}
    stages = {row["name"]: row.get("epsilon") for row in c.stages}
    tuned = f"one run of a search, of {number(c.tuning_charge['expected_trials'])} expected" if c.tuning_charge else ""
    # A model is named with its folder there.
    software = _listed(f"{name} {version}" for name, version in c.versions.items() if "/" not in version)
    return {
        "composition": (f"{c.composition}: {c.accountant.claim}", shown("composition", "accountant.claim")),
        "spent": (f"up to this release {claim.pair(spent)} ({spent.label}){left}", shown("spent_diagnostic")),
        "accountants": (_epsilons(by_variant), shown("spent_diagnostic.epsilon_rdp", "spent_diagnostic.epsilon_zcdp")),
        "mechanisms": (_listed(map(_mechanism, c.events)), shown("events")),
        "sensitivity": (_listed(dict.fromkeys(row.sensitivity for row in c.events)), shown("events")),
        "stages": (_epsilons(stages), shown("stages")),
        "tuning": (tuned, shown("tuning_charge")),
        "software": (software, shown("versions")),
        "keyed": ("it is" if c.ledger_keyed else "it is not", shown("ledger_keyed")),
    }


def _of_assumptions(c: Certificate) -> _Said:
    said: dict[str, list[str]] = {name: [] for name in ABOUT}
    for sentence in c.assumptions:
        said[next(name for name, words in ABOUT.items() if re.search(words, sentence))].append(sentence)
    return {name: (" ".join(sentences), shown("assumptions")) for name, sentences in said.items()}


def _of_recipe(facts: inputs.RecipeFacts) -> _Said:
    card, corpus = facts.card, facts.corpus
    before, behind = (", ".join(name for name, _ in stations) for stations in (card.private, card.released))
    base = f"one made from the public base {inputs.public_name(facts.model.base)}"
    model = base + ", trained further on public text" * bool(facts.pretrain) if card.has_model else "none"
    most = corpus.max_records_per_user
    bound = "any number of records" if most is None else f"{whole(most)} records of a user at most"
    is_said = "max_records_per_user" in corpus.model_fields_set
    return {
        "method": (facts.method_sentence, shown("method", by=RECIPE)),
        "trust": (f"before the release gate: {before}; behind it: {behind}", shown("method", by=RECIPE)),
        "model": (model, shown("method", *["model.base"] * card.has_model, by=RECIPE)),
        "bound": (bound * is_said, shown("corpus.max_records_per_user", by=RECIPE)),
    }


def _of_files(e: Evidence) -> _Said:
    text, figures = "", ""
    if e.texts:
        columns = ", ".join(e.texts.schema.names)
        text = f"{e.facts.card.texts}: {whole(e.texts.num_rows)} rows of {columns}; SHA-256 {e.digest}"
    if s := e.synthetic:
        figures = (
            f"{number(s.words.mean)} words in the mean; {percent(s.distinct_2)} of pairs of words are distinct;"
            f" {percent(s.duplicate_share)} of texts are duplicates, {percent(s.empty_share)} are empty"
        )
    return {
        "text": (text, e.facts.card.texts),
        "quality": (figures, shown("synthetic", by=METRICS)),
        "internal": ("what these hold is internal, outside of the claim, and not shown here", *e.internal),
        "attacked": ("yes; what came of it is internal" * (AUDIT in e.internal), AUDIT),
        "book": ("it does, and holds the entry of the certificate" * e.has_export, SUMMARY, shown("ledger_head")),
    }
