"""What a made-up but realistic run directory holds, and a reader of the page."""

from copy import deepcopy
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from rayprivacy.evaluation.language import length_summary, synthetic_metrics

HEX = "3f9ac1d07be2458691f4aa20c7de5b18"
ATTACK = "<script>alert('x')</script>"
OPENERS = ("Hi there! How has your week been so far?", "I spent the weekend hiking with my sister.", "Do you like tea?")
REPLIES = ("Pretty good, thanks. I finally finished that book, and the ending surprised me.", "Same!", "")
RECIPE = """method: seqpate
corpus: {source: chitchat, text: text, user: user, max_records_per_user: 100}
privacy:
  unit: user
  epsilon: 3.0
  delta: 1.0e-06
  ledger: postgresql://ada:hunter2@db/ledger?sslmode=require&sslpassword=hunter2
model: {base: smollm2-135m}
note: "<script>alert('recipe')</script>"
"""

POINTS = [
    {"false_alarm_rate": rate, "hit_rate": hits, "interval": [0.0, 0.2], "admitted_by_claim": most}
    for rate, hits, most in ((0.001, 0.0, 0.02), (0.01, 0.02, 0.2), (0.1, 0.125, 1.0))
]
SECRET = {"kind": "phone", "users": 1, "candidates": 1024, "rank": 512.0, "exposure": 1.0, "verbatim": False}
AUDIT: dict[str, Any] = {
    "releasable": False,
    "membership": {"loss": {"auc": 0.51, "auc_interval": [0.47, 0.55], "points": POINTS}},
    "canaries": [SECRET, SECRET | {"users": 100, "rank": 1.0, "exposure": 10.0, "verbatim": True}],
    "verdict": {"flagged": False, "sentence": "Not flagged: no attack did better."},
    "notes": {"membership": "Cheap attacks."},
}
EVALUATION = {
    "releasable": False,
    "rows": [
        {"group": "fidelity", "name": "mauve", "better": "higher", "synthetic": 0.625, "reference": 0.94},
        {"group": "words", "name": "distinct_2", "better": "near", "synthetic": 0.5, "reference": None}
        | {"synthetic_interval": [0.475, 0.525]},
    ],
    "notes": ["fewer than 30 users: intervals are rough"],
}

SPENT = {"epsilon": 2.2, "delta": 1e-6, "epsilon_rdp": None, "epsilon_zcdp": None}


EVENT = {"kind": "gaussian", "sigma_eff": 121.4213562, "q": None, "count": 12000, "sensitivity": "L2, one user"}
CERTIFICATE: dict[str, Any] = {
    "schema_version": 2,
    "release_id": "seqpate-2f8c11",
    "corpus_digest": HEX * 2,
    "account": "chitchat-users",
    "accountant": {"claim": "analytic Gaussian (GDP filter)", "diagnostic": "dp-accounting 0.6.0"},
    "events": [EVENT, EVENT | {"kind": "sampled_gaussian", "sigma_eff": 1.1, "q": 0.01, "count": 500}],
    "spent_diagnostic": SPENT,
    "run_request": {"epsilon": 1.5, "delta": 1e-6},
    "assumptions": ["Each user sits in one shard.", "User ids in the corpus are right: one person has one id."],
    "ledger_head": HEX[::-1] * 2,
    "ledger_keyed": True,
    "versions": {"rayprivacy": "0.1.0", "dp-accounting": "0.6.0", "torch": "2.13.0"},
    "stages": [{"name": "teachers", "epsilon": None}, {"name": "student", "epsilon": 1.5}],
    "as_published": {"epsilon": 1.2},
}
CERTIFICATE |= {"kind": "central", "unit": "user", "relation": "add-or-remove", "composition": "gdp", "parameters": {}}
CERTIFICATE |= {"epsilon": 3.0, "delta": 1e-6, "exposures": [], "other_accounts": [], "warnings": []}


def certificate() -> dict[str, Any]:
    return deepcopy(CERTIFICATE)


def texts() -> list[str]:
    many = [f"{OPENERS[i % 3]} {REPLIES[i % 2]} {'really ' * (i % 11)}{i}".strip() for i in range(240)]
    return [ATTACK, "", "null\x00byte and \u202eright to left", "unbroken" * 60, *many, "Same!", "Same!"]


@cache
def _metrics() -> dict[str, Any]:
    names = {"base": 61.318, "base_pseudo": 48.5, "student": 31.07, "nonprivate": 22.4}
    heldout = {
        "releasable": False,
        "why": "Perplexity reads 512 held-out conversations of users outside the training split.",
        "perplexity": names,
        "bleu": {name: {"bleu3": 200 / ppl, "bleu4": 100 / ppl} for name, ppl in names.items()},
        "lengths": length_summary([f"{OPENERS[i % 3]} {'so ' * (i * i % 37)}" for i in range(200)]),
    }
    timings = {"corpus": 4.21, "teachers": 312.0, "student": 7500.0}
    synthetic = {"releasable": True, **synthetic_metrics(texts())}
    return {"schema_version": 1, "synthetic": synthetic, "heldout": heldout, "timings_s": timings}


def metrics() -> dict[str, Any]:
    return deepcopy(_metrics())


class Page(HTMLParser):
    """Tags, attributes and text of a page, with every tag closed in order."""

    VOID = ("meta", "link", "br", "img", "hr")

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(self.source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def ids(self) -> list[str]:
        return [attrs["id"] or "" for _, attrs in self.tags if "id" in attrs]
