"""How a run reads a row in two versions: its redacted copy in steps without noise, its full text in noisy ones."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rayprivacy.core.units import PrivacyUnit
from rayprivacy.dpsgd.units import Reading
from rayprivacy.policies.policy import MARK, Policy, cut

REDACTED, FULL = 0, 1  # versions of a row


@dataclass(frozen=True)
class Redacting:
    """The text of a row in a version; goes to the workers.

    The policy sees the whole text, and what it leaves is cut: half a value would match nothing, and where a cut falls
    in a text would say in its copy how long the hidden words were.
    """

    policy: Policy  # what is hidden in the redacted copy
    max_chars: int  # of either version

    def __call__(self, row: Any, version: int) -> str:
        """The redacted copy, or the text as it is."""
        text = self.policy.redact(row) if version == REDACTED else str(row["text"])
        return cut(text, self.max_chars).rstrip()

    def full(self, row: Any, version: int) -> str:
        """The text as it is, whatever the version."""
        return self(row, FULL)


@dataclass(frozen=True)
class Scheduled:
    """The version that a step reads; goes to the workers."""

    redacted: tuple[bool, ...]  # for each step whether it reads the redacted copy

    def __call__(self, step: int) -> int:
        """The version of a step."""
        return REDACTED if self.redacted[step] else FULL


def redacting(
    unit: PrivacyUnit,
    labels: tuple[str, ...],
    context: Callable[[Any], str],
    max_tokens: int,
    text: Redacting,
    redacted: tuple[bool, ...],
) -> Reading:
    """A reading that follows a schedule."""
    return Reading(
        unit,
        labels,
        context,
        max_tokens,
        text=text,
        versions=2,
        version_of=Scheduled(redacted),
        redacted=frozenset({REDACTED}),
        whole=MARK,
    )
