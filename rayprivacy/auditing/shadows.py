"""Shadow models: trained like the audited one, on halves of the users that are known; what stronger attacks learn from.

Shadows come in pairs, and a pair splits the users between them by a keyed coin. So each user is in half of the shadows
and out of the others. They differ from the audited model in one thing: it saw all training users, and each of them half
of all users, held-out ones among them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rayprivacy.auditing.membership import calibrated, likelihood_ratio, offline_ratio, shadow_attack
from rayprivacy.core.keys import Key

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
_OWN_VARIANCES_FROM = 64  # shadows; below it LiRA estimates one variance for all users


@dataclass(frozen=True)
class Shadow:
    """One shadow model: its number, the directory of its run, and the key that decides which users are in."""

    number: int
    root: Path
    key: Key = field(repr=False)

    def holds(self, user: str) -> bool:
        """Whether this user is among those it learns from."""
        return self.key.integer("shadow", self.number // 2, user) % 2 == self.number % 2


@dataclass(frozen=True)
class Read:
    """What a model says of users: losses, [users], and further features of Shokri's attack, [users, features]."""

    losses: Array
    certainty: Array


def shadow_scores(own: Read, public: Array, shadows: Sequence[Read], inside: Mask) -> dict[str, Array]:
    """Scores of LiRA and of Shokri's attack, by name; high means member. `inside` is bool [shadows, users]."""
    losses, shared = np.stack([each.losses for each in shadows]), len(shadows) < _OWN_VARIANCES_FROM
    features = np.concatenate([_features(each, public) for each in shadows])
    return {
        "LiRA": likelihood_ratio(own.losses, losses, inside, shared_variance=shared),
        "LiRA, offline": offline_ratio(own.losses, losses, inside, shared_variance=shared),
        "shadow attack": shadow_attack(features, inside.ravel(), _features(own, public)),
    }


def inside_of(shadows: Sequence[Shadow], users: Sequence[str]) -> Mask:
    """Which user is in which shadow, bool [shadows, users]."""
    return np.array([[shadow.holds(user) for user in users] for shadow in shadows])


def _features(read: Read, public: Array) -> Array:
    return np.column_stack([read.losses, calibrated(read.losses, public), public, read.certainty])
