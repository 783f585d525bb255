"""How many queries a budget answers well enough: noise grows with their number, so a target for it fixes the number.

Every figure here is public: it comes from the budget and from settings, never from the votes.

>>> most_queries(lambda queries: 0.01 * queries**0.5, target=0.05, most=1000)
25
"""

from collections.abc import Callable

from rayprivacy.core.errors import ConfigError
from rayprivacy.release.vote import SCALE, VoteMechanism


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
