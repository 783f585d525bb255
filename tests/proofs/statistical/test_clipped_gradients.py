"""Coupled sensitivity: one more user moves the clipped sum by at most C, whatever that user's text does to gradients.

A user chooses tokens, not the model: some have embeddings that are 1e-9 to 1e9 long, or NaN.
"""

import copy
import math
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rayprivacy.dpsgd.clipping import BookKeeping, Clipping

VOCABULARY, TOKENS, WIDTH, NORM = 40, 6, 8, 0.7
ROUNDING = 1e-5  # of the sum of the others, by which one sum can differ from another
NAN_TOKEN = VOCABULARY - 1
every_kind = pytest.mark.parametrize("kind", ["flat", "per_layer", "automatic"])


class _Model(nn.Module):
    """Embedding, a norm, two layers, and a head tied to the embedding; tokens 20 and up have extreme embeddings."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.layers = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.Tanh(), nn.Linear(2 * WIDTH, WIDTH))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.words.weight
        with torch.no_grad():
            self.words.weight[20:] *= torch.logspace(-9, 9, VOCABULARY - 20)[:, None]

    def forward(self, ids):
        states = self.words(ids)
        states = states + self.layers(self.norm(states))
        return self.head(states)


@dataclass
class _Users:
    """Ids [users, tokens] and what each user's losses are multiplied by [users]."""

    ids: Tensor
    factors: Tensor

    def and_one(self, ids, factor):
        return _Users(torch.cat([self.ids, ids[None]]), torch.cat([self.factors, torch.tensor([factor])]))

    def losses(self, model, low):
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            logits = model(self.ids[:, :-1]).float()
        each = F.cross_entropy(logits.flatten(0, 1), self.ids[:, 1:].flatten(), reduction="none")
        return each.view(len(self.ids), -1).mean(1) * self.factors


def _sum(model, users, kind, low=False):
    """All clipped sums as one float64 vector."""
    keeping = BookKeeping(model, Clipping(NORM, kind, low))
    lazy = keeping(lambda: users.losses(model, low), 1)
    return torch.cat([value().flatten() for value in lazy.values()]).double()


def _tame(users, seed=2):
    random = torch.Generator().manual_seed(seed)
    return _Users(torch.randint(0, 20, (users, TOKENS), generator=random), torch.ones(users))


def _adversaries(base):
    own = base.ids[0]
    extreme = [torch.full((TOKENS,), token) for token in range(20, VOCABULARY)]
    mixed = [torch.stack([own, row], 1).flatten()[:TOKENS] for row in extreme]
    factors = [sign * 10.0**power for power in range(-9, 10, 3) for sign in (1, -1)]
    factors += [math.nan, math.inf, -math.inf, 1e38]
    return [(row, 1.0) for row in extreme + mixed] + [(own, factor) for factor in factors]


@pytest.fixture(scope="module")
def model():
    return _Model()


@every_kind
@pytest.mark.parametrize("low", [False, True], ids=["float32", "low precision"])
def test_one_more_user_moves_the_sum_by_at_most_the_norm(model, kind, low):
    base = _tame(4)
    without = _sum(model, base, kind, low)
    assert without.isfinite().all()
    moves = [(_sum(model, base.and_one(*one), kind, low) - without).norm().item() for one in _adversaries(base)]
    assert max(moves) <= NORM * (1 + (0 if low else ROUNDING))  # NaN would fail here
    assert low or max(moves) >= 0.9 * NORM  # the bound is the right one, not a wide one


@every_kind
def test_a_user_who_cancels_another_moves_the_sum_as_far(model, kind):
    base = _tame(3)
    without = _sum(model, base, kind)
    both = _sum(model, base.and_one(base.ids[0], -1.0), kind)
    alone = _sum(model, _Users(base.ids[1:], base.factors[1:]), kind)
    torch.testing.assert_close(both, alone, rtol=0, atol=1e-6)
    assert (both - without).norm() <= NORM * (1 + ROUNDING)


@every_kind
def test_no_user_alone_is_longer_than_the_norm(model, kind):
    """Many users, so that for some of them the uses of the tied weight have much in common."""
    for ids in _tame(60, seed=3).ids:
        assert _sum(model, _Users(ids[None], torch.full((1,), 100.0)), kind).norm() <= NORM


@every_kind
def test_a_user_of_nan_moves_nothing(model, kind):
    base = _tame(3)
    without = _sum(model, base, kind)
    torch.testing.assert_close(_sum(model, base.and_one(base.ids[0], math.nan), kind), without, rtol=0, atol=1e-6)
    broken = copy.deepcopy(model)
    with torch.no_grad():
        broken.words.weight[NAN_TOKEN] = math.nan
    # The head is tied, so every user's logits are NaN now: nobody contributes, and nothing is NaN.
    assert not _sum(broken, base.and_one(base.ids[0], 1.0), kind).any()
