"""Judges of text: for which domains it is sensitive, by policies that know domains; for attacks alone."""

from collections.abc import Mapping
from dataclasses import dataclass

from rayprivacy.policies.classifier import ClassifierPolicy
from rayprivacy.policies.policy import Policy


@dataclass(frozen=True)
class ListJudge:
    """A text is sensitive for each domain whose own policy, such as its list of keywords, finds something in it.

    Attributes:
        policies: of each domain.
    """

    policies: Mapping[str, Policy]

    def __call__(self, text: str) -> set[str]:
        """The domains that a text is sensitive for."""
        return {domain for domain, policy in self.policies.items() if policy.spans({"text": text})}


@dataclass(frozen=True)
class ClassifierJudge:
    """A text is sensitive for each domain that some window of it surely is of.

    Attributes:
        policy: the classifier, its window and its threshold.
    """

    policy: ClassifierPolicy

    def __call__(self, text: str) -> set[str]:
        """The domains that a text is sensitive for."""
        return self.policy.domains(text)
