"""The recipe of SeqPATE: what is asked of the teachers, and how the student learns from their votes.

How the student learns is post-processing of the votes, and left out of the release id.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from rayprivacy.blocks.match_plan import MatchedRecipe
from rayprivacy.blocks.pretrain_plan import PretrainedRecipe
from rayprivacy.core.config import Config, PathKind
from rayprivacy.corpus.settings import check_unit
from rayprivacy.generation.settings import PseudoConfig, WritingConfig
from rayprivacy.ledger.settings import PrivacyConfig
from rayprivacy.release.votes import CLIP_RANGE
from rayprivacy.runs.method import BASE, PRETRAINED, Card, Method
from rayprivacy.runs.recipe import Resources
from rayprivacy.teachers.settings import ResourcesConfig, TeachersConfig

LEARNING_RATES = {"head": 5e-3, "lora": 2e-3}
WARM_BATCH, WARM_LEARNING_RATE = 128, 1e-3  # on pseudo-sentences
WARM_STEPS = {"head": 60, "lora": 200}
HEAD_SHAPE = 32, 128  # of the matrix of a `head` student
VOTE_WEIGHT = 20.0  # lambda, the weight of the votes against the pseudo-sentences
PSEUDO_POSITIONS = 256  # at which a step of a `lora` student computes L_pseudo, at most


class StudentConfig(Config):
    """How the student is trained.

    Attributes:
        kind: `head` trains a matrix on the head, `lora` adapters in the last layers (or all).
        layers: for `lora`: how many of the last layers; all if absent.
        rank: for `lora`: rank of its matrices.
        warm_steps: on pseudo-sentences, before the votes; by default what suits the kind.
        steps, batch, learning_rate: on the votes; the learning rate is by default one that suits the kind.
        pseudo: whether the votes are learnt together with the pseudo-sentences (L_pseudo).
        label: learn the whole `vote`, or the candidate with the most votes (`top1`).
        mix: share of the student's own distribution in what it learns from a vote.
        curriculum: begin with the queries that surprise the student least, and take in the others step by step.
        seed: public seed of the order of examples.
    """

    kind: Literal["head", "lora"] = "head"
    layers: int | None = Field(default=None, ge=1)
    rank: int = Field(default=8, ge=1)
    warm_steps: int = Field(default=WARM_STEPS["head"], ge=0)
    steps: int = Field(default=300, ge=1)
    batch: int = Field(default=256, ge=1)
    learning_rate: float | None = Field(default=None, gt=0)
    pseudo: bool = True
    label: Literal["vote", "top1"] = "vote"
    mix: float = Field(default=0.0, ge=0, lt=1)
    curriculum: bool = False
    seed: int = 0

    @property
    def step_size(self) -> float:
        """The learning rate on votes, or the default one of the kind."""
        return self.learning_rate or LEARNING_RATES[self.kind]

    @model_validator(mode="before")
    @classmethod
    def _warm_steps_of_the_kind(cls, data: Any) -> Any:
        kind = data.get("kind") if isinstance(data, dict) else None
        if not isinstance(kind, str) or kind not in WARM_STEPS:
            return data  # the field refuses it in a sentence, where it is no kind
        return {"warm_steps": WARM_STEPS[kind], **data}

    @model_validator(mode="after")
    def _options_of_the_kind(self) -> "StudentConfig":
        if self.layers is not None and self.kind != "lora":
            raise ValueError(f"layers is {self.layers} and kind is '{self.kind}': remove layers, or choose kind 'lora'")
        if self.curriculum and self.kind != "head":
            raise ValueError(f"curriculum is set and kind is '{self.kind}': remove it, or choose kind 'head'")
        return self


AFTER_THE_GATE = ("steps", "batch", "learning_rate", "pseudo", "label", "mix", "curriculum")


class VotesConfig(Config):
    """What is asked of the teachers, and how they answer.

    Attributes:
        queries: how many (context, position) queries are paid for; `auto`: as many as keep `noise_target`.
        noise_target: for `auto` queries or an `auto` clip: standard deviation of the noise on one entry of a mean vote.
        rounds: over which the queries are spread; each asks about text of the student of the round before.
        top_k: candidates per query, the student's most likely tokens; the end token is always one of them.
        top_p: keep only the candidates that hold this much of the student's probability (no limit if absent).
        select: positions to ask about: `any`, those where the pseudo-label is not what the student finds likeliest
            (`threshold`), or those where the student's `entropy` is largest.
        ballot: a teacher votes with its `distribution` over the candidates, or for its `top1` alone.
        noise: `gaussian`, or `laplace` (not for privacy.composition gdp).
        clip: r: votes are centred on the student and their deviation is clipped to this L2 norm; `auto`: the widest
            that keeps `noise_target`, and none for top1 ballots or laplace noise; with null they vote plainly, as in
            the paper.
    """

    queries: int | Literal["auto"] = 1000
    noise_target: float = Field(default=0.015, gt=0)
    rounds: int = Field(default=1, ge=1, le=1000)
    top_k: int = Field(default=50, ge=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    select: Literal["any", "threshold", "entropy"] = "threshold"
    ballot: Literal["distribution", "top1"] = "distribution"
    noise: Literal["gaussian", "laplace"] = "gaussian"
    clip: float | Literal["auto"] | None = "auto"

    @field_validator("queries")
    @classmethod
    def _some_queries(cls, queries: int | str) -> int | str:
        if isinstance(queries, int) and queries < 1:
            raise ValueError("give 1 query or more, or 'auto'")
        return queries

    @field_validator("clip")
    @classmethod
    def _a_radius(cls, clip: float | str | None) -> float | str | None:
        if isinstance(clip, float) and not CLIP_RANGE[0] <= clip <= CLIP_RANGE[1]:
            raise ValueError(f"give a number between {CLIP_RANGE[0]:g} and {CLIP_RANGE[1]:g}, 'auto' or null")
        return clip

    @model_validator(mode="after")
    def _clipping_is_gaussian(self) -> "VotesConfig":
        if isinstance(self.clip, float) and self.noise != "gaussian":
            raise ValueError(f"clip is {self.clip} and noise is '{self.noise}': choose noise 'gaussian', or clip null")
        return self

    @model_validator(mode="after")
    def _one_thing_follows_the_target(self) -> "VotesConfig":
        if self.queries == "auto" and self.radius == "auto":
            raise ValueError("queries and clip are both 'auto', and noise_target fixes one of them: set clip, e.g. 0.2")
        return self

    @property
    def radius(self) -> float | Literal["auto"] | None:
        """The clip, where these votes can be clipped at all."""
        can_be = self.noise == "gaussian" and self.ballot == "distribution"
        return self.clip if can_be or self.clip != "auto" else None


class VotesPrivacyConfig(PrivacyConfig):
    """The `privacy` block: votes are a mechanism of central differential privacy."""

    composition: Literal["gdp", "zcdp", "rdp", "pld"] = "gdp"


class TeacherResources(ResourcesConfig, Resources):
    """The `resources` block."""


class SeqPateRecipe(PretrainedRecipe, MatchedRecipe):
    """A resolved recipe of SeqPATE.

    Attributes:
        prompts: a public file of prompts, one a line, with which pseudo-sentences and texts begin; the built-in ones if
            absent.
    """

    method: Literal["seqpate"] = "seqpate"
    privacy: VotesPrivacyConfig = VotesPrivacyConfig()
    prompts: Annotated[str | None, PathKind.PUBLIC] = None
    pseudo: PseudoConfig = PseudoConfig()
    teachers: TeachersConfig = TeachersConfig()
    votes: VotesConfig = VotesConfig()
    student: StudentConfig = StudentConfig()
    generation: WritingConfig = WritingConfig()
    resources: TeacherResources = TeacherResources()

    @model_validator(mode="after")
    def _bounds_of_the_unit(self) -> "SeqPateRecipe":
        check_unit(self.corpus, self.privacy.unit, self.teachers.count)
        return self

    @property
    def base_rank(self) -> int:
        """Size of the public bases: the largest that teachers or student need."""
        square = self.teachers.width if self.teachers.kind == "square" else 1
        return max(square, *HEAD_SHAPE)

    @property
    def release_id(self) -> str:
        """Name of the release: equal recipes are the same release."""
        # With several rounds, how the student learns decides what the next round asks; with `match`, what is matched.
        is_free = self.votes.rounds == 1 and self.match is None
        learning = {"student": dict.fromkeys(AFTER_THE_GATE, True)} if is_free else {}
        return self._named({**self.free, **learning})


CARD = Card(
    citation="SeqPATE (Tian et al., NeurIPS 2022)",
    sentence="many teachers, each trained on one shard of private text, voted on the next token of public sentences,"
    " and a student learned from the noisy sums of their votes.",
    private=(
        ("corpus", "the raw text"),
        ("users", "one id each"),
        ("shards", "by keyed hash"),
        ("teachers", "one per shard"),
    ),
    released=(("student", "learns from noise"), ("synthetic text", "new writing"), ("report", "this page")),
    models=BASE
    | PRETRAINED
    | {
        "base_pseudo": "Base model tuned on pseudo-text",
        "student": "Student (this run)",
        "nonprivate": "Some steps without privacy (no bound)",
    },
    ours="student",
)
METHOD = Method(
    recipe=SeqPateRecipe,
    card=CARD,
    plan="rayprivacy.methods.seqpate.plan:plan_run",
    run="rayprivacy.methods.seqpate.method:run",
    reading="rayprivacy.methods.seqpate.method:reading_of",
    check="rayprivacy.methods.seqpate.plan:check_inputs",
    trial="rayprivacy.methods.seqpate.method:try_base",
)
