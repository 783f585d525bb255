"""How much noise the small votes beside a release take: shares of topics, of lengths and of control codes.

A vote of multiplier 5 costs epsilon 0.83 at delta 1e-6: little of a budget of 3, and most of a budget of 1. So its
noise grows as the budget falls, and it takes at most a tenth of mu squared at any epsilon up to 3. How precise its
shares are depends on the number of users, which is private: docs/frontier.md has what it costs a thousand of them.
"""

NOISE = 5.0
_PLENTY = 3.0  # the budget below which it grows


def small_vote_noise(epsilon: float) -> float:
    """The noise multiplier of a small vote in a budget of this epsilon.

    >>> small_vote_noise(8), small_vote_noise(3), small_vote_noise(0.5)
    (5.0, 5.0, 30.0)
    """
    return round(NOISE * max(1.0, _PLENTY / epsilon), 4)
