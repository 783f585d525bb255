"""The votes that fit a budget: their noise and, by a target for the noise on a mean vote, the queries or the clip.

Noise grows with the number of queries, and with the radius that centred votes are clipped to.

Every figure here is public: it comes from the budget and from settings, never from the votes.

>>> most_queries(lambda queries: 0.01 * queries**0.5, target=0.05, most=1000)
25
"""

import math
from collections.abc import Callable
from functools import cache

from dp_accounting.dp_event import DpEvent

from rayprivacy.core.errors import ConfigError
from rayprivacy.ledger.least_noise import gaussian_noise, laplace_noise
from rayprivacy.methods.seqpate.recipe import SeqPateRecipe
from rayprivacy.release.ballots import CLIP_RANGE
from rayprivacy.release.vote import SCALE, VoteMechanism

AUTO_MOST = 100_000
WIDEST_CLIP = 0.7071  # from sqrt(1/2) on, a wider clip adds no noise, and clips next to nothing


def fitting_votes(recipe: SeqPateRecipe, beside: DpEvent | None = None) -> VoteMechanism:
    """All queries of a run as one mechanism, with the least noise that fits its budget beside what else is charged.

    Raises:
        ConfigError: no noise is enough, or not one query keeps votes.noise_target.
    """
    votes, privacy = recipe.votes, recipe.privacy
    least = laplace_noise if votes.noise == "laplace" else gaussian_noise
    sigma = cache(lambda queries: least(queries, privacy.budget, privacy.composition, beside))

    def mechanism(queries: int, clip: float | None) -> VoteMechanism:
        return VoteMechanism(
            queries=queries,
            candidates=votes.top_k,
            teachers=recipe.teachers.count,
            sigma=sigma(queries),
            unit=privacy.unit,
            shards=recipe.corpus.max_shards_per_phrase or 1,
            ballot=votes.ballot,
            clip=clip,
            noise=votes.noise,
        )

    def clipped(queries: int) -> VoteMechanism:
        radius = votes.radius
        if radius == "auto":
            radius = widest_clip(lambda wide: noise_on_mean(mechanism(queries, wide)), votes.noise_target)
        return mechanism(queries, radius)

    if votes.queries != "auto":
        return clipped(votes.queries)
    return clipped(most_queries(lambda queries: noise_on_mean(clipped(queries)), votes.noise_target, AUTO_MOST))


def noise_on_mean(mechanism: VoteMechanism) -> float:
    """Standard deviation of the noise on one entry of the mean vote, as a probability."""
    return mechanism.noise_std_grid / (SCALE * mechanism.teachers)


def most_queries(noise_of: Callable[[int], float], target: float, most: int) -> int:
    """The largest number of queries, from 1 to `most`, whose noise is within the target.

    Args:
        noise_of: noise of the mean vote (`noise_on_mean`) at a number of queries; it must not fall with the number.
        target: most noise on one entry of the mean vote, as a probability.
        most: number of queries that there is a use for.

    Raises:
        ConfigError: the target is not positive, `most` is no positive whole number, or even one query is too noisy.
    """
    if not target > 0:
        raise ConfigError(f"the target for the noise on the mean vote is {target}: give a positive number, e.g. 0.01.")
    if type(most) is not int or most < 1:
        raise ConfigError(f"the most queries are {most!r}: give a whole number of at least 1.")
    if (reached := noise_of(1)) > target:
        raise ConfigError(
            f"the target for the noise on the mean vote is {target:g} and one query alone has {reached:.3g}:"
            " take more teachers, a larger epsilon, a smaller clip or a larger target."
        )
    low, high = 1, most + 1  # low is within the target, high is not, or is one too many
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if noise_of(middle) <= target else (low, middle)
    return low


def widest_clip(noise_of: Callable[[float], float], target: float) -> float:
    """The widest radius for centred votes, of four digits, whose noise is within the target.

    Args:
        noise_of: noise of the mean vote (`noise_on_mean`) at a radius; it grows in proportion up to WIDEST_CLIP.
        target: most noise on one entry of the mean vote, as a probability.

    >>> widest_clip(lambda radius: 0.07 * radius, target=0.014)
    0.2

    Returns:
        A radius from CLIP_RANGE's least to WIDEST_CLIP; the least one even where its noise exceeds the target.

    Raises:
        ConfigError: the target is not positive.
    """
    if not target > 0:
        raise ConfigError(f"the target for the noise on the mean vote is {target}: give a positive number, e.g. 0.01.")
    radius = target / noise_of(0.5) / 2
    return min(max(math.floor(radius * 1e4 + 1e-6) / 1e4, CLIP_RANGE[0]), WIDEST_CLIP)
