"""One user changes one teacher: what a stack computes for a shard depends on that shard alone, to the last bit."""

import math

import numpy as np
import pytest
import torch

from rayprivacy.models.adapters import Basis
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.features import Features, encode_documents
from rayprivacy.models.queries import Queries
from rayprivacy.release.vote import SCALE, VoteMechanism
from rayprivacy.teachers.settings import TeachersConfig
from rayprivacy.teachers.stack import summed_votes, train_stack

CONFIG = TeachersConfig(count=6, max_tokens=30, row_tokens=64, rank=16, shortlist=200, steps=4, batch=16, stack=6)
TEACHERS, CANDIDATES, QUERIES = 6, 8, 70


def _random_features(seed: int, examples: int) -> Features:
    draw = torch.Generator().manual_seed(seed)
    hidden = torch.randn(examples, 64, generator=draw).bfloat16()
    return Features(hidden, torch.randint(400, (examples,), generator=draw))


@pytest.fixture(scope="module")
def shards(tiny_backbone: Backbone, public_sentences: list[str]) -> list[Features]:
    """Six shards of different length; the last is empty."""
    found = []
    for shard in range(TEACHERS - 1):
        documents = [tiny_backbone.document(text, 30) for text in public_sentences[shard : shard + 1 + shard % 3]]
        found.append(encode_documents(tiny_backbone, documents, 64, 4))
    return [*found, Features.empty(64)]


@pytest.fixture(scope="module")
def trained(shards: list[Features], tiny_basis: Basis, tiny_backbone: Backbone) -> torch.Tensor:
    return train_stack(shards, tiny_basis, tiny_backbone.head, CONFIG)


@pytest.fixture(scope="module")
def queries(tiny_features: Features) -> Queries:
    draw = torch.Generator().manual_seed(5)
    hidden = tiny_features.hidden[:QUERIES].float()
    candidates = torch.stack([torch.randperm(400, generator=draw)[:CANDIDATES] for _ in range(QUERIES)])
    allowed = torch.rand(QUERIES, CANDIDATES, generator=draw) < 0.7
    allowed[:, 0] = True
    return Queries(hidden, candidates, allowed)


@pytest.fixture(scope="module")
def mechanism() -> VoteMechanism:
    return VoteMechanism(queries=QUERIES, candidates=CANDIDATES, teachers=TEACHERS, sigma=1.0)


@pytest.mark.parametrize("teacher", range(TEACHERS))
def test_a_teacher_does_not_depend_on_the_other_shards(
    teacher: int, shards: list[Features], trained: torch.Tensor, tiny_basis: Basis, tiny_backbone: Backbone
) -> None:
    others = [
        [_random_features(seed, 1 + 37 * seed) for seed in range(TEACHERS)],
        [Features.empty(64)] * TEACHERS,
        [Features(shard.hidden * 1e9, shard.targets) for shard in shards],
        [Features(torch.full_like(shard.hidden, math.nan), shard.targets) for shard in shards],
        [Features(torch.full_like(shard.hidden, math.inf), shard.targets) for shard in shards],
    ]
    for stack in others:
        stack = [*stack]
        stack[teacher] = shards[teacher]
        again = train_stack(stack, tiny_basis, tiny_backbone.head, CONFIG)
        assert torch.equal(again[teacher], trained[teacher])


def test_training_moves_every_teacher_that_has_text_and_lowers_its_loss(
    shards: list[Features], trained: torch.Tensor, tiny_basis: Basis, tiny_backbone: Backbone
) -> None:
    short = tiny_backbone.head[tiny_basis.shortlist]
    for shard, matrix in zip(shards[:-1], trained[:-1], strict=True):
        place = torch.searchsorted(tiny_basis.shortlist, shard.targets).clamp_max(len(tiny_basis.shortlist) - 1)
        keep = tiny_basis.shortlist[place] == shard.targets
        assert keep.any()
        hidden = shard.hidden[keep].float()

        def loss(R: torch.Tensor, hidden: torch.Tensor = hidden, targets: torch.Tensor = place[keep]) -> torch.Tensor:
            moved = hidden + hidden @ tiny_basis.inward @ R @ tiny_basis.outward
            return torch.nn.functional.cross_entropy(moved @ short.T, targets)

        assert loss(matrix) < loss(torch.zeros_like(matrix)) - 0.05


def test_training_is_repeatable_and_draws_nothing_from_the_global_generator(
    shards: list[Features], trained: torch.Tensor, tiny_basis: Basis, tiny_backbone: Backbone
) -> None:
    before = torch.random.get_rng_state()
    assert torch.equal(train_stack(shards, tiny_basis, tiny_backbone.head, CONFIG), trained)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not trained.requires_grad


def test_an_empty_shard_is_exactly_the_public_model(
    trained: torch.Tensor,
    tiny_basis: Basis,
    tiny_backbone: Backbone,
    queries: Queries,
) -> None:
    assert torch.equal(trained[-1], torch.zeros(16, 16))
    one = VoteMechanism(QUERIES, CANDIDATES, 1, 1.0)
    votes = summed_votes(trained[-1:], tiny_basis, tiny_backbone.head, queries, one)
    logits = torch.einsum("qw,qkw->qk", queries.hidden, tiny_backbone.head[queries.candidates])
    public = torch.softmax(logits.masked_fill(~queries.allowed, -torch.inf), -1)
    assert np.abs(votes - public.numpy() * SCALE).max() <= 8  # float32 holds a probability to about 2^-22


def test_a_shard_whose_targets_are_all_off_the_shortlist_votes_the_public_model(
    shards: list[Features], trained: torch.Tensor, tiny_basis: Basis, tiny_backbone: Backbone
) -> None:
    outside = torch.tensor(sorted(set(range(400)) - set(tiny_basis.shortlist.tolist())))
    assert len(outside) == 200
    stack = [*shards]
    stack[2] = Features(shards[2].hidden, outside[torch.arange(len(shards[2])) % len(outside)])
    again = train_stack(stack, tiny_basis, tiny_backbone.head, CONFIG)
    assert torch.equal(again[2], torch.zeros(16, 16))
    rest = [0, 1, 3, 4, 5]
    assert torch.equal(again[rest], trained[rest])


def test_a_nan_shard_votes_the_constant_and_moves_nobody_else(
    shards: list[Features],
    trained: torch.Tensor,
    tiny_basis: Basis,
    tiny_backbone: Backbone,
    queries: Queries,
    mechanism: VoteMechanism,
) -> None:
    stack = [*shards]
    hidden = shards[1].hidden.clone()
    hidden[:, 3] = math.nan
    stack[1] = Features(hidden, shards[1].targets)
    again = train_stack(stack, tiny_basis, tiny_backbone.head, CONFIG)
    rest = [0, 2, 3, 4, 5]
    assert again[1].isnan().any()
    assert torch.equal(again[rest], trained[rest])
    votes = summed_votes(again, tiny_basis, tiny_backbone.head, queries, mechanism)
    without = summed_votes(again[rest], tiny_basis, tiny_backbone.head, queries, mechanism)
    assert (votes - without == round(SCALE / CANDIDATES)).all()
    mechanism.check(votes)


def _naive(
    matrices: torch.Tensor, basis: Basis, head: torch.Tensor, queries: Queries, mechanism: VoteMechanism
) -> np.ndarray:
    """Each teacher by itself, each query by itself, in float64."""
    total = np.zeros((len(queries), mechanism.candidates), dtype=np.int64)
    for matrix in matrices.double():
        for query in range(len(queries)):
            hidden = queries.hidden[query].double()
            moved = hidden + hidden @ basis.inward.double() @ matrix @ basis.outward.double()
            logits = head[queries.candidates[query]].double() @ moved
            logits[~queries.allowed[query]] = -torch.inf
            total[query] += mechanism.quantise(torch.softmax(logits, 0).numpy())
    return total


def test_votes_are_the_sum_of_every_teachers_own_quantised_softmax(
    trained: torch.Tensor, tiny_basis: Basis, tiny_backbone: Backbone, queries: Queries, mechanism: VoteMechanism
) -> None:
    votes = summed_votes(trained, tiny_basis, tiny_backbone.head, queries, mechanism)
    naive = _naive(trained, tiny_basis, tiny_backbone.head, queries, mechanism)
    assert votes.dtype == np.int64
    assert np.abs(votes - naive).max() <= TEACHERS * 16, "float32 against float64"
    public = _naive(trained[-1:], tiny_basis, tiny_backbone.head, queries, mechanism) * TEACHERS
    assert np.abs(votes - public).max() > 1000 * TEACHERS, "the teachers vote their own mind"


def test_the_sum_over_a_stack_is_the_sum_of_its_teachers(
    trained: torch.Tensor, tiny_basis: Basis, tiny_backbone: Backbone, queries: Queries, mechanism: VoteMechanism
) -> None:
    votes = summed_votes(trained, tiny_basis, tiny_backbone.head, queries, mechanism)
    single = [summed_votes(trained[i : i + 1], tiny_basis, tiny_backbone.head, queries, mechanism) for i in range(6)]
    assert np.abs(votes - sum(single)).max() <= TEACHERS, "a stack of one may round the last bit differently"


@pytest.mark.parametrize("size", [32, 64, 96])
def test_batches_of_queries_do_not_change_the_sums(
    size: int,
    trained: torch.Tensor,
    tiny_basis: Basis,
    tiny_backbone: Backbone,
    queries: Queries,
    mechanism: VoteMechanism,
) -> None:
    whole = summed_votes(trained, tiny_basis, tiny_backbone.head, queries, mechanism)
    parts = [
        summed_votes(trained, tiny_basis, tiny_backbone.head, queries.rows(at, at + size), mechanism)
        for at in range(0, QUERIES, size)
    ]
    assert np.array_equal(np.concatenate(parts), whole)


def test_a_query_does_not_depend_on_the_other_queries(
    trained: torch.Tensor, tiny_basis: Basis, tiny_backbone: Backbone, queries: Queries, mechanism: VoteMechanism
) -> None:
    whole = summed_votes(trained, tiny_basis, tiny_backbone.head, queries, mechanism)
    hidden, candidates = torch.full_like(queries.hidden, math.nan), queries.candidates.flip(0)
    hidden[17], candidates[17] = queries.hidden[17], queries.candidates[17]
    changed = Queries(hidden, candidates, queries.allowed)
    again = summed_votes(trained, tiny_basis, tiny_backbone.head, changed, mechanism)
    assert np.array_equal(again[17], whole[17])
    assert (again[18] == TEACHERS * round(SCALE / CANDIDATES)).all()


def test_masked_candidates_get_nothing_and_each_query_sums_to_the_teachers(
    trained: torch.Tensor, tiny_basis: Basis, tiny_backbone: Backbone, queries: Queries, mechanism: VoteMechanism
) -> None:
    votes = summed_votes(trained, tiny_basis, tiny_backbone.head, queries, mechanism)
    masked = ~queries.allowed.numpy()
    assert masked.any()
    assert (votes[masked] == 0).all()
    assert (np.abs(votes.sum(1) - TEACHERS * SCALE) <= TEACHERS * CANDIDATES).all()
    assert (votes >= 0).all()
    mechanism.check(votes)


def test_a_teacher_with_one_allowed_candidate_gives_it_everything(
    trained: torch.Tensor, tiny_basis: Basis, tiny_backbone: Backbone, queries: Queries, mechanism: VoteMechanism
) -> None:
    allowed = torch.zeros_like(queries.allowed)
    allowed[:, 3] = True
    only = Queries(queries.hidden, queries.candidates, allowed)
    votes = summed_votes(trained, tiny_basis, tiny_backbone.head, only, mechanism)
    assert (votes[:, 3] == TEACHERS * SCALE).all()


@pytest.mark.parametrize(("count", "stack"), [(1, 50), (50, 50), (51, 50), (1000, 7)])
def test_every_teacher_is_in_exactly_one_stack(count: int, stack: int) -> None:
    config = TeachersConfig(count=count, stack=stack)
    assert [teacher for part in range(config.parts) for teacher in config.members(part)] == list(range(count))
    assert all(0 < len(config.members(part)) <= stack for part in range(config.parts))
