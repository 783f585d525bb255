"""Micro-batches on the way from coins to clipped sums: who is in which, and how far one user moves what comes out."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from engine_cases import some
from scipy import stats
from torch import nn

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.keys import Key
from rayprivacy.dpsgd.batches import Document
from rayprivacy.dpsgd.clipping import Clipping, MicroBatchGradients, mean_losses, micro_batches
from rayprivacy.dpsgd.sampler import PoissonSampler, Unit, unit_tag

KEY, PARTS, OF_PART, NORM, WIDTH = Key.for_tests(), 4, 3, 0.7, 8
POWERS = range(-9, 10)


def _unit(user, tokens=(), more=()):
    """A user of one text that begins with its number, or of the given tokens; its part depends on its number."""
    texts = [np.array([0, *(tokens or (user,))], dtype=np.int32), np.array([0, *more], dtype=np.int32)]
    documents = tuple(Document(text, 1) for text in texts[: 1 + bool(more)])
    return Unit(unit_tag(KEY, "user", user), documents, part=7 * user % PARTS)


def _groups(held, step=0, q=1.0):
    return PoissonSampler(KEY, "run", q, held, 2).micro_batches(step, OF_PART)


def _members(held, step=0, q=1.0):
    return [sorted(int(documents[0].ids[1]) for documents in group) for group in _groups(held, step, q)]


USERS = [_unit(user) for user in range(400)]


@pytest.mark.parametrize("q", [1.0, 0.1, 0.002])
def test_an_inserted_user_moves_nobody_else(q):
    for step in range(3):
        for position in (0, 200, 399):
            less = [unit for at, unit in enumerate(USERS) if at != position]
            with_it = [[user for user in group if user != position] for group in _members(USERS, step, q)]
            assert [group for group in with_it if group] == _members(less, step, q)
    assert _members([]) == []


@pytest.mark.parametrize("workers", [2, 4])
def test_the_assignment_is_the_same_for_any_number_of_workers(workers):
    """Each worker reads every so-many-th part file, as `worker.build` does."""
    alone = {tuple(group) for group in _members(USERS, 1, 0.2)}
    ranks = [[unit for unit in USERS if unit.part % workers == rank] for rank in range(workers)]
    together = [tuple(group) for held in ranks for group in _members(held, 1, 0.2)]
    assert len(together) == len(alone)
    assert set(together) == alone


def test_users_are_spread_evenly_over_the_micro_batches_of_their_part_and_anew_at_every_step():
    first, second = _members(USERS, 0), _members(USERS, 1)
    assert len(first) == PARTS * OF_PART
    assert first != second
    for groups in (first, second):
        sizes = [len(group) for group in groups]
        assert sum(sizes) == len(USERS)
        assert stats.chisquare(sizes).pvalue > 1e-4
        assert all(len({7 * user % PARTS for user in group}) == 1 for group in groups)
    taken_part = sorted(user for group in _members(USERS, 2, 0.3) for user in group)
    sampled = PoissonSampler(KEY, "run", 0.3, USERS, 2).sample(2)
    assert taken_part == [int(documents[0].ids[1]) for documents in sampled]


class _Linear(nn.Module):
    """The loss of a token is the product of its public vector and the weights, so that users choose their gradients.

    Tokens 1 to 19 are ordinary, and their gradients have about the clipping norm; the rest are 10^-9 to 10^9 times a
    direction or its opposite, NaN and infinite.
    """

    def __init__(self):
        super().__init__()
        random = torch.Generator().manual_seed(5)
        table = [torch.randn(20, WIDTH, generator=random) * NORM / math.sqrt(WIDTH)]
        direction = torch.randn(WIDTH, generator=random)
        table += [sign * 10.0**power * direction[None] for power in POWERS for sign in (1, -1)]
        table += [torch.full((1, WIDTH), math.nan), torch.full((1, WIDTH), math.inf)]
        self.table = torch.cat(table)
        self.first, self.second = nn.Parameter(torch.zeros(WIDTH // 2)), nn.Parameter(torch.zeros(WIDTH // 2))
        self.unused = nn.Parameter(torch.zeros(2))

    def losses(self, batch):
        return (self.table[batch.ids] @ torch.cat([self.first, self.second]) * batch.weights).sum(1)


MODEL = _Linear()
NAN = 20 + 2 * len(POWERS)
TAME = [_unit(user, (1 + user % 7, 1 + user % 3)) for user in range(12)]


def _aggregate(held, kind="flat", workers=1, tokens=64):
    """The sum over the micro-batches of all workers, divided by N; coins all fall."""
    clipped = MicroBatchGradients(MODEL, Clipping(NORM, kind))
    total = torch.zeros(WIDTH, dtype=torch.float64)
    for rank in range(workers):
        mine = [unit for unit in held if unit.part % workers == rank]
        for batch in micro_batches(_groups(mine), tokens, pad=0):
            lazy = clipped(lambda batch=batch: mean_losses(MODEL, batch, _Linear.losses), 1)
            first, second, unused = (lazy[parameter]().double() for parameter in clipped.parameters)
            assert not unused.any()
            total += torch.cat([first, second])
    return total / (PARTS * OF_PART)


WAYS = list(product(("flat", "per_layer", "automatic"), (1, 2)))


@pytest.mark.parametrize(("kind", "workers"), some(WAYS, ("flat", 2), ("per_layer", 1), ("automatic", 2)))
def test_one_more_user_moves_the_aggregate_by_at_most_2c_over_n(kind, workers):
    bound, without = 2 * NORM / (PARTS * OF_PART), _aggregate(TAME, kind, workers)
    moves = []
    for position in (0, len(TAME)):
        for token in range(1, len(MODEL.table)):
            for more in ((), (token, 1), (1,)):
                user = _unit(100, (token, token), more)
                moved = _aggregate([*TAME[:position], user, *TAME[position:]], kind, workers) - without
                moves.append(moved.norm().item())
    assert max(moves) <= bound * (1 + 1e-6)  # NaN would fail here
    assert max(moves) > 0.5 * bound


def test_sums_of_many_micro_batches_are_in_float64():
    """In float32 one more of a thousand would change how the others are rounded, by 1e-8 of their sum and more."""
    clipped = MicroBatchGradients(MODEL, Clipping(NORM))
    (batch, *_) = micro_batches(_groups(TAME), 64, pad=0)
    for live in (True, False):
        lazy = clipped(lambda: mean_losses(MODEL, batch, _Linear.losses), 1, live)
        assert {lazy[parameter]().dtype for parameter in clipped.parameters} == {torch.float64}


def test_a_user_who_reverses_a_mean_reaches_the_bound():
    other = next(user for user in range(1, 500) if len(_members([_unit(0), _unit(user)])) == 1)  # of one micro-batch
    ten, against = 20 + 2 * POWERS.index(1), 21 + 2 * POWERS.index(9)
    alone = [_unit(0, (ten,))]
    moved = _aggregate([*alone, _unit(other, (against,))]) - _aggregate(alone)
    assert 1.99 * NORM <= moved.norm() * PARTS * OF_PART <= 2 * NORM * (1 + 1e-6)


def test_a_mean_that_is_not_finite_gives_nothing_and_leaves_the_others_alone():
    found = _aggregate([*TAME, _unit(100, (NAN,))])
    assert found.isfinite().all()
    same = next(group for group in _members([*USERS[:12], _unit(100)]) if 100 in group)
    assert torch.allclose(found, _aggregate([unit for user, unit in enumerate(TAME) if user not in same]))


@pytest.mark.parametrize("tokens", [8, 16, 512])
def test_a_micro_batch_that_does_not_fit_into_memory_is_clipped_once(tokens):
    """To the length of the whole, not of a piece: `automatic` scales all, so that a wrong length shows."""
    whole = _aggregate(TAME, "automatic")
    assert torch.allclose(_aggregate(TAME, "automatic", tokens=tokens), whole, rtol=0, atol=1e-7)


def test_a_model_that_remembers_what_it_read_is_refused():
    with pytest.raises(ConfigError, match="BatchNorm1d, which keeps statistics"):
        MicroBatchGradients(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), Clipping(1.0))
