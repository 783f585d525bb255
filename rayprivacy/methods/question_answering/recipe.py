"""The recipe of question answering: the generator of passages, which alone is charged, and the block `questions`."""

from typing import Literal

from pydantic import Field, model_validator

from rayprivacy.blocks import pretrain_plan, steps_plan, writing_plan
from rayprivacy.dpsgd.settings import DpSgdConfig
from rayprivacy.models.settings import AdapterConfig
from rayprivacy.questions.settings import QuestionsConfig
from rayprivacy.runs.method import BASE, PRETRAINED, Card, Method
from rayprivacy.runs.recipe import FREE


class AskedConfig(QuestionsConfig):
    """The `questions` block. All of it is post-processing: no part of the release, and no charge.

    Attributes:
        heldout: of corpus.labels, the column with the real questions about a text, as a JSON list of objects with
            `question` and `answer`; those of held-out users are read, for internal figures alone.
    """

    heldout: str | None = None

    @property
    def asked(self) -> QuestionsConfig:
        """How questions are asked, without what is measured."""
        return QuestionsConfig.parse(self.model_dump(exclude={"heldout"}))


class QuestionAnsweringRecipe(pretrain_plan.PretrainedRecipe):
    """A resolved recipe of question answering (Yue, 2023, chapters 4 to 7) about what a DP-SGD generator writes.

    Attributes:
        questions: how passages are asked about; None leaves it at the passages.
    """

    method: Literal["question_answering"] = "question_answering"
    privacy: steps_plan.SampledPrivacyConfig = steps_plan.SampledPrivacyConfig()
    adapter: AdapterConfig = AdapterConfig()
    training: DpSgdConfig = Field(default=DpSgdConfig())
    generation: writing_plan.CodedWritingConfig = writing_plan.CodedWritingConfig()
    questions: AskedConfig | None = AskedConfig()
    resources: steps_plan.SampledResources = steps_plan.SampledResources()

    @model_validator(mode="after")
    def _can_run(self) -> "QuestionAnsweringRecipe":
        steps_plan.check_sampled(self)
        heldout = self.questions and self.questions.heldout
        if heldout is not None and heldout not in self.corpus.labels:
            raise ValueError(
                f"questions.heldout is '{heldout}', which is none of corpus.labels: add it there, or leave it out"
            )
        return self

    @property
    def release_id(self) -> str:
        """Name of the release: what is asked about the passages is no part of it."""
        return self._named({**FREE, "questions": True})


CARD = Card(
    citation="question answering on DP-SGD passages (Yue, 2023)",
    sentence="a language model was fine-tuned with clipped, noisy gradients of keyed samples of private text and wrote"
    " passages; questions were asked about these alone, by what was learnt from public questions.",
    private=(
        ("corpus", "the raw text"),
        ("users", "one id each"),
        ("sample", "by keyed coin"),
        ("gradients", "clipped"),
    ),
    released=(
        ("generator", "noisy steps"),
        ("passages", "new writing"),
        ("questions", "about passages"),
        ("report", "this page"),
    ),
    models=BASE | PRETRAINED | {"generator": "Generator (this run)"},
    ours="generator",
    text="Passages that a language model wrote. The model was made by",
)
METHOD = Method(
    recipe=QuestionAnsweringRecipe,
    card=CARD,
    plan="rayprivacy.methods.question_answering.plan:plan_run",
    run="rayprivacy.methods.question_answering.method:run",
    reading="rayprivacy.methods.question_answering.method:reading_of",
    trial="rayprivacy.blocks.trial:try_language_model",
)
