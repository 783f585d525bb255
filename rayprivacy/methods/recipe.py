"""Recipes: one YAML file says what to run; `-o key=value` changes single keys.

The part of a recipe that decides what is released is digested into the release id. Settings of performance
(`resources`), of post-processing (`generation`, `evaluation`, how the student learns from votes) and of bookkeeping
(ledger URL, account, key file) are left out of it, so changing them re-serves the stored release for nothing.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, field_validator, model_validator
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from rayprivacy.core.artifacts import digest_json
from rayprivacy.core.config import Config
from rayprivacy.core.errors import ConfigError
from rayprivacy.corpus.settings import CorpusConfig, check_unit
from rayprivacy.generation.settings import SamplingConfig
from rayprivacy.generation.student import StudentConfig
from rayprivacy.ledger.settings import PrivacyConfig
from rayprivacy.models.settings import ModelConfig
from rayprivacy.release.ballots import CLIP_RANGE
from rayprivacy.teachers.settings import ResourcesConfig, TeachersConfig

AFTER_THE_GATE = ("steps", "batch", "learning_rate", "weight", "pseudo", "label", "mix", "curriculum")


class VotesConfig(Config):
    """What is asked of the teachers, and how they answer.

    Attributes:
        queries: how many (context, position) queries are paid for; `auto`: as many as keep `noise_target`.
        noise_target: for `auto` queries or an `auto` clip: standard deviation of the noise on one entry of a mean vote.
        rounds: the queries are spread over so many rounds; each asks about text of the student of the round before.
        top_k: candidates per query, the student's most likely tokens; the end token is always one of them.
        top_p: keep only the candidates that hold this much of the student's probability (no limit if absent).
        select: positions to ask about: `any`, `threshold` (see outside_top), or of those where the student's `entropy`
            is largest.
        outside_top: ask only where the pseudo-label is outside the student's top m tokens; 0 asks anywhere.
        ballot: a teacher votes with its `distribution` over the candidates, or for its `top1` alone.
        noise: `gaussian`, or `laplace` (not for privacy.composition gdp).
        clip: r: votes are centred on the student and their deviation is clipped to this L2 norm; `auto`: the widest
            that keeps `noise_target`, and none for top1 ballots or laplace noise; with null they vote plainly, as in
            the paper.
    """

    queries: int | Literal["auto"] = 1000
    noise_target: float = Field(default=0.015, gt=0)
    rounds: int = Field(default=1, ge=1)
    top_k: int = Field(default=50, ge=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    select: Literal["any", "threshold", "entropy"] = "threshold"
    outside_top: int = Field(default=1, ge=0)
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


class EvaluationConfig(Config):
    """What is measured on the held-out users. These figures are internal: they read private text.

    Attributes:
        users: held-out users that are read, at most.
        completions: held-out texts whose first four words the models continue, for Bleu.
        nonprivate_steps: AdamW steps of the non-private upper bound; 0 leaves it out.
    """

    users: int = Field(default=150, ge=1)
    completions: int = Field(default=64, ge=1)
    nonprivate_steps: int = Field(default=100, ge=0)


class Recipe(Config):
    """A resolved recipe."""

    method: Literal["seqpate"] = "seqpate"
    seed: int = 0
    prompts: str | None = None
    corpus: CorpusConfig = CorpusConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    model: ModelConfig = ModelConfig()
    pseudo: SamplingConfig = SamplingConfig(texts=512, prompt_words=(4, 4), temperature=0.8, top_k=40, top_p=1.0)
    teachers: TeachersConfig = TeachersConfig()
    votes: VotesConfig = VotesConfig()
    student: StudentConfig = StudentConfig()
    generation: SamplingConfig = SamplingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    resources: ResourcesConfig = ResourcesConfig()

    @model_validator(mode="after")
    def _bounds_of_the_unit(self) -> "Recipe":
        check_unit(self.corpus, self.privacy.unit, self.teachers.count)
        return self

    @model_validator(mode="after")
    def _no_password(self) -> "Recipe":
        # Checked on the whole recipe, whose input is never quoted; a run directory keeps the recipe as it is.
        try:
            url = make_url(self.privacy.ledger)
        except ArgumentError:
            raise ValueError("privacy.ledger is no SQLAlchemy URL: write e.g. sqlite:///ledger.db") from None
        if url.password or "password" in url.query:
            raise ValueError(
                "privacy.ledger holds a password: put it into a password file (PGPASSFILE, or ?passfile=... in the URL)"
            )
        return self

    @property
    def base_rank(self) -> int:
        """Size of the public bases: the largest that teachers or student need."""
        square = self.teachers.width if self.teachers.kind == "square" else 1
        return max(square, self.student.rank_in, self.student.rank_out)

    @property
    def release_id(self) -> str:
        """Name of the release: equal recipes are the same release."""
        free = {"generation": True, "evaluation": True, "resources": True}
        # With several rounds, how the student learns decides what the next round asks.
        learning = {"student": dict.fromkeys(AFTER_THE_GATE, True)} if self.votes.rounds == 1 else {}
        shape = self.model_dump(mode="json", exclude={**free, **learning})
        shape["privacy"] = self.privacy.model_dump(mode="json", include={"unit", "epsilon", "delta"})
        return f"{self.method}-{digest_json(shape)[:16]}"


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe file and apply `key.path=value` overrides (values are YAML).

    Raises:
        ConfigError: the file, a key or a value is wrong; the message names it and the remedy.
    """
    if not path.is_file():
        raise ConfigError(
            f"the recipe {path} does not exist: give the path of a YAML file, e.g. jobs/seqpate/chat.yaml."
        )
    data = _yaml(path.read_text(), f"the recipe {path}")
    if not isinstance(data, dict):
        raise ConfigError(f"the recipe {path} is not a mapping of keys: start it with `method: seqpate`.")
    for override in overrides:
        _apply(data, override)
    return Recipe.parse(data)


def _apply(data: dict[str, Any], override: str) -> None:
    name, sign, value = override.partition("=")
    if not sign or not name:
        raise ConfigError(f"the option -o {override!r} is not of the form key=value, e.g. -o privacy.epsilon=8.")
    *path, last = name.split(".")
    for part in path:
        if data.get(part) is None:
            data[part] = {}
        data = data[part]
        if not isinstance(data, dict):
            raise ConfigError(f"the option -o {override!r} goes into '{part}', which is a value and has no keys.")
    data[last] = _yaml(value, f"the option -o {override!r}")


def _yaml(text: str, name: str) -> Any:
    try:
        return _numbers(yaml.safe_load(text))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{name} is not valid YAML{where}: check quotes, colons and indentation.") from None


def _numbers(value: Any) -> Any:
    """YAML 1.1 reads `1e-6` as text (it wants `1.0e-6`); everybody means the number."""
    if isinstance(value, dict):
        return {name: _numbers(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    if isinstance(value, str) and "e" in value.lower():
        try:
            return float(value)
        except ValueError:
            return value
    return value


def dump_recipe(recipe: Recipe) -> str:
    """The resolved recipe as YAML."""
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False)
