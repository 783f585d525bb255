"""What a recipe of SeqPATE will charge: the mechanism of each round, and its noise from the budget."""

from functools import lru_cache

from dp_accounting.dp_event import DpEvent

from rayprivacy.corpus.phrases import load_phrases
from rayprivacy.ledger.filters.noise import gaussian_noise, laplace_noise
from rayprivacy.ledger.store import Ledger
from rayprivacy.methods.account import open_account
from rayprivacy.methods.comparison import comparison_stages
from rayprivacy.methods.outline import Outline
from rayprivacy.methods.seqpate_recipe import SeqPateRecipe
from rayprivacy.release.planning import most_queries, noise_on_mean, widest_clip
from rayprivacy.release.vote import VoteMechanism

AUTO_MOST = 100_000


@lru_cache(maxsize=16)
def planned_mechanism(recipe: SeqPateRecipe) -> VoteMechanism:
    """All queries of the run as one mechanism: its unit and bound on shards, and the least noise that fits its budget.

    Raises:
        ConfigError: no noise is enough, or not one query keeps votes.noise_target.
    """
    queries = planned_queries(recipe)
    return _mechanism(recipe, queries, planned_clip(recipe, queries))


def round_mechanism(recipe: SeqPateRecipe, queries: int) -> VoteMechanism:
    """The mechanism of one round: so many of the queries, at the noise that all of them need together."""
    plan = planned_mechanism(recipe)
    return VoteMechanism(**{**vars(plan), "queries": queries})


def planned_queries(recipe: SeqPateRecipe) -> int:
    """How many queries the run pays for; with `auto`, the most that keep the target on noise."""
    if recipe.votes.queries != "auto":
        return recipe.votes.queries

    def noise(queries: int) -> float:
        return noise_on_mean(_mechanism(recipe, queries, planned_clip(recipe, queries)))

    return most_queries(noise, recipe.votes.noise_target, AUTO_MOST)


def planned_clip(recipe: SeqPateRecipe, queries: int) -> float | None:
    """The radius of centred votes; with `auto`, the widest that keeps the target on noise. None: votes are plain."""
    if recipe.votes.radius != "auto":
        return recipe.votes.radius
    return widest_clip(lambda radius: noise_on_mean(_mechanism(recipe, queries, radius)), recipe.votes.noise_target)


def queries_of_round(recipe: SeqPateRecipe, number: int) -> int:
    """The queries of round `number` (from 0): equal shares, and the first rounds take what is left over."""
    each, left = divmod(planned_queries(recipe), recipe.votes.rounds)
    return each + (number < left)


def _mechanism(recipe: SeqPateRecipe, queries: int, clip: float | None) -> VoteMechanism:
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


def planned_events(recipe: SeqPateRecipe) -> list[DpEvent]:
    """The charges of a run, round by round."""
    return [round_mechanism(recipe, queries_of_round(recipe, number)).event for number in range(recipe.votes.rounds)]


def open_seqpate(recipe: SeqPateRecipe, expected_head: str | None = None) -> Ledger:
    """Open the ledger for a recipe, before any work.

    Raises:
        ConfigError: the secret phrases cannot be read, or could overlap.
        RayPrivacyError: as `open_account`.
    """
    if recipe.corpus.phrases:
        load_phrases(recipe.corpus.phrases)
    return open_account(recipe, planned_events(recipe), planned_mechanism(recipe).protection, expected_head)


def outline_seqpate(recipe: SeqPateRecipe) -> Outline:
    """Stages and cost of a recipe."""
    mechanism, privacy = planned_mechanism(recipe), recipe.privacy
    how = "plain" if mechanism.clip is None else f"centred and clipped to {mechanism.clip:g}"
    cost = f"epsilon {privacy.epsilon:g} at delta {privacy.delta:g}"
    return Outline(
        (
            ("pseudo-sentences, bases, queries", "public text", "free"),
            (f"{recipe.teachers.count} teachers on shards of {recipe.corpus.source}", "private text", "free"),
            (f"votes: {mechanism.queries} queries, {mechanism.candidates} candidates", "teachers", cost),
            ("student, synthetic text, report", "released votes", "free"),
            ("evaluation (internal)", "held-out private text", "not released"),
            *comparison_stages(recipe),
        ),
        f"noise multiplier {mechanism.sigma:.2f} per query; votes {how}, noise on a mean vote "
        f"{noise_on_mean(mechanism):.4f}; unit {privacy.unit}, account {privacy.account} of {privacy.ledger}; "
        "accountant: analytic Gaussian (GDP), relation: add-or-remove",
    )
