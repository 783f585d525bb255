"""The files a report may read, and nothing else: certificate, metrics, recipe, released text, audit and evaluation.

The certificate is read as `ledger.certificate.Certificate`. The models below are the whole of what else can reach the
page. Figures must be numbers, so a stray line of private text in `metrics.json` is refused, not printed; unknown keys
are ignored. Of a recipe the facts that may stand on a card are read: the method, the name of the base model, the public
values of labels. Paths, URLs and accounts stay in the recipe: source and key are compared, and shown nowhere.
"""

import random
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.files import Json
from rayprivacy.core.uris import blotted
from rayprivacy.generation.codes import Codes, CodesConfig
from rayprivacy.methods.registry import method_named
from rayprivacy.reporting.format import CONTROL, markdown
from rayprivacy.runs.measure import rows_at
from rayprivacy.runs.method import PRETRAINED, Card, Chart, Table

M = TypeVar("M", bound=BaseModel)
SHOWN = 100  # values of a label on a card
SAMPLES, SEED, LONGEST = 20, 20, 600


class Lenient(BaseModel):
    """Immutable; unknown keys are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Histogram(Lenient):
    """Counts per bin; bin i starts at `edges[i]` and the last one is open."""

    edges: list[int]
    counts: list[int]


class Lengths(Lenient):
    """Words per text."""

    mean: float
    p5: float
    p50: float
    p95: float
    histogram: Histogram


class Synthetic(Lenient):
    """Figures of the released text; not releasable unless the file says so."""

    releasable: bool = False
    texts: int
    distinct_1: float
    distinct_2: float
    words: Lengths
    empty_share: float
    duplicate_share: float


class Heldout(Lenient):
    """Figures measured on private held-out text, by model; not releasable unless the file says so."""

    releasable: bool = False
    why: str = ""
    perplexity: dict[str, float] = Field(default_factory=dict)
    bleu: dict[str, dict[str, float]] = Field(default_factory=dict)
    lengths: Lengths | None = None
    cut_share: float | None = None


class ShownFigure(Lenient):
    """A figure of private text that was released with noise, and its 95% interval."""

    name: str = Field(max_length=80)
    value: float
    interval: tuple[float, float]


class ShownFigures(Lenient):
    """All of them; not releasable unless the file says so."""

    releasable: bool = False
    rows: list[ShownFigure]
    left_out: list[str] = Field(default_factory=list)


class Exhibits(Lenient):
    """Charts and tables that the method of the run adds; each is internal unless the file says otherwise."""

    charts: list[Chart] = Field(default_factory=list)
    tables: list[Table] = Field(default_factory=list)

    def shareable(self) -> "Exhibits":
        """Those of them that are not internal."""
        charts, tables = ([each for each in both if not each.internal] for both in (self.charts, self.tables))
        return Exhibits(charts=charts, tables=tables)


class Metrics(Lenient):
    """The content of metrics.json."""

    synthetic: Synthetic | None = None
    heldout: Heldout | None = None
    figures: ShownFigures | None = None
    timings_s: dict[str, float] = Field(default_factory=dict)
    exhibits: Exhibits = Field(default_factory=Exhibits)

    def shareable(self) -> "Metrics":
        """What of it may be shared: nothing measured on private text without noise, and no timings."""
        heldout = self.heldout if self.heldout and self.heldout.releasable else None
        figures = self.figures if self.figures and self.figures.releasable else None
        exhibits = self.exhibits.shareable()
        return Metrics(synthetic=self.synthetic, heldout=heldout, figures=figures, exhibits=exhibits)


class OperatingPoint(Lenient):
    """One point of an attack's ROC: its hits at a rate of false alarms, and what the certificate admits, or None."""

    false_alarm_rate: float
    hit_rate: float
    interval: tuple[float, float]
    admitted_by_claim: float | None


class Attack(Lenient):
    """One attack on membership."""

    auc: float
    auc_interval: tuple[float, float]
    points: list[OperatingPoint]


class CanaryFigure(Lenient):
    """One planted secret."""

    kind: str
    users: int
    candidates: int
    rank: float
    exposure: float
    verbatim: bool


class Verdict(Lenient):
    """Whether something came out that the certificate does not admit."""

    flagged: bool
    sentence: str


class Audit(Lenient):
    """The content of audit.json."""

    membership: dict[str, Attack]
    canaries: list[CanaryFigure]
    verdict: Verdict
    notes: dict[str, str] = Field(default_factory=dict)


class Figure(Lenient):
    """A row of evaluation.json."""

    group: str
    name: str
    better: str
    synthetic: float | None
    reference: float | None
    synthetic_interval: tuple[float, float] | None = None


class ContentWord(Lenient):
    """A word of several private users, and the share of texts of each side that hold it; internal."""

    word: str = Field(max_length=40, pattern=r"^\S+$")
    synthetic: float
    reference: float


class Evaluation(Lenient):
    """The content of evaluation.json."""

    rows: list[Figure]
    notes: list[str] = Field(default_factory=list)
    content_words: list[ContentWord] = Field(default_factory=list)


def read_bytes(path: Path) -> bytes:
    """Read a file of the run directory."""
    if not path.is_file():
        raise ConfigError(f"{path} does not exist: give the directory of a finished run.")
    return path.read_bytes()


def read_recipe(path: Path) -> str:
    """The recipe as text, with the password of any URL blotted out."""
    return blotted(read_bytes(path).decode(errors="replace"))


def read_model(path: Path, model: type[M]) -> M:
    """Read and check a JSON file; an error names the file and the key, and never quotes a value."""
    data = read_bytes(path)
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "json_invalid":
        raise ConfigError(f"{path} is not valid JSON: let the run write it again.")
    if first["type"] == "missing":
        raise ConfigError(f"{path} has no key '{key}': let the run write it again.")
    raise ConfigError(f"{path} has a wrong value at '{key}': {first['msg'].lower()}.")


def read_if_there(path: Path, model: type[M]) -> M | None:
    """The same; None where there is no such file."""
    return read_model(path, model) if path.is_file() else None


class _Base(Lenient):
    base: str = "smollm2-135m"


class _Corpus(Lenient):
    source: str = ""
    labels: list[str] = Field(default_factory=list)
    max_records_per_user: int | None = None


class _Codes(Lenient):
    values: dict[str, tuple[str, ...]] = Field(default_factory=dict)


class _Privacy(Lenient):
    key: str = ""


class RecipeFacts(Lenient):
    """The public part of a recipe, whatever its method."""

    method: str
    model: _Base = _Base()
    corpus: _Corpus = _Corpus()
    privacy: _Privacy = _Privacy()
    codes: _Codes = _Codes()
    pretrain: Json | None = None

    @property
    def card(self) -> Card:
        """What the method releases, with the models that this recipe makes."""
        card = method_named(self.method).card
        if self.pretrain:
            return card
        return replace(card, models={name: said for name, said in card.models.items() if name not in PRETRAINED})

    @property
    def method_sentence(self) -> str:
        """What made the release, to stand after "made by"."""
        return f"{self.card.citation}: {self.card.sentence}"

    @property
    def prompt(self) -> str:
        """Something the model can continue: its first control code, where it knows any."""
        if not self.codes.values:
            return self.card.opener or "Hello, how are you"
        return Codes(CodesConfig(values=self.codes.values), self.corpus.labels).text(0)

    def sentences(self) -> list[str]:
        """Base model and labels, as paragraphs of Markdown."""
        further = ", trained further on public text" if self.pretrain else ""
        found = [f"Base model: {markdown(public_name(self.model.base))}{further}."] if self.card.has_model else []
        if not self.codes.values:
            return found
        labels = [f"- {markdown(label)}: {_listed(values)}" for label, values in self.codes.values.items()]
        lead = "A text has these labels; their lists are public, and what is on none is `other`:"
        return [*found, lead, "\n".join(labels)]


def public_name(base: str) -> str:
    """A base model without the folders it lies in.

    >>> public_name("/models/ours/base"), public_name("org/name"), public_name("smollm2-135m")
    ('base', 'org/name', 'smollm2-135m')
    """
    parts = base.replace("\\", "/").rstrip("/").split("/")
    is_hub_id = len(parts) <= 2 and parts[0] not in ("", ".", "..", "~")
    return "/".join(parts) if is_hub_id else parts[-1]


def read_facts(path: Path) -> RecipeFacts:
    """Read the public part of a recipe."""
    try:
        facts = RecipeFacts.model_validate(yaml.safe_load(read_bytes(path)))
    except (yaml.YAMLError, ValidationError):
        raise ConfigError(f"{path} is no recipe of a run: let the run write it again.") from None
    method_named(facts.method)
    return facts


def _listed(values: tuple[str, ...]) -> str:
    more = f", and {len(values) - SHOWN} more" if len(values) > SHOWN else ""
    return ", ".join(f'"{markdown(value)}"' for value in values[:SHOWN]) + more


def read_texts(path: Path) -> pq.FileMetaData:
    """What a file of released text says of itself."""
    if not path.is_file():
        raise ConfigError(f"{path} does not exist: give the directory of a finished run.")
    try:
        return pq.read_metadata(path)
    except pa.ArrowInvalid:
        raise ConfigError(f"{path} is no Parquet file: let the run write it again.") from None


def draw_samples(path: Path) -> list[str]:
    """Up to 20 texts drawn with a fixed seed, never hand-picked, in file order, each cut at 600 characters."""
    try:
        count = pq.read_metadata(path).num_rows
        places = sorted(random.Random(SEED).sample(range(count), min(SAMPLES, count)))
        rows = [text for table in rows_at(path, np.array(places), ["text"]) for text in table["text"].to_pylist()]
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist: give the directory of a finished run.") from None
    except (pa.ArrowInvalid, KeyError):
        raise ConfigError(f"{path} is no Parquet file with a column 'text': let the run write it again.") from None
    texts = [CONTROL.sub("\ufffd", (text or "").replace("\r\n", "\n")) for text in rows]
    return [text if len(text) <= LONGEST else text[:LONGEST].rstrip() + " […]" for text in texts]
