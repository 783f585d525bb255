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
from rayprivacy.runs.plan import CORPUS, Plan
from rayprivacy.runs.recipe import Recipe

if TYPE_CHECKING:
    from rayprivacy.dpsgd.units import Reading
    from rayprivacy.generation.codes import Codes
    from rayprivacy.runs.context import RunContext


T = TypeVar("T")
SYNTHETIC = "synthetic.parquet"
LANGUAGE_MODEL = "AutoModelForCausalLM"
BASE = {"base": "Base model"}
PRETRAINED = {"pretrained": "Base model after pretraining"}


@dataclass(frozen=True)
class Chart:
    """Lines over a common axis.

    Attributes:
        name: of its picture.
        title: what it shows.
        across, up: what the axes are.
        series: points of each line, by name, from left to right.
        internal: whether it was measured on private text; False says that all of it is public or was released.
    """

    name: str
    title: str
    across: str
    up: str
    series: Mapping[str, Sequence[tuple[float, float]]]
    internal: bool = True


@dataclass(frozen=True)
class Table:
    """Rows of text.

    Attributes:
        title: what it shows.
        columns: their names.
        rows: cells, one for each column.
        internal: whether it was measured on private text, or quotes it; False as for a chart.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    internal: bool = True


def exhibits_json(exhibits: Sequence[Chart | Table]) -> Mapping[str, object]:
    """Charts and tables as JSON values, for metrics.json."""
    charts = [asdict(each) for each in exhibits if isinstance(each, Chart)]
    tables = [asdict(each) for each in exhibits if isinstance(each, Table)]
    return {"charts": charts, "tables": tables}


@dataclass(frozen=True)
class Card:
    """What a method releases, for the report and for the cards beside text and model.

    Attributes:
        citation: name and source, e.g. "SeqPATE (Tian et al., NeurIPS 2022)".
        sentence: how the release was made, to stand after the citation and a colon.
        private: stations of the data before the release gate, each with a note of a few words.
        released: stations after it.
        models: names of the models whose held-out figures are compared, by their key in metrics.json; empty for none.
        ours: the key of the run's own model.
        text: what the released text is, a sentence up to where the citation follows.
        opener: something the model can continue, for its card; any text where it is empty.
        texts: file name of the released text in the run directory; empty where none is released.
        has_model: whether a model is released, in `model/`. Without one there is nothing to attack by its losses.
        loader: class of transformers that loads the model.
    """

    citation: str
    sentence: str
    private: tuple[tuple[str, str], ...]
    released: tuple[tuple[str, str], ...]
    models: Mapping[str, str] = field(default_factory=dict)
    ours: str = ""
    text: str = "Text that a language model wrote. The model was made by"
    opener: str = ""
    texts: str = SYNTHETIC
    has_model: bool = True
    loader: str = LANGUAGE_MODEL

    @property
    def released_files(self) -> tuple[str, ...]:
        """Names of what leaves the run directory as the release."""
        return (*(("model",) if self.has_model else ()), *((self.texts,) if self.texts else ()))

    @property
    def has_language_model(self) -> bool:
        """Whether the model has losses on text, which attacks and searches read."""
        return self.has_model and self.loader == LANGUAGE_MODEL


@dataclass(frozen=True)
class Output:
    """What a method hands to the driver when its text is written.

    Attributes:
        figures: more figures of the released text, for the block `synthetic` of metrics.json.
        heldout: measures internal figures on held-out users; None where there is nothing to measure.
        internal: measures further internal blocks of metrics.json, by name.
        exhibits: makes charts and tables for the report.
        codes: the control codes that the text has labels from, if it has any.
    """

    figures: Mapping[str, Any] = field(default_factory=dict)
    heldout: Callable[[], Mapping[str, Any]] | None = None
    internal: Callable[[], Mapping[str, Any]] = dict
    exhibits: Callable[[], Sequence[Chart | Table]] = list
    codes: "Codes | None" = None


@dataclass(frozen=True)
class Method:
    """One method, as it is registered.

    Attributes:
        recipe: class of its recipes.
        card: what it releases.
        plan: the plan of a recipe. It touches no data and must import neither torch nor Ray.
        run: runs, or finishes, a recipe in its context; None when the context was asked to stop after some chunks.
        reading: how a run reads a private row, for audits and charged metrics.
        beside: how a run reads a private row for further released models, by their folder in the run directory; None
            for a method with one model. Attacks add up the losses of all.
        check: refuses private inputs besides the corpus that cannot be used, such as a list of phrases; None where
            there are none. It is called before the account is opened.

    `plan`, `run`, `reading`, `beside` and `check` are functions, or their names as `module:function`, imported when
    called.
    """

    recipe: type[Recipe]
    card: Card
    plan: Callable[[Any], Plan] | str
    run: "Callable[[RunContext[Any]], Output | None] | str"
    reading: "Callable[[Any], Reading] | str"
    beside: "Callable[[Any], Mapping[str, Reading]] | str | None" = None
    check: Callable[[Any], None] | str | None = None

    @property
    def name(self) -> str:
        """What recipes call it."""
        return str(self.recipe.model_fields["method"].default)

    def planned(self, recipe: Recipe) -> Plan:
        """The plan of a recipe; ConfigError where it cannot be run: no noise is enough for its budget, say."""
        plan = _loaded(self.plan)(recipe)
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
