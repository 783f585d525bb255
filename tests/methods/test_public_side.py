"""Candidates and queries: public, distinct, repeatable, and asked only where the student is unsure."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rayprivacy.methods.public_side import candidate_tokens, select_queries
from rayprivacy.methods.recipe import VotesConfig
from rayprivacy.models.adapters import Basis, HeadAdapter
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.features import Features

VOCABULARY = 30


def _logits(seed: int, rows: int = 20) -> torch.Tensor:
    return 3 * torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed))


@given(st.integers(0, 1000), st.integers(2, VOCABULARY), st.integers(0, VOCABULARY - 1))
@settings(max_examples=60, deadline=None)
def test_candidates_are_the_end_and_the_likeliest_others(seed: int, top_k: int, end: int) -> None:
    logits = _logits(seed)
    before = logits.clone()
    candidates, allowed = candidate_tokens(logits, end, VotesConfig(top_k=top_k))
    assert torch.equal(logits, before), "the student's logits are left as they are"
    assert candidates.shape == allowed.shape == (20, top_k)
    assert allowed.all()
    for row, found in zip(logits, candidates.tolist(), strict=True):
        assert len(set(found)) == top_k
        others = [token for token in row.argsort(descending=True).tolist() if token != end]
        assert set(found) == {end, *others[: top_k - 1]}


@given(st.integers(0, 1000), st.integers(2, VOCABULARY), st.floats(1e-6, 1.0), st.integers(0, VOCABULARY - 1))
@settings(max_examples=100, deadline=None)
def test_top_p_keeps_the_end_the_likeliest_and_as_few_as_hold_the_mass(
    seed: int, top_k: int, top_p: float, end: int
) -> None:
    logits = _logits(seed)
    candidates, allowed = candidate_tokens(logits, end, VotesConfig(top_k=top_k, top_p=top_p))
    assert torch.equal(candidates, candidate_tokens(logits, end, VotesConfig(top_k=top_k))[0])
    probability = torch.softmax(logits, -1)
    for row, found, mask in zip(probability, candidates.tolist(), allowed.tolist(), strict=True):
        kept = [token for token, keep in zip(found, mask, strict=True) if keep]
        likeliest = max((token for token in range(VOCABULARY) if token != end), key=lambda token: row[token])
        assert {end, likeliest} <= set(kept)
        others = [token for token in kept if token != end]
        dropped = [token for token in found if token not in kept]
        if others and dropped:
            assert min(row[others]) >= max(row[dropped]), "the unlikely ones go"
            assert row[others].sum() >= top_p - 1e-4, "enough mass stays"
        assert row[others[:-1]].sum() < top_p + 1e-4 or len(others) == 1, "and not more than needed"


def test_a_sure_student_keeps_two_candidates() -> None:
    logits = torch.zeros(1, VOCABULARY)
    logits[0, 7] = 20.0
    candidates, allowed = candidate_tokens(logits, 3, VotesConfig(top_k=10, top_p=0.9))
    assert candidates[allowed].tolist() == [3, 7]


@pytest.fixture(scope="module")
def student(tiny_basis: Basis) -> HeadAdapter:
    return HeadAdapter(tiny_basis, 0.2 * torch.randn(16, 16, generator=torch.Generator().manual_seed(4)))


@pytest.fixture(scope="module")
def many(tiny_features: Features) -> Features:
    """More examples than one block of the selection holds, half of them with the likeliest token as their target."""
    hidden = tiny_features.hidden.repeat(6, 1)
    noise = 0.1 * torch.randn(hidden.shape, generator=torch.Generator().manual_seed(1))
    hidden = (hidden.float() + noise).bfloat16()
    assert len(hidden) > 600
    return Features(hidden, tiny_features.targets.repeat(6))


def _places(queries_hidden: torch.Tensor, features: Features) -> list[int]:
    same = (queries_hidden[:, None] == features.hidden.float()[None]).all(-1)
    assert (same.sum(1) == 1).all()
    return same.float().argmax(1).tolist()


@pytest.mark.parametrize("outside_top", [0, 1, 5, 100])
def test_queries_are_asked_only_outside_the_students_top(
    outside_top: int, many: Features, student: HeadAdapter, tiny_backbone: Backbone
) -> None:
    head = tiny_backbone.head
    logits = student(many.hidden) @ head.T
    labels = many.targets.clone()
    labels[::2] = logits.argmax(1)[::2]
    features = Features(many.hidden, labels)
    rank = (logits > logits.gather(1, labels[:, None])).sum(1)
    config = VotesConfig(queries=10_000, top_k=8, outside_top=outside_top)
    queries = select_queries(features, student, head, tiny_backbone.end, config, seed=0)
    places = _places(queries.hidden, features)
    assert sorted(places) == (rank >= outside_top).nonzero().flatten().tolist(), "each such position once"
    expected, _ = candidate_tokens(logits[places], tiny_backbone.end, config)
    assert torch.equal(queries.candidates.sort(1).values, expected.sort(1).values)


@pytest.mark.parametrize("count", [1, 10, 511, 600])
def test_no_more_queries_than_are_paid_for(
    count: int, many: Features, student: HeadAdapter, tiny_backbone: Backbone
) -> None:
    config = VotesConfig(queries=count, top_k=8, outside_top=0)
    queries = select_queries(many, student, tiny_backbone.head, tiny_backbone.end, config, seed=0)
    assert len(queries) == len(queries.hidden) == len(queries.allowed) == min(count, len(many))
    assert queries.hidden.dtype == torch.float32
    assert (queries.candidates == tiny_backbone.end).any(1).all()


def test_the_selection_repeats_with_its_seed(many: Features, student: HeadAdapter, tiny_backbone: Backbone) -> None:
    config = VotesConfig(queries=50, top_k=8, top_p=0.9)
    state = torch.random.get_rng_state()
    first, again, other = (
        select_queries(many, student, tiny_backbone.head, tiny_backbone.end, config, seed) for seed in (0, 0, 1)
    )
    for name in ("hidden", "candidates", "allowed"):
        assert torch.equal(getattr(first, name), getattr(again, name))
    assert not torch.equal(first.hidden, other.hidden)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_fewer_queries_are_the_first_of_more(many: Features, student: HeadAdapter, tiny_backbone: Backbone) -> None:
    few, more = (
        select_queries(many, student, tiny_backbone.head, tiny_backbone.end, VotesConfig(queries=n, top_k=8), 0)
        for n in (20, 90)
    )
    assert torch.equal(few.hidden, more.hidden[:20])


def test_a_student_that_knows_everything_asks_nothing(
    many: Features, student: HeadAdapter, tiny_backbone: Backbone
) -> None:
    known = Features(many.hidden, (student(many.hidden) @ tiny_backbone.head.T).argmax(1))
    config = VotesConfig(queries=50, top_k=8, outside_top=1)
    assert len(select_queries(known, student, tiny_backbone.head, tiny_backbone.end, config, 0)) == 0
