"""What a recipe will charge: the mechanism of each round, its noise from the budget, and the account that pays."""

from functools import lru_cache
from pathlib import Path

from dp_accounting.dp_event import DpEvent

from rayprivacy.core.keys import load_key
from rayprivacy.core.units import NeighbouringRelation
from rayprivacy.corpus.phrases import load_phrases
from rayprivacy.ledger.filters.noise import gaussian_noise, laplace_noise
from rayprivacy.ledger.store import Ledger
from rayprivacy.methods.recipe import Recipe
from rayprivacy.release.planning import most_queries, noise_on_mean, widest_clip
from rayprivacy.release.vote import VoteMechanism

AUTO_MOST = 100_000


@lru_cache(maxsize=16)
def planned_mechanism(recipe: Recipe) -> VoteMechanism:
    """All queries of the run as one mechanism: its unit and bound on shards, and the least noise that fits its budget.

    Raises:
        ConfigError: no noise is enough, or not one query keeps votes.noise_target.
    """
    queries = planned_queries(recipe)
    return _mechanism(recipe, queries, planned_clip(recipe, queries))


def round_mechanism(recipe: Recipe, queries: int) -> VoteMechanism:
    """The mechanism of one round: so many of the queries, at the noise that all of them need together."""
    plan = planned_mechanism(recipe)
    return VoteMechanism(**{**vars(plan), "queries": queries})


def planned_queries(recipe: Recipe) -> int:
    """How many queries the run pays for; with `auto`, the most that keep the target on noise."""
    if recipe.votes.queries != "auto":
        return recipe.votes.queries

    def noise(queries: int) -> float:
        return noise_on_mean(_mechanism(recipe, queries, planned_clip(recipe, queries)))

    return most_queries(noise, recipe.votes.noise_target, AUTO_MOST)


def planned_clip(recipe: Recipe, queries: int) -> float | None:
    """The radius of centred votes; with `auto`, the widest that keeps the target on noise. None: votes are plain."""
    if recipe.votes.radius != "auto":
        return recipe.votes.radius
    return widest_clip(lambda radius: noise_on_mean(_mechanism(recipe, queries, radius)), recipe.votes.noise_target)


def queries_of_round(recipe: Recipe, number: int) -> int:
    """The queries of round `number` (from 0): equal shares, and the first rounds take what is left over."""
    each, left = divmod(planned_queries(recipe), recipe.votes.rounds)
    return each + (number < left)


def _mechanism(recipe: Recipe, queries: int, clip: float | None) -> VoteMechanism:
    votes, privacy = recipe.votes, recipe.privacy
    least = laplace_noise if votes.noise == "laplace" else gaussian_noise
    return VoteMechanism(
        queries=queries,
        candidates=votes.top_k,
        teachers=recipe.teachers.count,
        sigma=least(queries, privacy.budget, privacy.composition),
        unit=privacy.unit,
        shards=recipe.corpus.max_shards_per_phrase or 1,
        ballot=votes.ballot,
        clip=clip,
        noise=votes.noise,
    )


def planned_events(recipe: Recipe) -> list[DpEvent]:
    """The charges of a run, round by round."""
    return [round_mechanism(recipe, queries_of_round(recipe, number)).event for number in range(recipe.votes.rounds)]


def open_account(recipe: Recipe, expected_head: str | None = None) -> Ledger:
    """Open the ledger and refuse, before any work, what the account cannot pay.

    Raises:
        ConfigError: the secret phrases cannot be read, or could overlap.
        BudgetRefusedError: less is left than this run asks for, and it has not been charged before.
        LedgerError: the account protects another unit, relation or composition, or the ledger lacks the expected head.
    """
    if recipe.corpus.phrases:
        load_phrases(recipe.corpus.phrases)
    privacy, mechanism = recipe.privacy, planned_mechanism(recipe)
    key = load_key(Path(privacy.ledger_key)) if privacy.ledger_key else None
    ledger = Ledger.open(privacy.ledger, expected_head, key)
    ledger.ensure_account(
        privacy.account,
        privacy.unit,
        NeighbouringRelation.ADD_OR_REMOVE,
        privacy.budget,
        privacy.composition,
        corpus=privacy.corpus,
        plan=planned_events(recipe),
    )
    if not ledger.charges_of(privacy.account, recipe.release_id):
        ledger.check(privacy.account, mechanism.event, mechanism.protection)
    return ledger
