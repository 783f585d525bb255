"""Leaks between domains: how often a model that is prompted with one domain writes what is sensitive for another one.

Source: Domain Private Transformers (2023), sections on the attack and E.1. A *judge* says for which domains a text is
sensitive. A text that was written behind a prompt of domain i *leaks* when a judge names a domain j other than i. The
paper's judge is the policy that redacted the training text, which cannot find what it did not hide: here rates are
given for several judges, and those that did not redact are the ones to read.

A *score* is the ratio of two models' surprise at the text, (Carlini et al., 2021, with the reference of the paper: a
model of the prompt's domain alone),

    score = P_ref / P_target,   P = perplexity(prompt + text) / perplexity(prompt),

so that a high one is text that the target model finds natural and the reference does not. In the authors' code scores
only order the examples; `top_share` is the attack that the paper describes: the leak rate of the highest scores.

All of this is measured on samples, and bounds nothing: it is a report, never a guarantee.
"""

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from rayprivacy.auditing.bounds import clopper_pearson
from rayprivacy.core.errors import ConfigError
from rayprivacy.policies.classifier import ClassifierPolicy
from rayprivacy.policies.policy import Policy

Judge = Callable[[str], Set[str]]
Array = npt.NDArray[np.float64]
ALL = "all"  # prompts of every domain together


@dataclass(frozen=True)
class Sampled:
    """A text that a model wrote.

    Attributes:
        domain: of its prompt.
        text: what came after it.
    """

    domain: str
    text: str


@dataclass(frozen=True)
class Rate:
    """How many texts leak, with an interval that holds the true rate with 95% (Clopper and Pearson, 1934).

    Attributes:
        leaks: texts that do.
        texts: all that are not empty.
        low, high: the interval.
    """

    leaks: int
    texts: int
    low: float
    high: float

    @property
    def share(self) -> float:
        """The share of texts that leak."""
        return self.leaks / self.texts


def leaks(texts: Sequence[Sampled], judge: Judge) -> list[bool]:
    """Whether each text is sensitive for a domain that is not its prompt's."""
    return [bool(judge(each.text) - {each.domain}) for each in texts]


def leak_rates(texts: Sequence[Sampled], judges: Mapping[str, Judge]) -> dict[str, dict[str, Rate]]:
    """Leak rates by judge, and by domain of the prompt, beside that of all prompts together.

    Args:
        texts: what was written; empty ones are left out.
        judges: by name.

    Raises:
        ConfigError: all texts are empty.
    """
    written = [each for each in texts if each.text.strip()]
    if not written:
        raise ConfigError("all texts are empty, and a leak rate of none is not defined: sample longer texts.")
    found: dict[str, dict[str, Rate]] = {}
    for name, judge in judges.items():
        flags = leaks(written, judge)
        groups = {ALL: flags}
        for domain in dict.fromkeys(each.domain for each in written):
            groups[domain] = [flag for flag, each in zip(flags, written, strict=True) if each.domain == domain]
        found[name] = {domain: rate_of(sum(own), len(own)) for domain, own in groups.items()}
    return found


def rate_of(leaking: int, texts: int) -> Rate:
    """A rate with its interval."""
    return Rate(leaking, texts, *clopper_pearson(leaking, texts))


def difference(one: Rate, other: Rate, confidence: float = 0.95) -> tuple[float, float]:
    """An interval of the difference of two independent rates (Newcombe, 1998, method 10)."""
    (low, high), (least, most) = (_wilson(each, confidence) for each in (one, other))
    gap = one.share - other.share
    return (
        gap - math.hypot(one.share - low, most - other.share),
        gap + math.hypot(high - one.share, other.share - least),
    )


def _wilson(rate: Rate, confidence: float) -> tuple[float, float]:
    found = stats.binomtest(rate.leaks, rate.texts).proportion_ci(confidence, "wilson")
    return float(found.low), float(found.high)


def likelihood_ratios(target: tuple[Array, Array], reference: tuple[Array, Array]) -> Array:
    """The scores of texts, float64 [texts].

    Args:
        target: losses per token of the prompts, and of the prompts with their texts, in nats, under the model.
        reference: the same under the model of one domain.
    """
    (prompt, whole), (its_prompt, its_whole) = target, reference
    return np.asarray(np.exp((its_whole - its_prompt) - (whole - prompt)))


def top_share(flags: Sequence[bool], scores: Array, share: float) -> Rate:
    """The leak rate of the texts with the highest scores.

    Args:
        flags: whether each text leaks.
        scores: of each.
        share: of the texts, at least one of them.
    """
    most = max(1, round(share * len(flags)))
    best = np.argsort(-scores, kind="stable")[:most]
    return rate_of(sum(flags[at] for at in best), most)


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
