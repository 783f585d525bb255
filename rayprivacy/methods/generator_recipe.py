"""The recipe of the DP-SGD generator: control codes, the steps that are charged, and what is sampled afterwards."""

from typing import Literal

from pydantic import Field, model_validator

from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.settings import check_unit
from rayprivacy.dpsgd.settings import DpSgdConfig, EngineConfig
from rayprivacy.generation.codes import Codes, CodesConfig
from rayprivacy.generation.settings import SamplingConfig
from rayprivacy.ledger.settings import PrivacyConfig
from rayprivacy.methods.recipe import Recipe
from rayprivacy.models.settings import AdapterConfig

PART_FILES = 16  # of the sharded corpus, the smallest piece that a worker takes; no shard means anything here
LEARNING_RATES = {"lora": 2e-3, "full": 3e-4}


class SampledPrivacyConfig(PrivacyConfig):
    """The `privacy` block: only some rules of composition know sampled steps.

    Attributes:
        composition: `rdp` admits any later release too; `pld` is tighter, and admits this recipe's plan alone.
    """

    composition: Literal["rdp", "weighted", "pld"] = "rdp"


class GenerationConfig(SamplingConfig):
    """The `generation` block: `prompt_words` has no meaning here, where a text begins with its control code.

    Attributes:
        engine: what samples; `vllm` needs a GPU and an environment of its own.
    """

    top_p: float = Field(default=0.9, gt=0, le=1)
    max_tokens: int = Field(default=64, ge=1)
    engine: Literal["transformers", "vllm"] = "transformers"


class GeneratorResources(EngineConfig):
    """The `resources` block.

    Attributes:
        address: a Ray cluster to join; `local` starts one here.
        actors: processes that sample texts; 0 means one for every CPU of the cluster.
    """

    address: str = "local"
    actors: int = Field(default=0, ge=0)


class GeneratorRecipe(Recipe):
    """A resolved recipe of the generator (Yue et al., ACL 2023)."""

    method: Literal["generator"] = "generator"
    privacy: SampledPrivacyConfig = SampledPrivacyConfig()
    adapter: AdapterConfig = AdapterConfig()
    codes: CodesConfig = CodesConfig()
    training: DpSgdConfig = DpSgdConfig()
    generation: GenerationConfig = GenerationConfig()
    resources: GeneratorResources = GeneratorResources()

    @model_validator(mode="after")
    def _can_run(self) -> "GeneratorRecipe":
        if self.privacy.unit is PrivacyUnit.PHRASE:
            raise ValueError("privacy.unit is 'phrase', which DP-SGD does not protect: choose user or record")
        check_unit(self.corpus, self.privacy.unit, PART_FILES)
        Codes(self.codes, self.corpus.labels)
        return self

    @property
    def resolved_training(self) -> DpSgdConfig:
        """The training block with a learning rate: by default one that suits what is trained."""
        optimizer = self.training.optimizer
        rate = optimizer.learning_rate or LEARNING_RATES[self.adapter.kind]
        return self.training.model_copy(update={"optimizer": optimizer.model_copy(update={"learning_rate": rate})})

    @property
    def has_histogram(self) -> bool:
        """Whether the shares of the control codes are released."""
        return bool(self.corpus.labels) and self.codes.histogram
