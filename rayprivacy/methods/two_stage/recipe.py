"""The recipe of two-stage generation: the trees, the two trainings and how they share the budget."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from rayprivacy.core.config import Config
from rayprivacy.core.errors import ConfigError
from rayprivacy.core.paths import PathKind
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.settings import CorpusConfig, check_unit
from rayprivacy.dpsgd.settings import DpSgdConfig
from rayprivacy.generation.settings import WritingConfig
from rayprivacy.models.settings import AdapterConfig, PretrainConfig
from rayprivacy.runs.places import apart
from rayprivacy.runs.pretrained_recipe import PretrainedRecipe
from rayprivacy.runs.sampled_steps import PART_FILES, SampledPrivacyConfig, SampledResources, with_learning_rate

TREES = "lispress"


class TreeCorpusConfig(CorpusConfig):
    """The `corpus` block: utterances, and at least one label, their trees."""

    labels: tuple[str, ...] = (TREES,)


class ParsesConfig(Config):
    """The `parses` block.

    Attributes:
        column: the one of corpus.labels that holds the parse tree of a text, as an s-expression.
        max_tokens: tokens of a tree at most, in training and when it is written; longer private ones are cut.
        grammar: rules that synthetic trees follow, over the names in `functions`; null asks for nothing.
        functions: a public UTF-8 file of all function names, one a line: never those found in the corpus.
    """

    column: str = TREES
    max_tokens: int = Field(default=160, ge=1)
    grammar: Literal["lispress"] | None = None
    functions: Annotated[str | None, PathKind.PUBLIC] = Field(default=None, min_length=1)

    @model_validator(mode="after")
    def _rules_over_names(self) -> "ParsesConfig":
        if (self.grammar is None) != (self.functions is None):
            raise ValueError("grammar and functions go together: give both, or neither for trees without rules")
        return self


class StageConfig(Config):
    """What one of the two trainings has of its own; what is null is as in `training`.

    Attributes:
        steps, sampling_rate, expected_batch: as in `training`.
        learning_rate: as in `training.optimizer`.
    """

    steps: int | None = Field(default=None, ge=1)
    sampling_rate: float | None = Field(default=None, gt=0, le=1)
    expected_batch: float | None = Field(default=None, gt=0)
    learning_rate: float | None = Field(default=None, gt=0)


class StagesConfig(Config):
    """The `stages` block: how the two trainings share the budget.

    Attributes:
        trees: the training on trees.
        utterances: the training on utterances behind their trees.
        sigma_ratio: noise multiplier of the first over that of the second; both follow from the budget.
    """

    trees: StageConfig = StageConfig(steps=20)
    utterances: StageConfig = StageConfig(steps=80)
    sigma_ratio: float = Field(default=1.0, gt=0)


class PairsConfig(PretrainConfig):
    """The `pretrain` block: public text with its trees, in the column that `parses.column` names."""


class TreesGenerationConfig(WritingConfig):
    """The `generation` block.

    Attributes:
        free_draws: how often a tree is sampled freely before it is drawn under the grammar's masks.
        constrained: whether it then is; otherwise trees are kept as they are.
    """

    top_p: float = Field(default=1.0, gt=0, le=1)
    max_tokens: int = Field(default=64, ge=1)
    free_draws: int = Field(default=2, ge=1)
    constrained: bool = True


class TwoStageRecipe(PretrainedRecipe):
    """A resolved recipe of two-stage generation (Mireshghallah et al., ACL 2023)."""

    method: Literal["two_stage"] = "two_stage"
    corpus: TreeCorpusConfig = TreeCorpusConfig()
    privacy: SampledPrivacyConfig = SampledPrivacyConfig()
    parses: ParsesConfig = ParsesConfig()
    pretrain: PairsConfig | None = None
    adapter: AdapterConfig = AdapterConfig()
    stages: StagesConfig = StagesConfig()
    training: DpSgdConfig = DpSgdConfig(max_records=1)
    generation: TreesGenerationConfig = TreesGenerationConfig()
    resources: SampledResources = SampledResources()

    @model_validator(mode="after")
    def _can_run(self) -> "TwoStageRecipe":
        if self.privacy.unit is PrivacyUnit.PHRASE:
            raise ValueError("privacy.unit is 'phrase', which DP-SGD does not protect: choose user or record")
        check_unit(self.corpus, self.privacy.unit, PART_FILES)
        if self.parses.column not in self.corpus.labels:
            raise ValueError(f"parses.column is '{self.parses.column}', which is none of corpus.labels: add it there")
        if self.parses.functions is not None and not apart(self.parses.functions, self.corpus.source):
            raise ValueError(
                "parses.functions is a part of the private corpus: name a public list, in a file of its own"
            )
        for stage in ("trees", "utterances"):
            try:
                self.training_of(stage)
            except ConfigError as error:
                raise ValueError(f"stages.{stage} does not fit training: {error}") from None
        return self

    def training_of(self, stage: str) -> DpSgdConfig:
        """The training of a stage, `trees` or `utterances`, with a learning rate."""
        own: StageConfig = getattr(self.stages, stage)
        given = own.model_dump(exclude_none=True)
        rate = given.pop("learning_rate", None)
        data = self.training.model_dump() | given
        data["optimizer"] |= {"learning_rate": rate} if rate else {}
        if stage == "trees":
            data["max_tokens"] = self.parses.max_tokens
        return with_learning_rate(DpSgdConfig.parse(data), self.adapter)
