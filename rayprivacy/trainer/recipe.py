"""The recipe of a training of the user's own model: what decides the release, and nothing else.

A model that was handed over as an object is named by a digest of its weights and its tokenizer; where its copy is saved
is no part of the release. A loss of the user's own is named by its function and the digest of its source text.
"""

import inspect
import textwrap
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from rayprivacy.blocks.steps_plan import SampledPrivacyConfig, check_sampled
from rayprivacy.core.artifacts import digest_bytes
from rayprivacy.core.paths import PathKind
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.dpsgd.settings import DpSgdConfig, EngineConfig
from rayprivacy.models.settings import AdapterConfig
from rayprivacy.runs.recipe import FREE, Recipe, Resources


class DatasetConfig(CorpusConfig):
    """The `corpus` block: the columns of the dataset, and how much of one user is read.

    Attributes:
        source: the dataset that was handed over.
        holdout: share of users kept aside; none, because nothing is measured on them.
    """

    source: Annotated[Literal["dataset"], PathKind.CORPUS] = "dataset"
    holdout: float = Field(0.0, ge=0.0, le=0.9)


class TrainerResources(EngineConfig, Resources):
    """The `resources` block; workers and GPUs come from the scaling config."""


class TrainerRecipe(Recipe):
    """A resolved recipe of `DPTorchTrainer`.

    Attributes:
        weights: digest of a model that was handed over, with its tokenizer; empty where `model.base` names one.
        loss: name of the user's own loss and digest of its source; empty for the negative log-likelihood.
    """

    method: Literal["trainer"] = "trainer"
    corpus: DatasetConfig = DatasetConfig()
    privacy: SampledPrivacyConfig = SampledPrivacyConfig()
    weights: str = ""
    adapter: AdapterConfig = AdapterConfig()
    training: DpSgdConfig = DpSgdConfig()
    loss: str = ""
    resources: TrainerResources = TrainerResources()

    @model_validator(mode="after")
    def _can_run(self) -> "TrainerRecipe":
        check_sampled(self)
        return self

    @property
    def release_id(self) -> str:
        """Name of the release: equal settings are the same release."""
        return self._named({**FREE, "model": {"base": True}} if self.weights else FREE)


def name_of_loss(loss: Callable[..., Any]) -> str:
    """The function's name and the digest of its source text, where there is one.

    Equal in every process, which the pickled function is not. Values that a function closes over are no part of it.
    """
    function = loss
    while isinstance(function, partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    try:
        source = textwrap.dedent(inspect.getsource(named))
    except (OSError, TypeError):  # typed into a plain interpreter, or compiled
        source = ""
    return f"{named.__qualname__}-{digest_bytes(source.encode())[:16]}"
