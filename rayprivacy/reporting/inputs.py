"""The files a report may read, and nothing else: certificate, metrics, recipe, and the released text.

The models below are the whole of what can reach the page. Figures must be numbers, so a stray line of private text in
`metrics.json` is refused, not printed; keys this version does not know are ignored.
"""

from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.mirror.uris import blotted
from rayprivacy.core.units import AccountKind

M = TypeVar("M", bound="Lenient")


def _flat(value: Any) -> Any:
    return "; ".join(f"{key}: {part}" for key, part in value.items()) if isinstance(value, dict) else value


Name = Annotated[str, BeforeValidator(_flat)]


class Lenient(BaseModel):
    """Frozen, and deaf to keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Amount(Lenient):
    """An (epsilon, delta) pair; `label` says what kind of figure it is."""

    epsilon: float
    delta: float
    label: str = ""


class Event(Lenient):
    """One accounting event; a mechanism without a Gaussian multiplier or sampling leaves those fields out."""

    kind: str
    count: int
    sigma_eff: float | None = None
    q: float | None = None


class Stage(Lenient):
    """A stage of the run and its predicted epsilon, if it has one."""

    name: str
    epsilon: float | None = None


class OtherAccount(Lenient):
    """Another account of the same corpus, whose guarantee and this one add up."""

    account: str
    kind: str
    unit: str
    relation: str
    epsilon: float
    delta: float


class Exposure(Lenient):
    """A run of the same corpus that counts as non-private for this account."""

    account: str
    kind: str
    release_id: str


class Certificate(Lenient):
    """What the ledger vouches for; `epsilon` and `delta` are the cap of the account, which is the claim."""

    release_id: str
    corpus_digest: str
    account: Name
    kind: AccountKind = AccountKind.CENTRAL
    unit: str
    relation: str
    epsilon: float
    delta: float
    composition: Name
    parameters: dict[str, Any] = Field(default_factory=dict)
    accountant: Name
    events: list[Event]
    spent_diagnostic: Amount
    run_request: Amount
    exposures: list[Exposure] = Field(default_factory=list)
    other_accounts: list[OtherAccount] = Field(default_factory=list)
    assumptions: list[str]
    ledger_head: str
    warnings: list[str]
    figures: dict[str, str] = Field(default_factory=dict)
    versions: dict[str, str] = Field(default_factory=dict)
    stages: list[Stage] = Field(default_factory=list)


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


class ChartData(Lenient):
    """A chart that the method of the run adds; internal unless the file says otherwise."""

    name: str
    title: str
    across: str
    up: str
    series: dict[str, list[tuple[float, float]]]
    internal: bool = True


class TableData(Lenient):
    """A table that the method of the run adds; internal unless the file says otherwise."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    internal: bool = True


class Exhibits(Lenient):
    """Charts and tables that the method of the run adds."""

    charts: list[ChartData] = Field(default_factory=list)
    tables: list[TableData] = Field(default_factory=list)

    def shareable(self) -> "Exhibits":
        """Those of them that are not internal."""
        charts, tables = ([each for each in both if not each.internal] for both in (self.charts, self.tables))
        return Exhibits(charts=charts, tables=tables)


class Metrics(Lenient):
    """The content of metrics.json."""

    synthetic: Synthetic | None = None
    heldout: Heldout | None = None
    timings_s: dict[str, float] = Field(default_factory=dict)
    exhibits: Exhibits = Field(default_factory=Exhibits)


def read_bytes(path: Path) -> bytes:
    """Read a file of the run directory.

    Raises:
        ConfigError: the file is not there.
    """
    if not path.is_file():
        raise ConfigError(f"{path} does not exist: give the directory of a finished run.")
    return path.read_bytes()


def read_recipe(path: Path) -> str:
    """The recipe as text, with the password of any URL blotted out.

    Raises:
        ConfigError: the file is not there.
    """
    return blotted(read_bytes(path).decode(errors="replace"))


def read_method(path: Path) -> str:
    """The method that a recipe names.

    Raises:
        ConfigError: the file is not there, or names none.
    """
    try:
        return str(yaml.safe_load(read_bytes(path))["method"])
    except (yaml.YAMLError, KeyError, TypeError):
        pass
    raise ConfigError(f"{path} names no method: let the run write it again.")


def read_model(path: Path, model: type[M]) -> M:
    """Read and check a JSON file.

    Raises:
        ConfigError: the file is missing or not JSON, or a key is missing or mistyped; values are never quoted.
    """
    data = read_bytes(path)
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "json_invalid":
        raise ConfigError(f"{path} is not valid JSON: let the run write it again.")
    if first["type"] == "missing":
        raise ConfigError(f"{path} has no key '{key}': let the run write it again.")
    raise ConfigError(f"{path} has a wrong value at '{key}': {first['msg'].lower()}.")
