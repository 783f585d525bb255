"""The mechanism of a recipe: its public vocabulary, the epsilon of a word, and the bound that is charged."""

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rayprivacy.accounting.events import document_epsilon
from rayprivacy.core.errors import ConfigError
from rayprivacy.methods.santext.recipe import SanTextRecipe
from rayprivacy.runs.calibration import is_positive, kept, kept_values
from rayprivacy.sanitize.labels import Labels
from rayprivacy.sanitize.mechanism import Mechanism, RandomizedResponse, SanText, randomized_response_epsilon
from rayprivacy.sanitize.settings import SanitizeConfig
from rayprivacy.sanitize.table import Table, epsilon_for_bound, epsilon_for_keep
from rayprivacy.sanitize.vocabulary import Vocabulary, load_base, load_file, load_glove

_COIN = 2**32
_SLACK = 1e-12  # of the budget: words and labels together are not above it by a rounding


@dataclass(frozen=True)
class Planned:
    """A mechanism that replaces the words of a vocabulary, and what the public table says of it.

    A word which is drawn for comes out as itself with the chance `keep`, in the median over the words. The bound of a
    token is reached between the two `worst` words; randomised response has none.
    """

    vocabulary: Vocabulary
    mechanism: Mechanism
    keep: float
    worst: tuple[str, str] | None

    @property
    def competitor(self) -> float:
        """The epsilon of randomised response over these words that keeps the same share of them."""
        return randomized_response_epsilon(self.keep, len(self.vocabulary))


def vocabulary_of(recipe: SanTextRecipe) -> Vocabulary:
    """The public vocabulary of a recipe."""
    config = recipe.sanitize
    if config.vectors_file is not None:
        return load_file(Path(config.vectors_file), config.words, config.length == "unit")
    if config.vectors == "base":
        return load_base(recipe.model.base, config.words, config.length == "unit")
    return load_glove(config.words, config.length == "unit")


def planned(recipe: SanTextRecipe) -> Planned:
    """The mechanism of a recipe, from public values alone; what takes long to compute is kept for the next time."""
    vocabulary, config = vocabulary_of(recipe), recipe.sanitize
    size = len(vocabulary)
    first = size - max(2, round(config.plus.sensitive * size)) if config.plus else 0
    _check_keep(config.keep, size - first)
    if config.mechanism == "randomized_response":
        wanted = partial(_response_epsilon, recipe, size)
        epsilon = config.epsilon or kept(wanted, _priced_by_the_plan, "randomized response", size, *_asked(recipe))
        response = RandomizedResponse(size, epsilon)
        return Planned(vocabulary, response, response.keep_rate, None)
    cap = config.cap or math.inf
    replaced = max(1, round(config.plus.p * _COIN)) if config.plus else None
    cost = SanText(Table(vocabulary, 1e-9, first, cap), replaced).keep_cost

    def compute() -> dict[str, Any]:
        if config.keep is not None:
            epsilon = epsilon_for_keep(vocabulary, config.keep, first, cap)
        elif config.epsilon is not None:
            epsilon = config.epsilon
        else:
            epsilon = epsilon_for_bound(vocabulary, _for_each(recipe) - cost, first, cap)
        table = Table(vocabulary, epsilon, first, cap)
        return {"epsilon": epsilon, "worst": table.worst_pair, "keep": float(np.median(table.keep_rates))}

    asked = config.keep, config.epsilon, None if config.keep or config.epsilon else _for_each(recipe) - cost
    spelled = (*vocabulary.words, "a word that is not on the list")

    def made(found: dict[str, Any]) -> Planned:
        bound, one, other = found["worst"]
        if min(one, other) < 0 or not all(map(is_positive, (found["epsilon"], found["keep"], bound))):
            raise ValueError
        table = Table(vocabulary, found["epsilon"], first, cap, (bound, one, other))
        return Planned(vocabulary, SanText(table, replaced), found["keep"], (spelled[one], spelled[other]))

    inputs = [vocabulary.digest, first, config.cap, *asked]
    return kept_values(compute, made, _priced_by_the_plan, "santext", *inputs)


def confirmed(plan: Planned) -> Planned:
    """The same with the bound computed anew: what was kept on disk is not trusted with a claim."""
    mechanism = plan.mechanism
    if not isinstance(mechanism, SanText):
        return plan
    table = mechanism.table
    fresh = SanText(Table(table.vocabulary, table.epsilon, table.first, table.cap), mechanism.replaced)
    if fresh.token_epsilon > mechanism.token_epsilon:
        raise ConfigError(
            f"the bound of a token is {fresh.token_epsilon:.10g}, and {mechanism.token_epsilon:.10g} was kept: finish"
            " the run with the versions of numpy and scipy that it began with, or delete the cache"
            " (~/.cache/rayprivacy/noise) and choose another --out."
        )
    return Planned(plan.vocabulary, fresh, plan.keep, plan.worst)


def _priced_by_the_plan(_: object) -> bool:
    """The plan computes what all words cost, and refuses more than the budget."""
    return True


def _response_epsilon(recipe: SanTextRecipe, size: int) -> float:
    return _wanted(recipe.sanitize, size) or math.nextafter(_for_each(recipe), 0)


def _asked(recipe: SanTextRecipe) -> tuple[float | None, float | None]:
    """The share of words to keep, or else what is left for each word."""
    keep = recipe.sanitize.keep
    return keep, None if keep else _for_each(recipe)


def _for_each(recipe: SanTextRecipe) -> float:
    return _left_for_words(recipe) / (recipe.records * recipe.sanitize.max_tokens)


def _left_for_words(recipe: SanTextRecipe) -> float:
    epsilon, config = recipe.privacy.epsilon, recipe.sanitize.labels
    event = Labels(config, recipe.corpus.labels).event(recipe.records)
    if event is None:
        return epsilon
    cost = document_epsilon(event)
    left = epsilon * (1 - _SLACK) - cost
    if left <= 0:
        raise ConfigError(
            f"sanitize.labels.epsilon is {config.epsilon:g}, so that the labels of a {recipe.privacy.unit} cost"
            f" {cost:.6g}, and privacy.epsilon, {epsilon:g}, leaves nothing for words: lower sanitize.labels.epsilon or"
            " corpus.max_records_per_user, or raise privacy.epsilon."
        )
    return left


def _check_keep(keep: float | None, outcomes: int) -> None:
    if keep is not None and keep <= 1 / outcomes:
        raise ConfigError(
            f"sanitize.keep is {keep:g}, and a draw that knows nothing of the word keeps {1 / outcomes:.3g} of the"
            f" {outcomes} words that can come out: raise sanitize.keep, sanitize.words or sanitize.plus.sensitive."
        )


def _wanted(config: SanitizeConfig, size: int) -> float | None:
    """Rounded: two machines may compute a logarithm apart in the last bit."""
    return None if config.keep is None else max(round(randomized_response_epsilon(config.keep, size), 6), 1e-6)
