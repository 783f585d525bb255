"""What a recipe says about DP-SGD: the mechanism (charged), the optimizer, and the engine (performance only)."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_serializer, model_validator

from rayprivacy.accounting.schedule import NoiseSchedule, ScheduleKind
from rayprivacy.core.config import Config, PathKind
from rayprivacy.core.errors import ConfigError

LEAST_FACTOR = 1e-3  # of the noise of the last step beside that of the first
MAX_CHUNKS = 10_000  # each is a row of the ledger and a saved state
CPU_BATCH_TOKENS, GPU_BATCH_TOKENS = 256, 8192
UNITS_OF_A_ROW, LONGEST_ROW = 4, 1024  # of the longest units, so many fit into a row, while it is no longer than that
_SIZES = ("sampling_rate", "expected_batch")


class OptimizerConfig(Config):
    """How noisy gradients become steps; post-processing, but part of the release.

    Attributes:
        kind: `adamw` (DP-Adam with decoupled weight decay), or `sgd`, with `momentum` if that is above 0.
        learning_rate: of the first step; None takes one that suits the adapter.
        schedule: how it falls over all steps: not at all, `linear` to zero or `cosine` to zero.
        weight_decay, momentum: as in torch.
    """

    kind: Literal["adamw", "sgd"] = "adamw"
    learning_rate: float | None = Field(default=None, gt=0)
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    weight_decay: float = Field(default=0.0, ge=0)
    momentum: float = Field(default=0.0, ge=0, lt=1)


class NoiseScheduleConfig(Config):
    """The `noise_schedule` block: how the noise falls from `noise_multiplier` on, by a rule that everybody may know.

    Attributes:
        kind: `constant`; `linear`, 1 / (1 + tau t); or `exponential`, exp(-tau t). See `accounting.schedule`.
        tau: how fast it falls.
        steps_per_epoch: steps after which t grows by 1, a public number; 1 lets t count steps.
    """

    kind: ScheduleKind = "constant"
    tau: float = Field(default=0.0, ge=0)
    steps_per_epoch: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _is_a_schedule(self) -> "NoiseScheduleConfig":
        if self.kind == "constant" and (self.tau or self.steps_per_epoch > 1):
            raise ValueError(
                f"kind is 'constant' with tau {self.tau:g} and steps_per_epoch {self.steps_per_epoch}: choose 'linear'"
                " or 'exponential', or leave both out"
            )
        if self.kind != "constant" and not self.tau:
            raise ValueError(f"kind is '{self.kind}' with tau 0: give tau above 0, e.g. 0.1")
        return self

    @property
    def rule(self) -> NoiseSchedule:
        """What it says."""
        return NoiseSchedule(self.kind, self.tau, self.steps_per_epoch)


class LayerScaleConfig(Config):
    """The `layer_scale` block: where the scales of the layers come from, which is never private text.

    Attributes:
        origin: written `from`: `public`, gradients on public text, or `weights`, of the base model.
        source: of the public text: `chitchat`, or a Parquet, JSONL or CSV file or directory (a path or a URI). That it
            is public, and no part of the corpus, is the word of whoever writes the recipe.
        text: the column that holds the text.
    """

    origin: Literal["public", "weights"] = Field(alias="from")
    source: Annotated[str | None, PathKind.PUBLIC_CORPUS] = Field(default=None, min_length=1)
    text: str = "text"

    @model_validator(mode="after")
    def _text_where_it_is_read(self) -> "LayerScaleConfig":
        if (self.source is None) != (self.origin == "weights"):
            raise ValueError(
                f"from is '{self.origin}' and source {self.source!r}: name public text for from 'public', and none for"
                " 'weights'"
            )
        return self

    @model_serializer
    def _as_it_is_written(self) -> dict[str, object]:
        return {"from": self.origin, "source": self.source, "text": self.text}


class DpSgdConfig(Config):
    """The `training` block of a recipe. Every number is public and none may be computed from the size of the corpus.

    Attributes:
        sampling_rate: q, the probability that a user (or record) takes part in a step, by a keyed coin of its own. With
            bands, the mean over steps: b q in every b-th of them, and 0 in the others.
        expected_batch: what the noisy sum is divided by: a public guess at q times the number of users.
        steps: T, the number of steps.
        clipping_norm: C, bound on the L2 norm of one user's (or record's) gradient.
        clipping: `flat` scales what is longer than C; `per_layer` bounds each parameter by C / sqrt(parameters);
            `automatic` scales everything to about C (Bu et al., 2022).
        noise_multiplier: sigma, noise std / C, of the first step; None takes the least that fits the budget.
        noise_schedule: how it falls from there; see NoiseScheduleConfig.
        layer_scale: public scales alpha_k of the layers, by which gradients are divided before they are clipped, and
            noise is multiplied (see `layer_scale`); None clips all layers alike.
        microbatches: N, so that the mean gradient of each of N micro-batches is clipped, and not that of each user
            (Dupuy et al., 2022): a multiple of the 16 part files. One user moves the sum by 2C, noise std is 2 sigma C,
            and the sum is divided by N; None clips each user.
        max_records: m, records of one user that a step reads at most, taken in turn by a keyed choice.
        max_tokens: tokens of one record that are read; longer ones are cut, and do not end with the end token.
        token_decay: d, so that the loss of a unit is a mean in which the t-th token of a text has weight t^-d; 0 weighs
            all alike. What is clipped says more of how texts begin then, whatever their length (see `batches`).
        chunk: steps that are reserved in the ledger, and saved, at once.
        bands: b, how many steps in a row share noise (Choquette-Choo et al., 2023); 1 is independent noise.
        optimizer: see OptimizerConfig.
    """

    sampling_rate: float = Field(default=0.05, gt=0, le=1)
    expected_batch: float = Field(default=64.0, gt=0)
    steps: int = Field(default=100, ge=1)
    clipping_norm: float = Field(default=1.0, gt=0)
    clipping: Literal["flat", "per_layer", "automatic"] = "flat"
    noise_multiplier: float | None = Field(default=None, gt=0)
    noise_schedule: NoiseScheduleConfig = NoiseScheduleConfig()
    layer_scale: LayerScaleConfig | None = None
    microbatches: int | None = Field(default=None, ge=1)
    max_records: int = Field(default=4, ge=1)
    max_tokens: int = Field(default=64, ge=1)
    token_decay: float = Field(default=0.0, ge=0)
    chunk: int = Field(default=25, ge=1)
    bands: int = Field(default=1, ge=1)
    optimizer: OptimizerConfig = OptimizerConfig()

    @model_validator(mode="after")
    def _fits_together(self) -> "DpSgdConfig":
        for refused, sentence in self._refusals():
            if refused:
                raise ValueError(sentence)
        try:
            self.noise_schedule.rule.levels(self.steps, self.chunk)
        except ConfigError as error:
            raise ValueError(str(error).rstrip(".")) from None
        return self

    def _refusals(self) -> Iterator[tuple[bool, str]]:
        rule = self.noise_schedule.rule
        yield (
            bool(self.steps % self.bands or self.chunk % self.bands),
            f"bands is {self.bands}, steps {self.steps} and chunk {self.chunk}: let both be multiples of bands",
        )
        yield (
            self.bands * self.sampling_rate > 1,
            f"bands is {self.bands} and sampling_rate {self.sampling_rate:g}: a user takes part in every step that is"
            " open to its group with probability bands * sampling_rate, so let that be at most 1",
        )
        yield (
            self.microbatches is not None and self.bands > 1,
            f"microbatches is {self.microbatches} with bands {self.bands}: correlated noise is for clipped users, so"
            " choose one",
        )
        yield (
            rule.falls and self.bands > 1,
            f"bands is {self.bands} with a noise_schedule that falls: correlated noise is constant, so choose one",
        )
        yield (
            rule.factor(self.steps - 1) < LEAST_FACTOR,
            f"noise_schedule.tau is {rule.tau:g}, which leaves too little noise after {self.steps} steps: give a"
            " smaller tau, or fewer steps",
        )
        yield (
            self.steps > MAX_CHUNKS * self.chunk,
            f"steps is {self.steps} and chunk is {self.chunk}, which is more than {MAX_CHUNKS} charges: give larger"
            " chunks, or fewer steps",
        )

    @property
    def divisor(self) -> float:
        """What a noisy sum is divided by: the expected batch, or the number of micro-batches."""
        return self.microbatches or self.expected_batch


class EngineConfig(Config):
    """How the steps are computed: changes time and memory, and the result only in the order of floating-point sums.

    Attributes:
        workers: Ray Train workers, each a rank with a part of the users.
        zero: DeepSpeed's ZeRO stage; None is plain PyTorch with an all-reduce.
        offload: keep the optimizer's state in the memory of the host (ZeRO 1 to 3).
        gradients: `bookkeeping` (ours, one backward pass) or `opacus` (per-sample gradients, untied weights only).
        batch_tokens: tokens of one row of users; None takes what four of the longest fill, but 256 at least and 1,024
            at most. On a GPU, and where a model cannot read rows, tokens of a padded batch: None takes 256 on a CPU,
            8,192 on a GPU. It always has as many rows as fit (see `batches`), so that a large one is mostly padding
            where few users of one length are sampled at once.
        gradient_checkpointing: compute activations twice, and keep fewer.
        cpus: threads of each worker; 0 shares out what its machine has.
        gpu: each worker takes one GPU.
    """

    workers: int = Field(default=1, ge=1)
    zero: Literal[0, 1, 2, 3] | None = None
    offload: bool = False
    gradients: Literal["bookkeeping", "opacus"] = "bookkeeping"
    batch_tokens: int | None = Field(default=None, ge=8)
    gradient_checkpointing: bool = False
    cpus: int = Field(default=0, ge=0)
    gpu: bool = False

    @model_validator(mode="after")
    def _opacus_sees_all_layers(self) -> "EngineConfig":
        if self.gradients == "opacus" and self.gradient_checkpointing:
            raise ValueError(
                "gradients is 'opacus' and gradient_checkpointing true: Opacus sees no layer that is computed again, so"
                " leave one of them out"
            )
        return self

    @property
    def tokens_at_once(self) -> int:
        """Tokens of one physical batch at most."""
        return self.batch_tokens or (GPU_BATCH_TOKENS if self.gpu else CPU_BATCH_TOKENS)

    def row_tokens(self, training: DpSgdConfig) -> int:
        """Tokens of a row of users on a CPU. In one that holds but one of the longest, the rest would be padding."""
        few = UNITS_OF_A_ROW * training.max_records * training.max_tokens
        return self.batch_tokens or max(CPU_BATCH_TOKENS, min(few, LONGEST_ROW))


class PresetTraining(DpSgdConfig):
    """The `training` block of a method that has presets: named sets of public defaults that were measured.

    A preset fixes how many users a step expects, which is good for any corpus; the sampling rate follows from a public
    guess at the number of users. It is resolved as the recipe is read: what is written down, and what release ids are
    made of, are its values, not its name. Keys that the recipe gives itself stand.

    Attributes:
        presets: by name, the keys that each one gives, among them `expected_batch`.
        preset: the name of one; a resolved recipe has its values instead. A method narrows it to its names.
        users: with `preset`, a public guess at how many users (or records, where these are the unit) the corpus has.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    preset: str | None = Field(default=None, exclude=True)
    users: int | None = Field(default=None, ge=1, exclude=True)

    @model_validator(mode="before")
    @classmethod
    def _resolved(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        name, users = data.get("preset"), data.get("users")
        if name is None and users is not None:
            raise ValueError(f"users is {users!r} without a preset, which alone reads it: add preset, or remove users")
        if (
            not isinstance(name, str)
            or name not in cls.presets
            or not (users is None or (isinstance(users, int) and not isinstance(users, bool) and users > 0))
        ):
            return data  # no preset, or a value that its field refuses
        # The guess stays where the recipe gives both sizes itself: it may contradict them, which a plan remarks.
        dropped = ("preset",) if all(key in data for key in _SIZES) else ("preset", "users")
        own = {key: value for key, value in data.items() if key not in dropped}
        values = cls.presets[name]
        return {**values, **own, **_sizes(name, values["expected_batch"], users, own)}


def _sizes(name: str, batch: float, users: int | None, own: Mapping[str, Any]) -> Mapping[str, Any]:
    """Sampling rate and expected batch. The recipe gives one; the other follows from the guessed number of users."""
    given = {key: own[key] for key in _SIZES if key in own}
    if len(given) == len(_SIZES) or not all(isinstance(value, int | float) for value in given.values()):
        return given
    if users is None:
        raise ValueError(
            f"preset is '{name}' without users: add users, a public guess at how many the corpus has, or give"
            " sampling_rate and expected_batch"
        )
    if "sampling_rate" in given:
        return {**given, "expected_batch": given["sampling_rate"] * users}
    batch = given.get("expected_batch", batch)
    if batch > users:
        raise ValueError(f"users is {users}, fewer than the {batch:g} that a step expects: lower expected_batch")
    return {"sampling_rate": batch / users, "expected_batch": batch}
