"""Students follow the votes, whether they train a head or layers, and noise in the votes does not bend a gradient."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rayprivacy.methods.seqpate import deep_student
from rayprivacy.methods.seqpate.deep_student import DeepStudent, _batches
from rayprivacy.methods.seqpate.recipe import StudentConfig
from rayprivacy.methods.seqpate.students import adapted_model, distill, fit_next_token, vote_loss
from rayprivacy.models import layers
from rayprivacy.models.adapters import HeadAdapter, next_token_loss
from rayprivacy.models.backbone import load_backbone
from rayprivacy.models.features import PAD, Encoded, Features, Queries, encode
from rayprivacy.models.layers import at_cut, select
from rayprivacy.models.settings import ModelConfig
from rayprivacy.release.votes import SCALE, VoteMechanism

CANDIDATES = 6


@dataclass(frozen=True)
class HeadWorld:
    """What a student learns from: queries, votes that a known adapter would give, and public text."""

    queries: Queries
    target: HeadAdapter
    features: Features
    head: torch.Tensor

    def zeros(self, rank_in=16, rank_out=16):
        return HeadAdapter.zeros(self.target.basis, rank_in, rank_out)

    def answers(self, adapter, queries=None):
        """Distributions over the candidates."""
        queries = queries or self.queries
        logits = torch.einsum("qw,qkw->qk", adapter(queries.hidden), self.head[queries.candidates])
        return torch.softmax(logits.masked_fill(~queries.allowed, -torch.inf), -1)

    @property
    def votes(self):
        return self.answers(self.target)

    def distilled(self, start, votes, **settings):
        return distill(start, self.queries, votes, self.features, self.head, StudentConfig(**settings))

    def gradient(self, votes, start):
        """The gradient `distill` follows: one step of plain gradient descent of size one."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.optim, "Adam", torch.optim.SGD)
            return start.matrix - self.distilled(start, votes.float(), steps=1, batch=256, learning_rate=1.0).matrix


def _queries(hidden, context):
    draw = torch.Generator().manual_seed(3)
    candidates = torch.stack([torch.randperm(400, generator=draw)[:CANDIDATES] for _ in hidden])
    allowed = torch.rand(candidates.shape, generator=draw) < 0.8
    allowed[:, :2] = True
    return Queries(hidden, candidates, allowed, allowed / allowed.sum(1, keepdim=True), context)


@pytest.fixture(scope="module")
def head(tiny_basis, tiny_features, tiny_backbone):
    target = HeadAdapter(tiny_basis, torch.randn(16, 16, generator=torch.Generator().manual_seed(8)))
    queries = _queries(tiny_features.hidden[:60].float(), torch.zeros(60, 2).long())
    return HeadWorld(queries, target, tiny_features, tiny_backbone.head)


def test_the_student_approaches_noise_free_votes(head):
    votes, start = head.votes, head.zeros()
    student = head.distilled(start, votes, steps=200, batch=64, learning_rate=3e-2, pseudo=False)
    before, after = map(head.answers, (start, student))
    least, first, last = (-(votes * each.clamp_min(1e-30).log()).sum(1).mean() for each in (votes, before, after))
    assert first - least > 0.2
    assert last - least < 0.1 * (first - least)
    assert (votes - after).abs().sum(1).mean() < 0.3 * (votes - before).abs().sum(1).mean()
    assert torch.equal(start.matrix, torch.zeros(16, 16)), "the start is left as it is"


def test_the_gradient_is_that_of_the_written_loss(head):
    queries, votes = head.queries, head.votes
    start = HeadAdapter(head.target.basis, 0.3 * head.target.matrix.flip(0))
    found = head.gradient(votes, start)
    draw = torch.Generator().manual_seed(0)
    take = torch.randint(len(queries), (256,), generator=draw)
    few = torch.randint(len(head.features), (32,), generator=draw)
    matrix = start.matrix.clone().requires_grad_()
    moved = HeadAdapter(start.basis, matrix)
    asked = Queries(*(tensor[take] for tensor in vars(queries).values()))
    of_votes = -(votes[take] * torch.where(asked.allowed, head.answers(moved, asked), 1.0).log()).sum(1).mean()
    full = moved(head.features.hidden[few]) @ head.head.T
    pseudo = torch.nn.functional.cross_entropy(full, head.features.targets[few])
    ((pseudo + 20.0 * of_votes) / 21.0).backward()
    assert matrix.grad is not None
    assert matrix.grad.abs().max() > 1e-2
    assert torch.allclose(found, matrix.grad, atol=1e-5)
    noisy = torch.where(queries.allowed, votes, torch.full_like(votes, -1e3))
    assert torch.equal(head.gradient(noisy, start), found), "votes on masked candidates change nothing"
    negative = torch.from_numpy(np.random.default_rng(0).normal(0, 5, (60, CANDIDATES)).astype(np.float32))
    assert head.distilled(head.zeros(), negative, steps=30).matrix.isfinite().all()


@pytest.mark.parametrize("clip", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_noise_in_the_votes_does_not_bend_the_gradient(clip, head):
    """Raw noisy votes: the mean gradient is the noise-free one. Clipped votes (the wrong way) must fail the test."""
    start, draws = head.zeros(), 100 if clip else 40
    mechanism = VoteMechanism(queries=60, candidates=CANDIDATES, teachers=4, sigma=2.0)
    sums = mechanism.quantise(head.votes.numpy()) * 4
    true = head.gradient(torch.tensor(sums / (4 * SCALE)), start)
    gradients = []
    for _ in range(draws):
        votes = torch.tensor(mechanism.to_mean(mechanism.draw(sums)))
        gradients.append(head.gradient(votes.clamp_min(0) if clip else votes, start))
    error = torch.stack(gradients) - true
    z = error.mean(0) / (error.std(0) / draws**0.5)
    rms = float((z**2).mean().sqrt())
    # 256 entries, correlated; the root mean square of z is near 1 when there is no bias.
    assert (rms > 2.5) if clip else (rms < 2.0 and z.abs().max() < 6)


def test_distilling_repeats_with_its_seed(head):
    start, state = head.zeros(4, 8), torch.random.get_rng_state()
    first, again, other = (head.distilled(start, head.votes, steps=5, seed=seed).matrix for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert first.shape == (4, 8)


def test_the_adapted_model_generates_from_the_adapted_head(head, tiny_backbone):
    ids = torch.tensor([tiny_backbone.prefix("the way to the")])
    model = adapted_model(tiny_backbone, head.target)
    hidden = tiny_backbone.model.base_model(input_ids=ids).last_hidden_state[0, -1:]
    expected = int((head.target(hidden) @ head.head.T).argmax())
    new = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=1, pad_token_id=0)
    assert int(new[0, -1]) == expected
    # Fitting next tokens lowers their loss.
    start, features = head.zeros(), head.features
    fitted = fit_next_token(start, features, head.head, steps=60, batch=64, learning_rate=3e-2, seed=0)
    logits = [adapter(features.hidden) @ head.head.T for adapter in (start, fitted)]
    before, after = (torch.nn.functional.cross_entropy(each, features.targets) for each in logits)
    assert after < before - 0.5


@dataclass(frozen=True)
class World:
    """An untrained student, one that has learnt from votes, and what it learnt from."""

    untrained: DeepStudent
    student: DeepStudent
    queries: Queries
    votes: torch.Tensor
    rows: Encoded
    config: StudentConfig

    def distilled(self, votes=None, **settings):
        votes, config = self.votes if votes is None else votes, self.config.model_copy(update=settings)
        return self.untrained.distilled(self.queries, votes, self.rows, config).state()

    def slope(self, moved, loss):
        """Along one direction of one matrix: by a step of plain descent of size one, and by differences."""
        start = self.untrained.state()
        name = next(name for name in moved if "lora_B" in name)
        step = 1e-3 * torch.randn(moved[name].shape, generator=torch.Generator().manual_seed(2))
        up, down = (loss(self.untrained.restored(start | {name: start[name] + sign * step})) for sign in (1, -1))
        return float(((start[name] - moved[name]) * step).sum()), (up - down) / 2


@pytest.fixture(scope="module", params=[1, None], ids=["last layer", "all layers"])
def world(request, tiny_backbone, public_sentences):
    # More rows than the trained layers take at once.
    rows = encode(tiny_backbone, [tiny_backbone.document(text, 40) for text in public_sentences * 4], 64, 10)
    context = rows.predicts[:9].nonzero()
    context = context[torch.randperm(len(context), generator=torch.Generator().manual_seed(3))[:60]]
    queries = _queries(rows.hidden[context[:, 0], context[:, 1]].float(), context)
    config = StudentConfig(kind="lora", layers=request.param, rank=4, steps=30, batch=30, learning_rate=1e-2)
    taste = 3 * torch.randn(400, generator=torch.Generator().manual_seed(6))
    # Noise-free votes, which depend on the candidate token alone.
    votes = torch.softmax(taste[queries.candidates].masked_fill(~queries.allowed, -torch.inf), -1)
    untrained = DeepStudent.untrained(tiny_backbone, config)
    return World(untrained, untrained.distilled(queries, votes, rows, config), queries, votes, rows, config)


def _same(first, second):
    return all(torch.equal(first[name], tensor) for name, tensor in second.items())


def _logits(student, queries, rows):
    states = student.hidden(rows)[queries.context[:, 0], queries.context[:, 1]]
    return torch.einsum("qw,qkw->qk", states, student.backbone.head[queries.candidates])


def test_the_warm_steps_follow_the_kind_unless_they_are_given():
    given: list[dict[str, Any]] = [{}, {"kind": "head"}, {"kind": "lora"}, {"kind": "lora", "warm_steps": 60}]
    assert [StudentConfig.model_validate(keys).warm_steps for keys in given] == [60, 60, 200, 60]


def test_the_untrained_student_is_the_base(world, tiny_backbone):
    rows, examples = world.rows, world.rows.examples
    assert torch.allclose(world.untrained.hidden(rows), rows.hidden.float(), atol=5e-2)  # both caches are bfloat16
    total, count = world.untrained.nll(rows)
    logits = examples.hidden.float() @ tiny_backbone.head.T
    expected = torch.nn.functional.cross_entropy(logits, examples.targets, reduction="sum")
    assert count == len(examples)
    assert total == pytest.approx(float(expected), rel=1e-2)
    assert world.untrained.nll(Encoded.empty(64, 64)) == (0.0, 0)
    backbone, cut = world.untrained.backbone, world.untrained.upper.cut
    one, many = (at_cut(backbone, cut, rows, threads).hidden for threads in (1, 3))
    assert torch.equal(one, many), "no state at the cut depends on the number of threads"


def test_votes_pull_the_student_towards_them(world):
    votes, allowed = world.votes, world.queries.allowed
    least = float(-(votes * votes.clamp_min(1e-30).log()).sum(1).mean())
    logits = [_logits(one, world.queries, world.rows) for one in (world.untrained, world.student)]
    before, after = (float(vote_loss(each, votes, allowed)) - least for each in logits)
    assert before > 0.2
    assert after < 0.2 * before
    # A stored student comes back.
    stored, expected = world.student.state(), world.student.hidden(world.rows)
    world.untrained.hidden(world.rows)  # students of one origin share the layers they run in
    for student in (world.untrained.restored(stored), world.student):
        assert torch.equal(student.hidden(world.rows), expected)


def test_learning_returns_another_student_and_repeats(world, monkeypatch):
    before = {name: tensor.clone() for name, tensor in world.untrained.state().items()}
    noisy = torch.where(world.queries.allowed, world.votes, torch.full_like(world.votes, -1e3))
    first, again, other = (world.distilled(noisy, steps=4, seed=seed) for seed in (0, 0, 1))
    assert _same(again, first)
    assert not _same(other, first)
    assert _same(world.distilled(steps=4), first), "votes on masked candidates count nothing"
    assert _same(world.untrained.state(), before)
    # Without pseudo-sentences the loss is that of the votes.
    first = world.distilled(steps=2, pseudo=False)
    monkeypatch.setattr(deep_student, "VOTE_WEIGHT", 64.0)
    assert _same(world.distilled(steps=2, pseudo=False), first), "lambda has nothing to weigh against"


def test_the_gradient_of_a_step_is_that_of_the_written_loss(world, monkeypatch):
    """One step of plain descent of size one over all queries, in two parts of at most eight rows."""
    monkeypatch.setattr(torch.optim, "Adam", torch.optim.SGD)
    monkeypatch.setattr(deep_student, "PSEUDO_POSITIONS", 10_000)  # all of them
    rows, queries = world.rows, world.queries
    asked = rows.ids.new_tensor(sorted(set(queries.context[:, 0].tolist())))
    seen = Encoded(rows.ids[asked], rows.segment[asked], rows.hidden[asked])

    def loss(there):
        total, count = there.nll(seen)
        of_votes = vote_loss(_logits(there, queries, rows), world.votes, queries.allowed)
        return (total / count + 20.0 * float(of_votes)) / 21.0

    found, wanted = world.slope(world.distilled(steps=1, batch=1000, learning_rate=1.0), loss)
    assert found == pytest.approx(wanted, rel=2e-2, abs=2e-6)


def test_a_step_asks_the_whole_vocabulary_at_a_few_positions(world, monkeypatch):
    asked: list[torch.Tensor] = []

    def recorded(states, few, head, keep):
        assert not (keep & ~few.predicts).any()
        asked.append(keep)
        return next_token_loss(states, few, head, keep)

    monkeypatch.setattr(deep_student, "next_token_loss", recorded)
    monkeypatch.setattr(deep_student, "PSEUDO_POSITIONS", 7)
    world.distilled(steps=2, batch=1000)
    parts = len(asked) // 2
    first, second = torch.cat(asked[:parts]), torch.cat(asked[parts:])
    assert first.sum() == second.sum() == 7
    assert not torch.equal(first, second)


def test_the_trunk_is_run_once_for_students_of_one_origin(world, tiny_backbone, monkeypatch):
    rows, read = world.rows, list[int]()

    def recorded(backbone, cut, rows, threads):
        read.append(len(rows))
        return at_cut(backbone, cut, rows, threads)

    monkeypatch.setattr(layers, "at_cut", recorded)
    untrained = DeepStudent.untrained(tiny_backbone, world.config)
    fitted = untrained.fitted(rows, steps=2, batch=1, learning_rate=1e-2, seed=0)
    again = untrained.fitted(rows, steps=0, batch=1, learning_rate=1e-2, seed=0)
    assert read == [2, 0]
    copied = replace(rows)
    for student in (untrained, fitted, again):
        student.hidden(copied)
    assert read == [2, 0, 10]


def test_a_step_descends_on_the_rows_it_takes_and_on_no_other(world, monkeypatch):
    monkeypatch.setattr(torch.optim, "Adam", torch.optim.SGD)
    batch = int(world.rows.predicts[:3].sum())
    taken = next(_batches(world.rows.predicts.sum(1), batch, seed=4))
    moved = world.untrained.fitted(world.rows, steps=1, batch=batch, learning_rate=1.0, seed=4).state()

    def loss(there):
        total, count = there.nll(select(world.rows, taken))
        return total / count

    found, wanted = world.slope(moved, loss)
    assert found == pytest.approx(wanted, rel=2e-2, abs=2e-6)


def test_the_merged_model_says_what_the_student_says(world, tiny_backbone, tmp_path):
    document = tiny_backbone.prefix("the way to the")
    row = encode(tiny_backbone, [document], 64, 1)
    expected = world.student.hidden(row)[0, : len(document)] @ tiny_backbone.head.T
    ids = torch.tensor([document])
    world.student.model().save_pretrained(tmp_path)
    for model in (world.student.model(), AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)):
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0]
        assert torch.allclose(logits, expected, atol=2e-2)  # the student's cached states are bfloat16
        mask = torch.ones_like(ids)
        new = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=1, pad_token_id=0)
        assert int(new[0, len(document)]) == int(logits[-1].argmax())
        assert not any("lora" in name for name, _ in model.named_parameters())


def test_a_step_takes_rows_until_they_hold_enough_and_a_pass_takes_each_once():
    counts = torch.tensor([3, 0, 2, 5, 1, 0, 4])
    taken = _batches(counts, 5, seed=0)
    steps = [next(taken) for _ in range(30)]
    assert all(counts[take].sum() >= 5 and counts[take[:-1]].sum() < 5 for take in steps)
    flat = torch.cat(steps).tolist()
    assert {1, 5}.isdisjoint(flat)
    assert sorted(flat[:5]) == sorted(flat[5:10]) == [0, 2, 3, 4, 6]
    assert sorted(next(_batches(counts, 1000, seed=0)).tolist()) == [0, 2, 3, 4, 6]


def test_a_bfloat16_base_learns_and_its_merged_model_scores_the_same(tiny_base, public_sentences):
    backbone = load_backbone(ModelConfig(base=str(tiny_base), dtype="bfloat16"))
    rows = encode(backbone, [backbone.document(text, 40) for text in public_sentences], 64, 8)
    untrained = DeepStudent.untrained(backbone, StudentConfig(kind="lora"))
    filled = rows.segment != PAD
    assert torch.equal(untrained.hidden(rows)[filled], rows.hidden.float()[filled])
    fitted = untrained.fitted(rows, steps=20, batch=100, learning_rate=1e-2, seed=0)
    assert fitted.nll(rows)[0] < 0.9 * untrained.nll(rows)[0]
    model = fitted.model()
    assert model.dtype == torch.bfloat16
    again = DeepStudent.untrained(replace(backbone, model=model), StudentConfig(kind="lora"))
    # Merging rounds the sum of weight and adapter.
    assert again.nll(rows)[0] == pytest.approx(fitted.nll(rows)[0], rel=0.02, abs=0.0)
