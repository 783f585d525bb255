"""Make the policy that a recipe describes."""

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from rayprivacy.core.errors import ConfigError
from rayprivacy.policies.policy import Policy
from rayprivacy.policies.settings import PolicyConfig, digest_of, without_training

if TYPE_CHECKING:
    from rayprivacy.policies.classifier import WordScores


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
        return without_training(config, kept)
    from rayprivacy.policies.classifier import ClassifierPolicy

    return ClassifierPolicy(_scores(config), config.window, config.threshold, kept)


@lru_cache(maxsize=4)
def _scores(config: PolicyConfig) -> "WordScores":
    """The trained scores of a policy, whose digest names the content of its file."""
    from rayprivacy.policies.classifier import train_scores

    return train_scores(_public_rows(config), config.window)


def _public_rows(config: PolicyConfig) -> list[tuple[str, str]]:
    from rayprivacy.corpus.public_texts import public_rows  # reads files, which a plan of another kind does not

    try:
        return public_rows(str(config.train), config.text, config.label, "policy", "policy.label")
    except ConfigError as error:
        message = str(error).replace(".source is", ".train is")
    raise ConfigError(message)
