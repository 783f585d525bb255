"""Make the policy that a recipe describes."""

from collections.abc import Iterable

from rayprivacy.core.errors import ConfigError
from rayprivacy.policies.keywords import KeywordPolicy, read_keywords
from rayprivacy.policies.patterns import PatternPolicy
from rayprivacy.policies.policy import Policy
from rayprivacy.policies.settings import PolicyConfig, digest_of
from rayprivacy.policies.slots import SlotPolicy


def make_policy(config: PolicyConfig, kept: Iterable[str] = ()) -> Policy:
    """The policy of a recipe; a classifier is trained.

    Args:
        config: the block.
        kept: words that are never hidden.

    Raises:
        ConfigError: its file cannot be read, or is not the one that the recipe was resolved with.
    """
    found = digest_of(config)
    if found != config.digest:
        raise ConfigError(
            f"policy.digest is '{config.digest[:16]}', and the policy is now '{found[:16]}': put its public file back,"
            " or the version of rayprivacy that made the digest, or remove the digest, which is another release."
        )
    if config.kind != "classifier":
        return without_training(config, kept)
    from rayprivacy.policies.classifier import ClassifierPolicy, train_scores

    scores = train_scores(_public_rows(config), config.window)
    return ClassifierPolicy(scores, config.window, config.threshold, kept)


def _public_rows(config: PolicyConfig) -> list[tuple[str, str]]:
    from rayprivacy.corpus.public_texts import public_rows  # reads files, which a plan does not

    try:
        return public_rows(str(config.train), config.text, config.label, "policy", "policy.label")
    except ConfigError as error:
        message = str(error).replace(".source is", ".train is")
    raise ConfigError(message)


def without_training(config: PolicyConfig, kept: Iterable[str] = ()) -> Policy:
    """The policy of a recipe whose kind is none that is trained."""
    if config.kind == "keywords":
        return KeywordPolicy(read_keywords(str(config.file)), kept)
    if config.kind == "slots":
        return SlotPolicy(str(config.column), kept)
    return PatternPolicy(config.detector, config.kinds, kept)
