"""Refuse secret phrases that could overlap in a text: the rule under which masking them is simple (see `phrases`)."""

from collections.abc import Sequence

from rayprivacy.core.errors import ConfigError

Words = tuple[str, ...]


def check_overlaps(numbered: Sequence[tuple[int, Words]]) -> None:
    """Require that no phrase repeats or contains another, and that none ends as another, or itself, begins.

    Args:
        numbered: line number and words of each phrase.

    Raises:
        ConfigError: it names the two lines by their numbers.
    """
    wholes: dict[Words, int] = {}
    for line, words in numbered:
        if words in wholes:
            raise ConfigError(f"corpus.phrases: line {line} repeats line {wholes[words]}: remove one of them.")
        wholes[words] = line
    starts = {words[:end]: line for line, words in numbered for end in range(1, len(words))}
    for line, words in numbered:
        for part in _proper_parts(words):
            if part in wholes:
                raise ConfigError(f"corpus.phrases: line {line} contains line {wholes[part]}: remove one of them.")
        for at in range(1, len(words)):
            if words[at:] in starts:
                raise ConfigError(
                    f"corpus.phrases: line {line} ends as line {starts[words[at:]]} begins, so that they can overlap: "
                    "shorten one of them."
                )


def _proper_parts(words: Words) -> list[Words]:
    ends = range(1, len(words) + 1)
    return [words[at:end] for end in ends for at in range(end) if end - at < len(words)]
