"""The student follows the votes, and noise in the votes does not bend its gradient."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from rayprivacy.methods.seqpate.recipe import StudentConfig
from rayprivacy.methods.seqpate.students import adapted_model, distill, fit_next_token
from rayprivacy.models.adapters import Basis, HeadAdapter
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.features import Features, Queries
from rayprivacy.release.votes import SCALE, VoteMechanism

CANDIDATES = 6


@dataclass(frozen=True)
class World:
    """What a student learns from: queries, votes that a known adapter would give, and public text."""

    queries: Queries
    target: HeadAdapter
    features: Features
    head: torch.Tensor

    def zeros(self, rank_in: int = 16, rank_out: int = 16) -> HeadAdapter:
        return HeadAdapter.zeros(self.target.basis, rank_in, rank_out)

    def answers(self, adapter: HeadAdapter, queries: Queries | None = None) -> torch.Tensor:
        """Distributions over the candidates."""
        queries = queries or self.queries
        logits = torch.einsum("qw,qkw->qk", adapter(queries.hidden), self.head[queries.candidates])
        return torch.softmax(logits.masked_fill(~queries.allowed, -torch.inf), -1)

    @property
    def votes(self) -> torch.Tensor:
        return self.answers(self.target)

    def distilled(self, start: HeadAdapter, votes: torch.Tensor, **settings: Any) -> HeadAdapter:
        return distill(start, self.queries, votes, self.features, self.head, StudentConfig(**settings))

    def gradient(self, votes: torch.Tensor, start: HeadAdapter) -> torch.Tensor:
        """The gradient `distill` follows: one step of plain gradient descent of size one."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.optim, "Adam", torch.optim.SGD)
            return start.matrix - self.distilled(start, votes.float(), steps=1, batch=256, learning_rate=1.0).matrix


@pytest.fixture(scope="module")
def world(tiny_basis: Basis, tiny_features: Features, tiny_backbone: Backbone) -> World:
    target = HeadAdapter(tiny_basis, torch.randn(16, 16, generator=torch.Generator().manual_seed(8)))
    draw = torch.Generator().manual_seed(3)
    hidden = tiny_features.hidden[:60].float()
    candidates = torch.stack([torch.randperm(400, generator=draw)[:CANDIDATES] for _ in range(60)])
    allowed = torch.rand(60, CANDIDATES, generator=draw) < 0.8
    allowed[:, 0] = True
    queries = Queries(hidden, candidates, allowed, allowed / allowed.sum(1, keepdim=True), torch.zeros(60, 2).long())
    return World(queries, target, tiny_features, tiny_backbone.head)


def test_the_student_approaches_noise_free_votes(world: World) -> None:
    votes, start = world.votes, world.zeros()
    student = world.distilled(start, votes, steps=200, batch=64, learning_rate=3e-2, pseudo=False)
    before, after = map(world.answers, (start, student))
    least, first, last = (-(votes * each.clamp_min(1e-30).log()).sum(1).mean() for each in (votes, before, after))
    assert first - least > 0.2
    assert last - least < 0.1 * (first - least)
    assert (votes - after).abs().sum(1).mean() < 0.3 * (votes - before).abs().sum(1).mean()
    assert torch.equal(start.matrix, torch.zeros(16, 16)), "the start is left as it is"


def test_the_gradient_is_that_of_the_written_loss(world: World) -> None:
    queries, votes = world.queries, world.votes
    start = HeadAdapter(world.target.basis, 0.3 * world.target.matrix.flip(0))
    found = world.gradient(votes, start)
    draw = torch.Generator().manual_seed(0)
    take = torch.randint(len(queries), (256,), generator=draw)
    few = torch.randint(len(world.features), (32,), generator=draw)
    matrix = start.matrix.clone().requires_grad_()
    moved = HeadAdapter(start.basis, matrix)
    asked = Queries(*(tensor[take] for tensor in vars(queries).values()))
    of_votes = -(votes[take] * torch.where(asked.allowed, world.answers(moved, asked), 1.0).log()).sum(1).mean()
    full = moved(world.features.hidden[few]) @ world.head.T
    pseudo = torch.nn.functional.cross_entropy(full, world.features.targets[few])
    ((pseudo + 20.0 * of_votes) / 21.0).backward()
    assert matrix.grad is not None
    assert matrix.grad.abs().max() > 1e-2
    assert torch.allclose(found, matrix.grad, atol=1e-5)
    noisy = torch.where(queries.allowed, votes, torch.full_like(votes, -1e3))
    assert torch.equal(world.gradient(noisy, start), found), "votes on masked candidates change nothing"
    negative = torch.from_numpy(np.random.default_rng(0).normal(0, 5, (60, CANDIDATES)).astype(np.float32))
    assert world.distilled(world.zeros(), negative, steps=30).matrix.isfinite().all()


@pytest.mark.parametrize("clip", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_noise_in_the_votes_does_not_bend_the_gradient(clip: bool, world: World) -> None:
    """Raw noisy votes: the mean gradient is the noise-free one. Clipped votes (the wrong way) must fail the test."""
    start, draws = world.zeros(), 60
    mechanism = VoteMechanism(queries=60, candidates=CANDIDATES, teachers=4, sigma=2.0)
    sums = mechanism.quantise(world.votes.numpy()) * 4
    true = world.gradient(torch.tensor(sums / (4 * SCALE)), start)
    gradients = []
    for _ in range(draws):
        votes = torch.tensor(mechanism.to_mean(mechanism.draw(sums)))
        gradients.append(world.gradient(votes.clamp_min(0) if clip else votes, start))
    error = torch.stack(gradients) - true
    z = error.mean(0) / (error.std(0) / draws**0.5)
    rms = float((z**2).mean().sqrt())
    # 256 entries, correlated; the root mean square of z is near 1 when there is no bias.
    assert (rms > 2.5) if clip else (rms < 2.0 and z.abs().max() < 6)


def test_distilling_repeats_with_its_seed(world: World) -> None:
    start, state = world.zeros(4, 8), torch.random.get_rng_state()
    first, again, other = (world.distilled(start, world.votes, steps=5, seed=seed).matrix for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert first.shape == (4, 8)


def test_the_adapted_model_generates_from_the_adapted_head(world: World, tiny_backbone: Backbone) -> None:
    ids = torch.tensor([tiny_backbone.prefix("the way to the")])
    model = adapted_model(tiny_backbone, world.target)
    hidden = tiny_backbone.model.base_model(input_ids=ids).last_hidden_state[0, -1:]
    expected = int((world.target(hidden) @ world.head.T).argmax())
    new = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=1, pad_token_id=0)
    assert int(new[0, -1]) == expected


def test_fitting_next_tokens_lowers_their_loss(world: World) -> None:
    start, features = world.zeros(), world.features
    fitted = fit_next_token(start, features, world.head, steps=60, batch=64, learning_rate=3e-2, seed=0)
    logits = [adapter(features.hidden) @ world.head.T for adapter in (start, fitted)]
    before, after = (torch.nn.functional.cross_entropy(each, features.targets) for each in logits)
    assert after < before - 0.5
