"""The recipe of two-stage generation: the trees, the two trainings and how they share the budget."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from rayprivacy.blocks import pretrain_plan, steps_plan
from rayprivacy.core.config import Config, PathKind
from rayprivacy.core.errors import ConfigError
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.dpsgd.settings import DpSgdConfig, PresetTraining
from rayprivacy.generation.settings import TRANSFORMERS, WritingConfig
from rayprivacy.models.settings import AdapterConfig, ParserConfig, PretrainConfig
from rayprivacy.runs.method import BASE, PRETRAINED, Card, Method

TREES = "lispress"
_TREES_STEPS = 20
_OF_SHARDS = ("shard", "user", "record", "text")  # columns that all shards have


def prompt(tree: str) -> str:
    r"""What stands in front of the utterance of a tree.

    >>> prompt("(Confirm)")
    'say (Confirm)\n'
    """
    return f"say {tree}\n"


class TreeCorpusConfig(CorpusConfig):
    """The `corpus` block: utterances, and at least one label, their trees; none where a parser reads them."""

    labels: tuple[str, ...] = (TREES,)


class ParsesConfig(Config):
    """The `parses` block.

    Attributes:
        column: the one of corpus.labels that holds the parse tree of a text: an s-expression, or JSON. With a parser,
            the column of its public trees.
        max_tokens: tokens of a tree at most, in training and when it is written; longer private ones are cut.
        grammar: what synthetic trees follow: `lispress`, hand-written rules over the names in `functions`; `json` or
            `ebnf`, a JSON Schema or EBNF in `rules`; null asks for nothing.
        functions: a public UTF-8 file of all function names, one a line: never those found in the corpus.
        rules: a public UTF-8 file with the rules: never made from the corpus.
    """

    column: str = TREES
    max_tokens: int = Field(default=160, ge=1)
    grammar: Literal["lispress", "json", "ebnf"] | None = None
    functions: Annotated[str | None, PathKind.PUBLIC] = Field(default=None, min_length=1)
    rules: Annotated[str | None, PathKind.PUBLIC] = Field(default=None, min_length=1)

    @model_validator(mode="after")
    def _rules_over_names(self) -> "ParsesConfig":
        if (self.grammar == "lispress") != (self.functions is not None):
            raise ValueError(
                "grammar and functions go together: give 'lispress' and its list, or neither for trees without rules"
            )
        if (self.grammar in ("json", "ebnf")) != (self.rules is not None):
            raise ValueError("grammar and rules go together: give 'json' or 'ebnf' and its file, or neither")
        return self


class StageConfig(Config):
    """What one of the two trainings has of its own; what is null is as in `training`.

    Attributes:
        steps, token_decay: as in `training`.
        learning_rate: as in `training.optimizer`.
    """

    steps: int | None = Field(default=None, ge=1)
    learning_rate: float | None = Field(default=None, gt=0)
    token_decay: float | None = Field(default=None, ge=0)


class TreesStageConfig(StageConfig):
    """The training on trees, some of which are far longer than others: their tokens weigh less and less by default."""

    token_decay: float | None = Field(default=0.75, ge=0)


class StagesConfig(Config):
    """The `stages` block: how the two trainings share the budget.

    Attributes:
        trees: the training on trees.
        utterances: the training on utterances behind their trees.
        sigma_ratio: noise multiplier of the first over that of the second; both follow from the budget.
        steps: of both together: those of `utterances` are then what `trees.steps` leaves. A resolved recipe names both.
    """

    trees: TreesStageConfig = TreesStageConfig(steps=_TREES_STEPS)
    utterances: StageConfig = StageConfig(steps=80)
    sigma_ratio: float = Field(default=1.0, gt=0)
    steps: int | None = Field(default=None, ge=2, exclude=True)

    @model_validator(mode="before")
    @classmethod
    def _divided(cls, data: Any) -> Any:
        """One key divides the steps, so that a search can move some of them from one stage to the other."""
        together = data.get("steps") if isinstance(data, Mapping) else None
        if not isinstance(together, int):
            return data
        trees, utterances = (dict(data.get(stage) or {}) for stage in ("trees", "utterances"))
        first = trees.setdefault("steps", _TREES_STEPS)
        if not isinstance(first, int):
            return data
        if not 0 < first < together:
            raise ValueError(f"trees.steps is {first} of {together} steps together: leave at least one for each stage")
        rest = {name: value for name, value in data.items() if name != "steps"}
        return rest | {"trees": trees, "utterances": utterances | {"steps": together - first}}


class PairsConfig(PretrainConfig):
    """The `pretrain` block: public text with its trees, in the column that `parses.column` names."""

    @model_validator(mode="after")
    def _has_trees(self) -> "PairsConfig":
        if self.prompts:
            raise ValueError("prompts are given, and what a model writes behind them has no tree: give source instead")
        return self


class TreesGenerationConfig(WritingConfig):
    """The `generation` block.

    Attributes:
        free_draws: how often a tree is sampled freely before it is drawn under the grammar's masks. Those that pass are
            the shorter ones; 0 draws all under masks.
        constrained: whether it then is; otherwise trees are kept as they are.
    """

    top_p: float = Field(default=1.0, gt=0, le=1)
    max_tokens: int = Field(default=64, ge=1)
    free_draws: int = Field(default=0, ge=0)
    constrained: bool = True


class TwoStageTraining(PresetTraining):
    """The `training` block, which both stages share.

    Attributes:
        preset: `quick`, 30 users a step: the rows of benchmarks/results/two_stage_table.json.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "quick": {"expected_batch": 30.0, "chunk": 20, "max_records": 1}
    }
    preset: Literal["quick"] | None = Field(default=None, exclude=True)


class TwoStageRecipe(pretrain_plan.PretrainedRecipe):
    """A resolved recipe of two-stage generation (Mireshghallah et al., ACL 2023).

    Attributes:
        parser: trained on public pairs, it reads the trees of private text; None takes them from a column.
    """

    method: Literal["two_stage"] = "two_stage"
    corpus: TreeCorpusConfig = TreeCorpusConfig()
    privacy: steps_plan.SampledPrivacyConfig = steps_plan.SampledPrivacyConfig()
    parses: ParsesConfig = ParsesConfig()
    pretrain: PairsConfig | None = None
    parser: ParserConfig | None = None
    adapter: AdapterConfig = AdapterConfig()
    stages: StagesConfig = StagesConfig()
    training: TwoStageTraining = TwoStageTraining(max_records=1)
    generation: TreesGenerationConfig = TreesGenerationConfig()
    resources: steps_plan.SampledResources = steps_plan.SampledResources()

    @model_validator(mode="after")
    def _can_run(self) -> "TwoStageRecipe":
        steps_plan.check_sampled(self)
        self._check_trees()
        for stage in ("trees", "utterances"):
            try:
                self.training_of(stage)
            except ConfigError as error:
                raise ValueError(f"stages.{stage} does not fit training: {error}") from None
        return self

    def _check_trees(self) -> None:
        column, labels = self.parses.column, self.corpus.labels
        if self.parser is None:
            if column not in labels:
                raise ValueError(f"parses.column is '{column}', which is none of corpus.labels: add it there")
            return
        if column in labels or column in _OF_SHARDS:
            raise ValueError(
                f"parses.column is '{column}', a column of the corpus, and a parser makes its own: name another one, or"
                " take it out of corpus.labels (e.g. labels: [])"
            )

    @property
    def tree_writing(self) -> TreesGenerationConfig:
        """How trees are sampled. Masks are for `transformers`: no other engine is made ready where all are drawn so."""
        own: dict[str, Any] = {"max_tokens": self.parses.max_tokens}
        if self.parses.grammar and self.generation.constrained and not self.generation.free_draws:
            own["engine"] = TRANSFORMERS
        return self.generation.model_copy(update=own)

    def training_of(self, stage: str) -> DpSgdConfig:
        """The training of a stage, `trees` or `utterances`, with a learning rate."""
        own: StageConfig = getattr(self.stages, stage)
        given = own.model_dump(exclude_none=True)
        rate = given.pop("learning_rate", None)
        data = self.training.model_dump() | given
        data["optimizer"] |= {"learning_rate": rate} if rate else {}
        if stage == "trees":
            data["max_tokens"] = self.parses.max_tokens
        return steps_plan.with_learning_rate(DpSgdConfig.parse(data), self.adapter)


CARD = Card(
    citation="two-stage generation (Mireshghallah et al., ACL 2023)",
    sentence="two language models were fine-tuned with clipped, noisy gradients of keyed samples of private text, one"
    " on parse trees and one on utterances behind their trees; the first wrote trees, and the second their utterances.",
    private=(
        ("corpus", "utterances and their trees"),
        ("users", "one id each"),
        ("samples", "by keyed coin, for each stage"),
        ("gradients", "clipped"),
    ),
    released=(
        ("tree model", "noisy steps"),
        ("utterance model", "noisy steps"),
        ("synthetic text", "new writing"),
        ("report", "this page"),
    ),
    text="Text that a language model wrote from the parse trees in the column `parse`, which another one had written."
    " Both were made by",
    opener=prompt("(Yield (Today))"),
    models=BASE | PRETRAINED | {"two_stage": "Both models (this run)"},
    ours="two_stage",
)
METHOD = Method(
    recipe=TwoStageRecipe,
    card=CARD,
    plan="rayprivacy.methods.two_stage.plan:plan_run",
    run="rayprivacy.methods.two_stage.method:run",
    reading="rayprivacy.methods.two_stage.readings:utterances_of",
    beside="rayprivacy.methods.two_stage.readings:models_beside",
    check="rayprivacy.methods.two_stage.public_side:check_inputs",
    trial="rayprivacy.blocks.trial:try_language_model",
)
