"""The space file: a recipe, the keys that are searched, the metric, the searcher, and the rule of charging.

Four rules of charging:

- `pay_for_all`: each trial is a release of its own, charged to one account chunk by chunk before the chunk runs. All of
  it may be published, so any searcher and any pruning is allowed.
- `select`: a secret number of independent random trials, of which only the winner leaves (Papernot & Steinke, 2022).
  One charge, little more than one trial's. No pruning, and no searcher that looks at results.
- `public`: the recipe runs on a public corpus instead. Free; the private corpus is never opened.
- `free`: no recipe runs. What is searched is how questions about a release are valued and which of them are kept, and
  trials read the release and public annotations alone.

What makes one trial better than another is a figure of public or released text, or one that is charged:

- `public_perplexity`: of the trial's model on public sentences of yours (`metric.text`, one a line);
- `distinct_2`, ... : of its synthetic text alone;
- `annotated_accuracy`: of readers that learnt from the questions that a trial of `free` keeps, on public annotations;
- `heldout_loss`: of its model on held-out private text, with noise, and paid for before it is seen, which
  `pay_for_all` alone can do.

All other figures on held-out private text are refused when the space is read. A choice that looks at them uses the
private corpus once more for each trial, without a charge.

>>> Domain(loguniform=(0.1, 10.0)).draw(random.Random(0)) < 10
True
>>> Domain(choice=(1, 2)).distribution()
CategoricalDistribution(choices=(1, 2))
"""

import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import optuna
import pyarrow.parquet as pq
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from pydantic import Field, field_validator, model_validator

from rayprivacy.accounting.selection import TrialDistribution
from rayprivacy.core.config import Config, PathKind
from rayprivacy.core.errors import ConfigError
from rayprivacy.core.files import Json
from rayprivacy.core.written import read_text
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.evaluation.language import distinct_n, documents_nll, perplexity
from rayprivacy.models.backbone import load_backbone
from rayprivacy.models.settings import ModelConfig
from rayprivacy.release.votes import SIGMA_RANGE
from rayprivacy.runs.files import Overrides, lines_named, read_mapping
from rayprivacy.runs.recipe import Recipe

optuna.logging.set_verbosity(optuna.logging.ERROR)
Value = bool | int | float | str | None
Charging = Literal["pay_for_all", "select", "public", "free"]
Mode = Literal["min", "max"]  # whether small or large is good
CHARGED, ANNOTATED = "heldout_loss", "annotated_accuracy"
MODES: Mapping[str, Mode] = {
    "public_perplexity": "min",
    "distinct_1": "max",
    "distinct_2": "max",
    ANNOTATED: "max",
    CHARGED: "min",
}
_NOT_CHARGED = {
    "select": "where a trial and its score are one mechanism",
    "public": "which never opens the private corpus",
}
# What a trial protects, and which corpus it reads, is not for a search to decide.
FIXED_KEYS = ("method", "seed", "privacy", "evaluation", "resources", "corpus", "audit")
SEARCHABLE = ("privacy.epsilon", "corpus.max_records_per_user", "corpus.max_chars")
# All that a trial of `free` may change, but for two keys; a judge has learnt from annotations that judge trials, too.
FREE_KEYS = ("questions.value.", "questions.keep.")
TAKEN_OVER = ("questions.value.annotations", "questions.keep.attributable")


class Domain(Config):
    """A range or a list: exactly one of the four is given.

    Attributes:
        uniform: lowest and highest real number.
        loguniform: the same, uniform in the logarithm; both positive.
        integers: lowest and highest whole number, both included.
        choice: the values themselves.
    """

    uniform: tuple[float, float] | None = None
    loguniform: tuple[float, float] | None = None
    integers: tuple[int, int] | None = None
    choice: tuple[Value, ...] | None = None

    @model_validator(mode="after")
    def _one_range(self) -> "Domain":
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give one of {', '.join(type(self).model_fields)}, e.g. {{uniform: [0.1, 1.0]}}")
        ends = getattr(self, given[0])
        if given[0] == "choice":
            if len(set(ends)) < 2:
                raise ValueError("choice needs two different values or more: fix the key under `fixed` otherwise")
        elif not ends[0] < ends[1]:
            raise ValueError(f"{given[0]} is {list(ends)}: the first number must be below the second")
        if self.loguniform and self.loguniform[0] <= 0:
            raise ValueError(f"loguniform is {list(self.loguniform)}: both numbers must be positive")
        return self

    def distribution(self) -> BaseDistribution:
        """The same domain in Optuna's terms."""
        if self.choice is not None:
            return CategoricalDistribution(self.choice)
        if self.integers is not None:
            return IntDistribution(*self.integers)
        low, high = self.loguniform or self.uniform or (0.0, 0.0)
        return FloatDistribution(low, high, log=self.loguniform is not None)

    def draw(self, dice: random.Random) -> Any:
        """One value at random; independent draws are what `charging: select` tries."""
        if self.choice is not None:
            return dice.choice(self.choice)
        if self.integers is not None:
            return dice.randint(*self.integers)
        if self.loguniform is not None:
            low, high = self.loguniform
            return min(max(math.exp(dice.uniform(math.log(low), math.log(high))), low), high)
        return dice.uniform(*self.uniform) if self.uniform else None


class MetricConfig(Config):
    """The `metric` block.

    Attributes:
        name: one of MODES.
        text: for `public_perplexity`: a UTF-8 file of PUBLIC sentences, one a line.
        max_tokens: longer sentences are cut.
        max_texts: lines that are read, at most.
        noise_multiplier: for `heldout_loss`: noise std / L2 sensitivity of each report.
        most: for `heldout_loss`: public bound on the loss of a user, in nats per token; a larger one counts as this.
        records: for `heldout_loss`: texts of a user that are read, at most.
    """

    name: str = "public_perplexity"
    text: Annotated[str | None, PathKind.PUBLIC] = Field(default=None, min_length=1)
    max_tokens: int = Field(default=62, ge=1)
    max_texts: int = Field(default=500, ge=1)
    noise_multiplier: float | None = Field(default=None, ge=SIGMA_RANGE[0], le=SIGMA_RANGE[1])
    most: float = Field(default=10.0, ge=0.01, le=1000)
    records: int = Field(default=4, ge=1)

    @field_validator("name")
    @classmethod
    def _public(cls, name: str) -> str:
        if name not in MODES:
            why = "it reads private text" if "heldout" in name or "private" in name else "it is unknown"
            raise ValueError(
                f"{why}, and what steers is computed from public or released text, or charged as '{CHARGED}' is: use"
                f" {', '.join(MODES)}"
            )
        return name

    @model_validator(mode="after")
    def _has_its_keys(self) -> "MetricConfig":
        if (self.name == "public_perplexity") != (self.text is not None):
            raise ValueError(f"name is '{self.name}': text goes with 'public_perplexity', and only there")
        if self.charged != (self.noise_multiplier is not None):
            raise ValueError(f"name is '{self.name}': noise_multiplier goes with '{CHARGED}', and only there")
        return self

    @property
    def charged(self) -> bool:
        """Whether it reads private text, and is paid for."""
        return self.name == CHARGED

    @property
    def mode(self) -> Mode:
        """Whether small or large is good."""
        return MODES[self.name]

    @property
    def of_model(self) -> bool:
        """Whether the model is enough, before there is any synthetic text."""
        return self.name in ("public_perplexity", CHARGED)


def read_sentences(config: MetricConfig) -> list[str]:
    """The public sentences of `public_perplexity`; ConfigError where there are none."""
    remedy = "give a UTF-8 file of public sentences, one a line"
    lines = read_text(str(config.text), "metric.text", remedy).splitlines()
    sentences = [line.strip() for line in lines if line.strip()][: config.max_texts]
    if not sentences:
        raise ConfigError(f"metric.text is {config.text!r}: it holds no sentence; write public ones, one a line.")
    return sentences


def utility(folder: Path, recipe: Recipe, config: MetricConfig, texts: str) -> float:
    """The figure of one trial, read from what it released (`model/`, `texts`); NaN for a model that has diverged."""
    if config.of_model:
        return _perplexity(recipe.model.model_copy(update={"base": str(folder / "model")}), config)
    released = [str(text) for text in pq.read_table(folder / texts)["text"].to_pylist()]
    return distinct_n(released, int(config.name.rpartition("_")[2]))


def _perplexity(model: ModelConfig, config: MetricConfig) -> float:
    backbone = load_backbone(model)
    documents = [backbone.document(text, config.max_tokens) for text in read_sentences(config)]
    total, tokens = documents_nll(backbone, documents)
    return perplexity(total, tokens) if math.isfinite(total) else math.nan


class BudgetConfig(Config):
    """What all trials together may spend.

    Attributes:
        account: the account that pays; it is opened with this budget if it is not there.
        epsilon, delta: its cap.
    """

    account: str = Field(min_length=1)
    epsilon: float = Field(gt=0)
    delta: float = Field(default=1e-6, gt=0, lt=1)


class PruningConfig(Config):
    """Asynchronous successive halving (ASHA, Li et al., 2020) over the chunks of a trial.

    Attributes:
        grace: chunks that every trial runs.
        reduction: one of this number of trials goes on from each rung; rungs are what ASHA calls the numbers of reports
            after which it compares trials.
    """

    grace: int = Field(default=1, ge=1)
    reduction: float = Field(default=3.0, gt=1)


class SelectConfig(Config):
    """The secret number of trials.

    Attributes:
        mean: expected number of trials.
        distribution, shape: see `accounting.selection`.
    """

    mean: float = Field(default=8.0, gt=1, le=1e5)
    distribution: TrialDistribution = "geometric"
    shape: float | None = None


class PublicCorpus(CorpusConfig):
    """The `public` block: a `corpus` block that names public text, and no part of the recipe's own corpus."""

    source: Annotated[str, PathKind.PUBLIC_CORPUS] = Field("chitchat", min_length=1)
    phrases: Annotated[str | None, PathKind.PUBLIC] = Field(None, min_length=1)


class Space(Config):
    """A resolved space file.

    Attributes:
        recipe: path of the recipe, from the folder of the space file.
        release: for `free`, in place of a recipe: a finished run with questions, or a folder of questions about public
            text; from the folder of the space file, too.
        fixed: changes to the recipe that all trials share, as blocks of a recipe.
        search: dotted keys of the recipe, each with its domain.
        charging: which trials are charged, and how; see the module.
        budget: for `pay_for_all` and `select`.
        select: for `select`.
        public: for `public`: a `corpus` block that names public text.
        metric: what makes one trial better than another.
        trials: how many, at most; in `select` their number is drawn instead.
        concurrent: trials at the same time.
        searcher: `tpe` learns from finished trials (Optuna); `random` does not.
        objectives: `utility` alone, or also a small epsilon, for a frontier; then `privacy.epsilon` is searched.
        pruning: stop bad trials early; none when left out.
        seed: of the searcher.
    """

    named: ClassVar[str] = "space"
    recipe: str = ""
    release: str = ""
    fixed: Json = Field(default_factory=dict)
    search: dict[str, Domain] = Field(min_length=1)
    charging: Charging = "pay_for_all"
    budget: BudgetConfig | None = None
    select: SelectConfig = SelectConfig()
    public: PublicCorpus | None = None
    metric: MetricConfig
    trials: int = Field(default=12, ge=1)
    concurrent: int = Field(default=1, ge=1)
    searcher: Literal["tpe", "random"] = "tpe"
    objectives: Literal["utility", "utility_and_epsilon"] = "utility"
    pruning: PruningConfig | None = None
    seed: int = 0

    @model_validator(mode="after")
    def _keys_may_be_searched(self) -> "Space":
        for key in self.search:
            if key.split(".")[0] in FIXED_KEYS and key not in SEARCHABLE:
                raise ValueError(f"search has '{key}', which a search must not decide: set it under `fixed`")
        return self

    @model_validator(mode="after")
    def _is_of_a_recipe_or_of_a_release(self) -> "Space":
        free = self.charging == "free"
        if bool(self.release) != free or bool(self.recipe) == free:
            raise ValueError(f"charging is '{self.charging}': give a `release` with 'free', a `recipe` with all others")
        if (self.metric.name == ANNOTATED) != free:
            raise ValueError(
                f"metric.name is '{self.metric.name}' and charging '{self.charging}': '{ANNOTATED}' goes with 'free',"
                " and only there"
            )
        for key in (*self.search, *flat(self.fixed)) if free else ():
            if not key.startswith(FREE_KEYS) or key in TAKEN_OVER:
                raise ValueError(
                    f"'{key}' is searched or fixed and charging is 'free', whose trials take over all that was asked,"
                    " answered, judged and annotated: take keys of questions.value and questions.keep"
                )
        return self

    @model_validator(mode="after")
    def _is_paid(self) -> "Space":
        if (self.charging == "public") != (self.public is not None):
            raise ValueError(f"charging is '{self.charging}': the block `public` goes with 'public', and only there")
        if (self.charging in ("public", "free")) == (self.budget is not None):
            raise ValueError(f"charging is '{self.charging}': the block `budget` goes with all but 'public' and 'free'")
        if self.metric.charged and self.charging in _NOT_CHARGED:
            raise ValueError(
                f"metric.name is '{self.metric.name}' and charging '{self.charging}', {_NOT_CHARGED[self.charging]}:"
                " use charging pay_for_all, or public_perplexity"
            )
        return self

    @model_validator(mode="after")
    def _searcher_fits(self) -> "Space":
        if self.charging == "select":
            if self.pruning or self.searcher != "random":
                raise ValueError("charging 'select' needs independent trials: use searcher random, and no pruning")
            if self.concurrent != 1 or self.objectives != "utility":
                raise ValueError("charging 'select' runs one trial after the other and has one objective: remove both")
        if self.objectives == "utility_and_epsilon":
            if "privacy.epsilon" not in self.search:
                raise ValueError("objectives are 'utility_and_epsilon' and search lacks privacy.epsilon: add it")
            if self.pruning:
                raise ValueError("pruning compares trials by one figure: use objectives 'utility', or no pruning")
        return self

    def shape(self, *left_out: str) -> Json:
        """What tells one search from another, without some keys; and without `release`, which is a later key than the
        others, where there is none.
        """
        names = {*left_out, *(() if self.release else ("release",))}
        return dict(json.loads(self.model_dump_json(exclude=names)))


def load_space(path: Path, overrides: Overrides = ()) -> Space:
    """Read a space file and apply `key.path=value` overrides; paths in it become absolute."""
    data = read_mapping(path, "space", overrides)
    for block, key in ((data, "recipe"), (data, "release"), (data.get("metric"), "text")):
        if isinstance(block, dict) and isinstance(block.get(key), str) and block[key]:
            block[key] = str((path.parent / block[key]).absolute())
    with lines_named(path, "space", overrides):
        return Space.parse(data)


@contextmanager
def lines_of_trials(space: Space, path: Path, overrides: Overrides) -> Iterator[None]:
    """Add to a refusal of a trial's recipe the line that gives the key, in the file of the space or of the recipe."""
    try:
        yield
    except ConfigError as error:
        name = ".".join(map(str, error.at))
        searched = [key for key in space.search if f"{name}.".startswith(f"{key}.")]
        file, kind, given = path, "space", overrides
        if searched:
            error.at = ("search", searched[0])
        elif _has(space.fixed, error.at):
            error.at = ("fixed", *error.at)
        elif space.release:
            raise
        else:
            file, kind, given = Path(space.recipe), "recipe", ()
        with lines_named(file, kind, given):
            raise


def _has(block: Any, keys: Sequence[str | int]) -> bool:
    """Whether a block gives a key, or a value on the way to it."""
    return (
        bool(keys)
        and isinstance(block, Mapping)
        and keys[0] in block
        and (len(keys) == 1 or not isinstance(block[keys[0]], Mapping) or _has(block[keys[0]], keys[1:]))
    )


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> Json:
    """A recipe with blocks changed, key by key.

    >>> merged({"training": {"steps": 1, "chunk": 1}}, {"training": {"steps": 2}})
    {'training': {'steps': 2, 'chunk': 1}}
    """
    result = dict(base)
    for key, value in changes.items():
        under = result.get(key)
        result[key] = merged(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return result


def flat(block: Mapping[str, Any], start: str = "") -> Json:
    """The dotted keys of all values of nested blocks.

    >>> flat({"training": {"steps": 2}, "seed": 1})
    {'training.steps': 2, 'seed': 1}
    """
    found: Json = {}
    for key, value in block.items():
        found |= flat(value, f"{start}{key}.") if isinstance(value, Mapping) else {f"{start}{key}": value}
    return found
