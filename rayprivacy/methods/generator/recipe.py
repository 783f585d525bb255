"""The recipe of the DP-SGD generator: control codes, the steps that are charged, and what is sampled afterwards.

The `training` block of the generator, and its presets.

    quick   40 steps of 110 users, one record each: those of jobs/generator/chat.yaml
    good    60 steps of 250: NoisySGD+GC on Europarl               (benchmarks/results/dpsgd_table.json, noisy_sgd_gc)
    best    470 steps of 32: NoisySGD there                        (benchmarks/results/dpsgd_table.json, noisy_sgd)

`good` and `best` read as many users, and large steps can be shared by many workers. Few large steps want a larger
learning rate than many small ones: with the default of LoRA, 0.002, `quick` and `good` learn far less.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from rayprivacy.blocks import match_plan, pretrain_plan, steps_plan, writing_plan
from rayprivacy.dpsgd.settings import PresetTraining
from rayprivacy.generation.codes import Codes, CodesConfig
from rayprivacy.models.settings import AdapterConfig
from rayprivacy.release.histogram import small_vote_noise
from rayprivacy.runs.method import BASE, PRETRAINED, Card, Method


def _rate(value: float) -> dict[str, Any]:
    return {"optimizer": {"learning_rate": value}}


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "quick": {"expected_batch": 110.0, "steps": 40, "chunk": 10, "max_records": 1, **_rate(0.012)},
    "good": {"expected_batch": 250.0, "steps": 60, "chunk": 20, "max_records": 4, **_rate(0.006)},
    "best": {"expected_batch": 32.0, "steps": 470, "chunk": 94, "max_records": 4},
}


class GeneratorTraining(PresetTraining):
    """The `training` block.

    Attributes:
        preset: `quick`, `good` or `best`.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = PRESETS
    preset: Literal["quick", "good", "best"] | None = Field(default=None, exclude=True)


class GeneratorRecipe(pretrain_plan.PretrainedRecipe, match_plan.MatchedRecipe):
    """A resolved recipe of the generator (Yue et al., ACL 2023)."""

    method: Literal["generator"] = "generator"
    privacy: steps_plan.SampledPrivacyConfig = steps_plan.SampledPrivacyConfig()
    adapter: AdapterConfig = AdapterConfig()
    codes: CodesConfig = CodesConfig()
    training: GeneratorTraining = GeneratorTraining()
    generation: writing_plan.CodedWritingConfig = writing_plan.CodedWritingConfig()
    resources: steps_plan.SampledResources = steps_plan.SampledResources()

    @model_validator(mode="before")
    @classmethod
    def _learning_rates_of_presets_are_for_lora(cls, data: Any) -> Any:
        match data:
            case {"adapter": {"kind": "full"}, "training": {"preset": _, **own}} if "optimizer" not in own:
                return {**data, "training": {**data["training"], "optimizer": {}}}
        return data

    @model_validator(mode="after")
    def _can_run(self) -> "GeneratorRecipe":
        steps_plan.check_sampled(self)
        self.control_codes  # noqa: B018 - refuses lists that do not fit the labels
        return self

    @model_validator(mode="after")
    def _shares_leave_the_budget_to_steps(self) -> "GeneratorRecipe":
        if self.codes.noise_multiplier is None:
            sigma = small_vote_noise(self.privacy.epsilon)
            object.__setattr__(self, "codes", self.codes.model_copy(update={"noise_multiplier": sigma}))  # it is frozen
        return self

    @property
    def control_codes(self) -> Codes:
        """The control codes of the labels."""
        return Codes(self.codes, self.corpus.labels)

    @property
    def has_histogram(self) -> bool:
        """Whether the shares of the control codes are released."""
        return bool(self.corpus.labels) and self.codes.histogram


CARD = Card(
    citation="the DP-SGD generator (Yue et al., ACL 2023)",
    sentence="a language model was fine-tuned with clipped, noisy gradients of keyed samples of private text; each text"
    " stood behind its control code, if it has any.",
    private=(
        ("corpus", "the raw text"),
        ("users", "one id each"),
        ("sample", "by keyed coin"),
        ("gradients", "clipped"),
    ),
    released=(("generator", "noisy steps"), ("synthetic text", "new writing"), ("report", "this page")),
    models=BASE | PRETRAINED | {"generator": "Generator (this run)"},
    ours="generator",
)
METHOD = Method(
    recipe=GeneratorRecipe,
    card=CARD,
    plan="rayprivacy.methods.generator.plan:plan_run",
    run="rayprivacy.methods.generator.method:run",
    reading="rayprivacy.methods.generator.method:reading_of",
    trial="rayprivacy.blocks.trial:try_language_model",
)
