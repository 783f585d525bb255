"""The space file: a recipe, the keys that are searched, the metric, the searcher, and the rule of charging.

Three rules of charging:

- `pay_for_all`: each trial is a release of its own, charged to one account chunk by chunk before the chunk runs. All of
  it may be published, so any searcher and any pruning is allowed.
- `select`: a secret number of independent random trials, of which only the winner leaves (Papernot & Steinke, 2022).
  One charge, little more than one trial's. No pruning, and no searcher that looks at results.
- `public`: the recipe runs on a public corpus instead. Free; the private corpus is never opened.

What decides between trials is computed from public text or from what a trial released, or it is charged itself, which
`pay_for_all` alone can do.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from rayprivacy.accounting.selection import TrialDistribution
from rayprivacy.core.config import Config
from rayprivacy.core.paths import PathKind
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.runs.files import Overrides, read_mapping
from rayprivacy.tuning.domains import Domain
from rayprivacy.tuning.metric import MetricConfig

Charging = Literal["pay_for_all", "select", "public"]
# What a trial protects, and which corpus it reads, is not for a search to decide.
FIXED_KEYS = ("method", "seed", "privacy", "evaluation", "resources", "corpus", "audit")
SEARCHABLE = ("privacy.epsilon", "corpus.max_records_per_user", "corpus.max_chars")


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
    recipe: str = Field(min_length=1)
    fixed: dict[str, Any] = Field(default_factory=dict)
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
    def _is_paid(self) -> "Space":
        if (self.charging == "public") != (self.public is not None):
            raise ValueError(f"charging is '{self.charging}': the block `public` goes with 'public', and only there")
        if (self.charging == "public") == (self.budget is not None):
            raise ValueError(f"charging is '{self.charging}': the block `budget` goes with all but 'public'")
        if self.metric.charged and self.charging == "select":
            raise ValueError(
                f"metric.name is '{self.metric.name}' and charging 'select', where a trial and its score are one"
                " mechanism: use charging pay_for_all, or public_perplexity"
            )
        if self.metric.charged and self.charging == "public":
            raise ValueError(
                f"metric.name is '{self.metric.name}' and charging 'public', which never opens the private corpus: use"
                " charging pay_for_all, or public_perplexity"
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


def load_space(path: Path, overrides: Overrides = ()) -> Space:
    """Read a space file and apply `key.path=value` overrides; paths in it become absolute."""
    data = dict(read_mapping(path, "space", overrides))
    for block, key in (("", "recipe"), ("metric", "text")):
        _absolute(data.get(block) if block else data, key, path.parent)
    return Space.parse(data)


def _absolute(block: Any, key: str, folder: Path) -> None:
    if isinstance(block, dict) and isinstance(block.get(key), str):
        block[key] = str((folder / block[key]).absolute())


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe with blocks changed, key by key.

    >>> merged({"training": {"steps": 1, "chunk": 1}}, {"training": {"steps": 2}})
    {'training': {'steps': 2, 'chunk': 1}}
    """
    result = dict(base)
    for key, value in changes.items():
        under = result.get(key)
        result[key] = merged(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return result


def assigned(base: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe with dotted keys set.

    >>> assigned({}, {"training.optimizer.learning_rate": 0.1})
    {'training': {'optimizer': {'learning_rate': 0.1}}}
    """
    result = dict(base)
    for key, value in values.items():
        nested: Any = value
        for part in reversed(key.split(".")):
            nested = {part: nested}
        result = merged(result, nested)
    return result
