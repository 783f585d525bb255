"""Shadow models: halves of the users by key, and attacks that find what a plain loss hides."""

from pathlib import Path

import numpy as np
import pytest

from rayprivacy.auditing.membership import auc, plain
from rayprivacy.auditing.scoring import Read, Shadow, inside_of, shadow_scores
from rayprivacy.auditing.settings import AuditConfig
from rayprivacy.core.errors import ConfigError
from rayprivacy.core.keys import Key

KEY = Key.for_tests()
USERS = [f"user-{number}" for number in range(1000)]


def _shadows(count: int, key: Key = KEY) -> list[Shadow]:
    return [Shadow(number, Path("model"), key) for number in range(count)]


def test_each_user_is_in_half_of_the_shadows() -> None:
    inside = inside_of(_shadows(8), USERS)
    assert inside.shape == (8, len(USERS))
    assert (inside.sum(0) == 4).all()
    assert (abs(inside.mean(1) - 0.5) < 0.06).all()


def test_pairs_split_the_users_in_their_own_way_and_by_the_key() -> None:
    inside = inside_of(_shadows(4), USERS)
    assert (inside[0] != inside[1]).all()
    assert 0.4 < (inside[0] != inside[2]).mean() < 0.6
    other = inside_of(_shadows(4, Key(b"x" * 32)), USERS)
    assert 0.4 < (inside[0] != other[0]).mean() < 0.6


def _read(losses: np.ndarray) -> Read:
    return Read(losses, np.empty((len(losses), 0)))


def _world(count: int, drop: float) -> tuple[dict[str, float], float]:
    """AUC of each attack, and of the plain loss, where members' losses are lower by `drop` and users differ by more."""
    draw = np.random.default_rng(5)
    inside = inside_of(_shadows(count), USERS)
    public = draw.normal(4.0, 1.0, len(USERS))
    member = np.arange(len(USERS)) < 500

    def losses(within: np.ndarray) -> np.ndarray:
        return public - drop * within + draw.normal(0, 0.1, within.shape)

    own = losses(member)
    scores = shadow_scores(_read(own), public, list(map(_read, losses(inside))), inside)
    assert all(each.shape == own.shape for each in scores.values())
    by_loss = auc(plain(own)[member], plain(own)[~member])
    return {name: auc(each[member], each[~member]) for name, each in scores.items()}, by_loss


def test_attacks_with_shadows_find_members_that_the_loss_hides() -> None:
    found, by_loss = _world(16, drop=0.2)
    assert by_loss < 0.6
    assert set(found) == {"LiRA", "LiRA, offline", "shadow attack"}
    assert all(area > 0.85 for area in found.values()), found


def test_they_find_nothing_where_there_is_nothing() -> None:
    found, _ = _world(16, drop=0.0)
    assert all(0.42 < area < 0.58 for area in found.values()), found


@pytest.mark.parametrize("shadows", [1, 2, 3, 5])
def test_a_number_of_shadows_that_does_not_split_is_refused(shadows: int) -> None:
    with pytest.raises(ConfigError, match=f"'shadows' is {shadows}: give an even number, at least 4"):
        AuditConfig.parse({"shadows": shadows})
    assert [AuditConfig.parse({"shadows": taken}).shadows for taken in (0, 4, 6)] == [0, 4, 6]
