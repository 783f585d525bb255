"""Recipes: one YAML file says what to run; `-o key=value` changes single keys.

The part of a recipe that decides what is released is digested into the release id. Settings of performance
(`resources`), of post-processing (`generation`, `evaluation`, how the student learns from votes) and of bookkeeping
(ledger URL, account, key file) are left out of it, so changing them re-serves the stored release for nothing.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, model_validator

from rayprivacy.core.artifacts import digest_json
from rayprivacy.core.config import Config
from rayprivacy.core.errors import ConfigError
from rayprivacy.corpus.settings import CorpusConfig, check_unit
from rayprivacy.generation.settings import SamplingConfig
from rayprivacy.generation.student import StudentConfig
from rayprivacy.ledger.settings import PrivacyConfig
from rayprivacy.models.settings import ModelConfig
from rayprivacy.teachers.settings import ResourcesConfig, TeachersConfig


class VotesConfig(Config):
    """What is asked of the teachers.

    Attributes:
        queries: how many (context, position) queries are paid for.
        top_k: candidates per query, the student's most likely tokens; the end token is always one of them.
        top_p: keep only the candidates that hold this much of the student's probability (no limit if absent).
        outside_top: ask only where the pseudo-label is outside the student's top m tokens; 0 asks anywhere.
    """

    queries: int = Field(default=1000, ge=1)
    top_k: int = Field(default=50, ge=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    outside_top: int = Field(default=1, ge=0)


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

    @property
    def release_id(self) -> str:
        """Name of the release: equal recipes are the same release."""
        free = {"generation": True, "evaluation": True, "resources": True}
        after_the_gate = {"student": {"steps": True, "batch": True, "learning_rate": True, "weight": True}}
        shape = self.model_dump(mode="json", exclude={**free, **after_the_gate})
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
