"""What a recipe says about a policy, the digest that names it, and the policy that it describes."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import SerializerFunctionWrapHandler, field_validator, model_serializer, model_validator

from rayprivacy.core.config import Config, PathKind
from rayprivacy.core.errors import ConfigError
from rayprivacy.core.private import digest_file, digest_json
from rayprivacy.corpus.public import public_rows
from rayprivacy.policies.classifier import INVERSE_REGULARISATION, ClassifierPolicy, WordScores, train_scores
from rayprivacy.policies.policy import Policy
from rayprivacy.sanitize.settings import KINDS

_OF_KIND = {
    "patterns": ("kinds",),
    "keywords": ("file",),
    "slots": ("column",),
    "classifier": ("train", "text", "label"),
}
WINDOW = 16  # words that a classifier judges at once; a shorter line is judged whole
THRESHOLD = 0.96  # the probability of a domain above which it hides a window
_NEEDED = {"keywords": "file", "slots": "column", "classifier": "train"}


class PolicyConfig(Config):
    """The `policy` block: a public function that says which words of a private text are sensitive.

    Attributes:
        kind: `patterns` hides typed values; `keywords` the words and phrases of a public list; `slots` what the row's
            own word labels put into a slot; `classifier` windows of words that are surely of some domain.
        kinds: of `patterns`: which values are found.
        file: of `keywords`: a public YAML file, a list of phrases or lists by domain.
        column: of `slots`: the labels, one of corpus.join.words.
        train: of `classifier`: a file, Parquet, JSONL or CSV, which this recipe declares public.
        text, label: of `classifier`: its columns of texts and of domains.
        digest: names the policy with the content of its file, and so is part of the release id; filled in when it is
            left out. A recipe that has it is of that content, and a run with another one is refused.
    """

    kind: Literal["patterns", "keywords", "slots", "classifier"] = "patterns"
    kinds: tuple[str, ...] = KINDS
    file: Annotated[str | None, PathKind.PUBLIC] = None
    column: str | None = None
    train: Annotated[str | None, PathKind.PUBLIC] = None
    text: str = "text"
    label: str = "label"
    digest: str = ""

    @field_validator("kinds")
    @classmethod
    def _known(cls, kinds: tuple[str, ...]) -> tuple[str, ...]:
        if not kinds or set(kinds) - set(KINDS):
            raise ValueError(f"give some of {', '.join(KINDS)}")
        return kinds

    @model_validator(mode="after")
    def _of_one_kind(self) -> "PolicyConfig":
        needed = _NEEDED.get(self.kind)
        if needed and not getattr(self, needed):
            raise ValueError(f"policy.kind is '{self.kind}', which needs policy.{needed}: add it")
        for name, field in type(self).model_fields.items():
            foreign = name not in (*_OF_KIND[self.kind], "kind", "digest")
            if foreign and getattr(self, name) != field.default:
                raise ValueError(f"policy.{name} means nothing where policy.kind is '{self.kind}': remove it")
        return self

    @model_validator(mode="after")
    def _named_by_its_content(self) -> "PolicyConfig":
        if not self.digest:
            object.__setattr__(self, "digest", digest_of(self))  # the one write to a frozen config, while it is made
        return self

    @model_serializer(mode="wrap")
    def _keys_of_its_kind(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        written = handler(self)
        return {name: written[name] for name in ("kind", *_OF_KIND[self.kind], "digest")}


def digest_of(config: PolicyConfig) -> str:
    """The digest that names a policy, from the recipe and its public file as it is now; nothing is trained."""
    if config.kind == "classifier":
        shape = [config.text, config.label, WINDOW, THRESHOLD, INVERSE_REGULARISATION]
        return digest_json(["classifier-file-1", _file_digest(str(config.train)), *shape])
    return _untrained(config).digest


def _file_digest(path: str) -> str:
    try:
        return digest_file(Path(path))
    except OSError as error:
        kind = type(error).__name__
    raise ConfigError(f"policy.train is '{path}', which cannot be read ({kind}): give a file of public text.")


def _untrained(config: PolicyConfig, kept: Sequence[str] = ()) -> Policy:
    from rayprivacy.policies import words  # a detector imports torch

    if config.kind == "keywords":
        lists = words.read_lists(str(config.file))
        return words.KeywordPolicy([phrase for listed in lists.values() for phrase in listed], kept)
    if config.kind == "slots":
        return words.SlotPolicy(str(config.column), kept)
    return words.PatternPolicy(config.kinds, kept)


def make_policy(config: PolicyConfig, kept: Sequence[str] = ()) -> Policy:
    """The policy of a recipe; a classifier is trained, once in a process.

    Refused are a file that is not the one the recipe was resolved with, and words to keep that the policy hides.
    """
    policy = _made(config, kept)
    for words in (*kept, " ".join(kept)):
        if policy.hides(words):
            raise ConfigError(
                f"corpus.join.prefix has '{words}', which the policy hides, and words of the prefix are never hidden:"
                " choose a prefix of other words, or take them out of the policy."
            )
    return policy


def _made(config: PolicyConfig, kept: Sequence[str]) -> Policy:
    found = digest_of(config)
    if found != config.digest:
        raise ConfigError(
            f"policy.digest is '{config.digest[:16]}', and the policy is now '{found[:16]}': put its public file back,"
            " or the version of rayprivacy that made the digest, or remove the digest, which is another release."
        )
    if config.kind != "classifier":
        return _untrained(config, kept)
    return ClassifierPolicy(_scores(config), WINDOW, THRESHOLD, kept)


@lru_cache(maxsize=4)
def _scores(config: PolicyConfig) -> WordScores:
    """The trained scores of a policy, whose digest names the content of its file."""
    try:
        rows = public_rows(str(config.train), config.text, config.label, "policy", "policy.label")
    except ConfigError as error:
        raise ConfigError(str(error).replace(".source is", ".train is")) from None
    return train_scores(rows, WINDOW)
