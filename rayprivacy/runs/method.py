"""What a method is: a recipe class, a plan, an algorithm, and a card that says what comes out.

The parts that need torch or Ray are named, not imported, so that `plan`, `schema` and the command line stay quick. A
package of somebody else's registers its method by the entry point `rayprivacy.methods` (see `methods.registry`).

What a method adds to the report of a run (`Chart`, `Table`) is internal, and so on no page that is made to be shared,
unless the method says that it is not.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from rayprivacy.core.errors import ConfigError
from rayprivacy.corpus.settings import check_by_place
from rayprivacy.runs.figures_plan import require_stage
from rayprivacy.runs.plan import CORPUS, Plan
from rayprivacy.runs.recipe import Recipe

if TYPE_CHECKING:
    from rayprivacy.dpsgd.units import Reading
    from rayprivacy.generation.codes import Codes
    from rayprivacy.models.backbone import Backbone
    from rayprivacy.runs.context import RunContext


T = TypeVar("T")
SYNTHETIC = "synthetic.parquet"
LANGUAGE_MODEL = "AutoModelForCausalLM"
BASE = {"base": "Base model"}
PRETRAINED = {"pretrained": "Base model after pretraining"}


@dataclass(frozen=True)
class Chart:
    """Lines over a common axis."""

    name: str  # of its picture
    title: str  # what it shows
    across: str  # the axis below; `up` is the other one
    up: str
    series: Mapping[str, Sequence[tuple[float, float]]]  # points of each line, by name, from left to right
    # whether it was measured on private text; False says that all of it is public or was released
    internal: bool = True


@dataclass(frozen=True)
class Table:
    """Rows of text."""

    title: str  # what it shows
    columns: Sequence[str]  # their names
    rows: Sequence[Sequence[str]]  # cells, one for each column
    internal: bool = True  # whether it was measured on private text, or quotes it; False as for a chart


def exhibits_json(exhibits: Sequence[Chart | Table]) -> Mapping[str, object]:
    """Charts and tables as JSON values, for metrics.json."""
    charts = [asdict(each) for each in exhibits if isinstance(each, Chart)]
    tables = [asdict(each) for each in exhibits if isinstance(each, Table)]
    return {"charts": charts, "tables": tables}


@dataclass(frozen=True)
class Card:
    """What a method releases, for the report and for the cards beside text and model."""

    citation: str  # name and source, e.g. "SeqPATE (Tian et al., NeurIPS 2022)".
    sentence: str  # how the release was made, to stand after the citation and a colon
    # stations of the data before the release gate, each with a note of a few words
    private: tuple[tuple[str, str], ...]
    released: tuple[tuple[str, str], ...]  # stations after it
    # names of the models whose held-out figures are compared, by their key in metrics.json; empty for none
    models: Mapping[str, str] = field(default_factory=dict)
    ours: str = ""  # the key of the run's own model
    # what the released text is, a sentence up to where the citation follows
    text: str = "Text that a language model wrote. The model was made by"
    use: str = ""  # what the text is for, where it is more than a stand-in for private text
    opener: str = ""  # something the model can continue, for its card; any text where it is empty
    texts: str = SYNTHETIC  # file name of the released text in the run directory; empty where none is released
    beside: tuple[str, ...] = ()  # further released files in the run directory
    # whether a model is released, in `model/`. Without one there is nothing to attack by its losses.
    has_model: bool = True
    loader: str = LANGUAGE_MODEL  # class of transformers that loads the model

    @property
    def released_files(self) -> tuple[str, ...]:
        """Names of what leaves the run directory as the release."""
        return (*(("model",) if self.has_model else ()), *((self.texts,) if self.texts else ()), *self.beside)

    @property
    def has_language_model(self) -> bool:
        """Whether the model has losses on text, which attacks and searches read."""
        return self.has_model and self.loader == LANGUAGE_MODEL


@dataclass(frozen=True)
class Output:
    """What a method hands to the driver when its text is written."""

    # more figures of the released text, for the block `synthetic` of metrics.json
    figures: Mapping[str, Any] = field(default_factory=dict)
    # measures internal figures on held-out users; None where there is nothing to measure
    heldout: Callable[[], Mapping[str, Any]] | None = None
    internal: Callable[[], Mapping[str, Any]] = dict  # measures further internal blocks of metrics.json, by name
    exhibits: Callable[[], Sequence[Chart | Table]] = list  # makes charts and tables for the report
    codes: "Codes | None" = None  # the control codes that the text has labels from, if it has any


@dataclass(frozen=True)
class Method:
    """One method, as it is registered.

    `plan`, `run`, `reading`, `beside`, `check` and `trial` are functions, or their names as `module:function`, imported
    when called.
    """

    recipe: type[Recipe]  # class of its recipes
    card: Card  # what it releases
    plan: Callable[[Any], Plan] | str  # the plan of a recipe. It touches no data and must import neither torch nor Ray.
    # runs, or finishes, a recipe in its context; None when the context was asked to stop after some chunks
    run: "Callable[[RunContext[Any]], Output | None] | str"
    reading: "Callable[[Any], Reading] | str"  # how a run reads a private row, for audits and charged metrics
    # how a run reads a private row for further released models, by their folder in the run directory; None for a method
    # with one model. Attacks add up the losses of all.
    beside: "Callable[[Any], Mapping[str, Reading]] | str | None" = None
    # refuses private inputs besides the corpus that cannot be used, such as a list of phrases; None where there are
    # none. It is called before the account is opened.
    check: Callable[[Any], None] | str | None = None
    # loads the base model of a recipe and tries it on public tokens as a run would use it, which reads rows so; it
    # refuses it, or returns it for the run to go on with. It is called before the account is opened (`blocks.trial`).
    trial: "Callable[[Any, Sequence[Reading]], Backbone | None] | str | None" = None

    @property
    def name(self) -> str:
        """What recipes call it."""
        return str(self.recipe.model_fields["method"].default)

    def planned(self, recipe: Recipe) -> Plan:
        """The plan of a recipe; ConfigError where it cannot be run: no noise is enough for its budget, say."""
        plan = _loaded(self.plan)(recipe)
        require_stage(recipe, plan)
        stages = [CORPUS, *(stage.name for stage in plan.stages)]
        for needs in recipe.resources.stages:
            if needs.stage not in stages:
                raise ConfigError(
                    f"resources.stages names '{needs.stage}', and the run has no such stage: {', '.join(stages)}."
                )
        if plan.protection.is_word_for_word:
            check_by_place(recipe.sharded_corpus, plan.protection.unit)
        return plan

    def check_inputs(self, recipe: Recipe) -> None:
        """Refuse private inputs that cannot be used; ConfigError names the key of the input, and never quotes it."""
        if self.check is not None:
            _loaded(self.check)(recipe)

    def try_base(self, recipe: Recipe) -> "Backbone | None":
        """The base model, tried on public tokens; None where a run needs none, or the method tries none."""
        if self.trial is None:
            return None
        return _loaded(self.trial)(recipe, [self.reads(recipe), *self.reads_beside(recipe).values()])

    def reads(self, recipe: Recipe) -> "Reading":
        """How a run of the recipe reads a private row."""
        return _loaded(self.reading)(recipe)

    def reads_beside(self, recipe: Recipe) -> "Mapping[str, Reading]":
        """How a run of the recipe reads a private row for its further models, by their folder."""
        return _loaded(self.beside)(recipe) if self.beside is not None else {}

    def execute(self, context: "RunContext[Any]") -> Output | None:
        """Run the algorithm."""
        return _loaded(self.run)(context)


def _loaded(function: Callable[..., T] | str) -> Callable[..., T]:
    if not isinstance(function, str):
        return function
    module, _, name = function.partition(":")
    found: Callable[..., T] = getattr(import_module(module), name)
    return found
