"""The recipe of eDP-SGD: the base and its public lists, the columns of intent and word labels, and the steps."""

from typing import Literal

from pydantic import Field, model_validator

from rayprivacy.blocks.steps_plan import SampledPrivacyConfig, check_sampled
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.dpsgd.settings import DpSgdConfig, EngineConfig
from rayprivacy.models.settings import AdapterConfig
from rayprivacy.runs.method import Card, Method
from rayprivacy.runs.recipe import Recipe, Resources
from rayprivacy.tagging.settings import BILSTM, TaggerConfig

WHOLE = AdapterConfig(kind="full")


class TaggedCorpusConfig(CorpusConfig):
    """The `corpus` block.

    Attributes:
        labels: the column of the intent, and that of the word labels: `O`, `B-slot` and `I-slot` with blanks between,
            one for each word of the text, whose words are what stands between blanks.
    """

    labels: tuple[str, ...] = ("intent", "slots")


class TaggerResources(EngineConfig, Resources):
    """The `resources` block."""


class EdpSgdRecipe(Recipe):
    """A resolved recipe of eDP-SGD (Dupuy et al., ICASSP 2022).

    Attributes:
        adapter: `lora` matrices and the heads are trained; or, by default, what `model.trained` says.
    """

    method: Literal["edp_sgd"] = "edp_sgd"
    corpus: TaggedCorpusConfig = TaggedCorpusConfig()
    privacy: SampledPrivacyConfig = SampledPrivacyConfig()
    model: TaggerConfig = TaggerConfig()
    adapter: AdapterConfig = WHOLE
    training: DpSgdConfig = Field(default=DpSgdConfig())
    resources: TaggerResources = TaggerResources()

    @model_validator(mode="after")
    def _can_run(self) -> "EdpSgdRecipe":
        check_sampled(self)
        if len(self.corpus.labels) != 2:
            raise ValueError(
                f"corpus.labels has {len(self.corpus.labels)} columns: name two, that of the intent and that of the"
                " word labels"
            )
        if self.corpus.join:
            raise ValueError("corpus.join is set, and an intent is that of one text: remove it")
        return self

    @model_validator(mode="after")
    def _can_train(self) -> "EdpSgdRecipe":
        if self.resources.gradients == "opacus":
            raise ValueError(
                "resources.gradients is 'opacus', which loses a part of a tagger's gradient: use 'bookkeeping'"
            )
        if self.model.base == BILSTM and (self.training.microbatches is None or self.adapter.kind == "lora"):
            raise ValueError(
                f"model.base is '{BILSTM}', and an LSTM has no rule for per-example gradients, nor LoRA: set"
                " training.microbatches, e.g. 64, and leave out adapter"
            )
        if self.model.base == BILSTM and self.resources.gpu:
            raise ValueError(
                f"model.base is '{BILSTM}' and resources.gpu true, and a GPU differentiates no LSTM in evaluation mode:"
                " set resources.gpu to false"
            )
        if self.training.token_decay:
            raise ValueError(
                f"training.token_decay is {self.training.token_decay:g}, and a tagger weighs the words of a text alike:"
                " remove it"
            )
        scale = self.training.layer_scale
        if scale is not None and scale.source is not None:
            raise ValueError(
                "training.layer_scale.from is 'public', and public text without intents and slots has no gradients: use"
                " 'weights'"
            )
        if self.adapter.kind == "lora" and self.model.trained != "all":
            raise ValueError(
                f"model.trained is '{self.model.trained}' with adapter.kind 'lora', which trains LoRA matrices and the"
                " heads: leave one of the two out"
            )
        return self


CARD = Card(
    citation="eDP-SGD (Dupuy et al., ICASSP 2022)",
    sentence="a public model with a head for intents and one for slots was fine-tuned with clipped, noisy gradients"
    " of keyed samples of private text.",
    private=(("corpus", "text, intents, slots"), ("users", "one id each"), ("sample", "by coin"), ("sums", "clipped")),
    released=(("tagger", "noisy steps"), ("report", "this page")),
    texts="",
    loader="AutoModelForTokenClassification",
)
METHOD = Method(
    recipe=EdpSgdRecipe,
    card=CARD,
    plan="rayprivacy.methods.edp_sgd.plan:plan_run",
    run="rayprivacy.methods.edp_sgd.method:run",
    reading="rayprivacy.methods.edp_sgd.reading:reading_of",
    trial="rayprivacy.methods.edp_sgd.method:try_base",
)
