"""Candidates and queries: public, distinct, repeatable, and asked only where the student is unsure."""

from typing import Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rayprivacy.methods.seqpate.public_side import candidate_tokens, select_queries
from rayprivacy.methods.seqpate.recipe import VotesConfig
from rayprivacy.methods.seqpate.students import HeadStudent
from rayprivacy.models.adapters import Basis, HeadAdapter
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.features import Encoded, encode

VOCABULARY = 30


def _logits(seed: int, rows: int = 20) -> torch.Tensor:
    return 3 * torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed))


@given(st.integers(0, 1000), st.integers(2, VOCABULARY), st.integers(0, VOCABULARY - 1))
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
def student(tiny_basis: Basis, tiny_backbone: Backbone) -> HeadStudent:
    matrix = 0.2 * torch.randn(16, 16, generator=torch.Generator().manual_seed(4))
    return HeadStudent(tiny_backbone, HeadAdapter(tiny_basis, matrix))


@pytest.fixture(scope="module")
def many(tiny_backbone: Backbone) -> Encoded:
    """More contexts than one block of the selection holds: random documents, some of them with one beginning."""
    draw = torch.Generator().manual_seed(1)
    random = torch.randint(5, 400, (40, 18), generator=draw).tolist()
    documents = [[tiny_backbone.start, *tokens] for tokens in random]
    documents += [[*documents[n][:9], *documents[n + 1][9:]] for n in range(0, 20, 2)]
    return encode(tiny_backbone, documents, 64, 100)


def _contexts(rows: Encoded, places: torch.Tensor) -> list[tuple[int, ...]]:
    """The tokens of each context, from the start of its document."""
    found = []
    for row, position in places.tolist():
        own = (rows.segment[row] == rows.segment[row, position]).nonzero().flatten()
        found.append(tuple(rows.ids[row, own[0] : position + 1].tolist()))
    return found


def _all_contexts(rows: Encoded) -> set[tuple[int, ...]]:
    return set(_contexts(rows, rows.predicts.nonzero()))


@pytest.mark.parametrize("select", ["any", "threshold"])
def test_queries_are_asked_only_outside_the_students_top_and_each_context_once(
    select: Literal["any", "threshold"], many: Encoded, student: HeadStudent, tiny_backbone: Backbone
) -> None:
    config = VotesConfig(top_k=8, select=select)
    queries = select_queries(many, student, tiny_backbone, config, 10_000, 0)
    row, position = queries.context.T
    logits = student.hidden(many)[row, position].float() @ tiny_backbone.head.T
    rank = (logits > logits.gather(1, many.ids[row, position + 1][:, None])).sum(1)
    assert (rank >= (select == "threshold")).all()
    asked = _contexts(many, queries.context)
    assert len(set(asked)) == len(asked), "equal beginnings of two documents are one query"
    if select == "any":
        assert set(asked) == _all_contexts(many)
    assert torch.equal(queries.hidden, many.hidden[row, position].float())
    expected, _ = candidate_tokens(logits, tiny_backbone.end, config)
    assert torch.equal(queries.candidates.sort(1).values, expected.sort(1).values)


def test_the_centre_is_the_students_distribution_over_the_allowed(
    many: Encoded, student: HeadStudent, tiny_backbone: Backbone
) -> None:
    queries = select_queries(many, student, tiny_backbone, VotesConfig(top_k=8, top_p=0.01), 100, 0)
    row, position = queries.context.T
    full = torch.softmax(student.hidden(many)[row, position].float() @ tiny_backbone.head.T, -1)
    own = full.gather(1, queries.candidates) * queries.allowed
    assert not queries.allowed.all()
    torch.testing.assert_close(queries.centre, own / own.sum(1, keepdim=True))


@pytest.mark.parametrize("count", [1, 10, 511, 600])
def test_no_more_queries_than_are_paid_for(
    count: int, many: Encoded, student: HeadStudent, tiny_backbone: Backbone
) -> None:
    queries = select_queries(many, student, tiny_backbone, VotesConfig(top_k=8, select="any"), count, 0)
    assert len(queries) == len(queries.hidden) == len(queries.allowed) == min(count, len(_all_contexts(many)))
    assert (queries.candidates == tiny_backbone.end).any(1).all()


@pytest.mark.parametrize("select", ["any", "threshold", "entropy"])
def test_the_selection_repeats_with_its_seed(
    select: str, many: Encoded, student: HeadStudent, tiny_backbone: Backbone
) -> None:
    config = VotesConfig.model_validate({"top_k": 8, "top_p": 0.9, "select": select})
    state = torch.random.get_rng_state()
    first, again, other = (select_queries(many, student, tiny_backbone, config, 50, seed) for seed in (0, 0, 1))
    for name in vars(first):
        assert torch.equal(getattr(first, name), getattr(again, name))
    assert torch.equal(first.context, other.context) == (select == "entropy")
    assert torch.equal(torch.random.get_rng_state(), state)


def test_entropy_asks_where_the_student_is_least_sure(
    many: Encoded, student: HeadStudent, tiny_backbone: Backbone
) -> None:
    config = VotesConfig(top_k=8, select="entropy")
    everywhere = select_queries(many, student, tiny_backbone, VotesConfig(top_k=8, select="any"), 10_000, 0)
    asked = {tuple(place) for place in select_queries(many, student, tiny_backbone, config, 60, 0).context.tolist()}
    row, position = everywhere.context.T
    logits = student.hidden(many)[row, position].float() @ tiny_backbone.head.T
    entropy = torch.distributions.Categorical(logits=logits).entropy()
    chosen = torch.tensor([tuple(place) in asked for place in everywhere.context.tolist()])
    assert len(asked) == chosen.sum() == 60
    assert entropy[chosen].min() >= entropy[~chosen].max() - 1e-5


def test_fewer_queries_are_among_more(many: Encoded, student: HeadStudent, tiny_backbone: Backbone) -> None:
    few, more = (select_queries(many, student, tiny_backbone, VotesConfig(top_k=8), n, 0) for n in (20, 90))
    assert {tuple(place) for place in few.context.tolist()} < {tuple(place) for place in more.context.tolist()}


def test_queries_of_one_row_are_neighbours(many: Encoded, student: HeadStudent, tiny_backbone: Backbone) -> None:
    places = select_queries(many, student, tiny_backbone, VotesConfig(top_k=8), 90, 0).context.tolist()
    assert places == sorted(places)


def test_a_student_that_knows_everything_asks_nothing(
    many: Encoded, student: HeadStudent, tiny_backbone: Backbone
) -> None:
    likeliest = (student.hidden(many) @ tiny_backbone.head.T).argmax(-1)
    known = Encoded(torch.cat([many.ids[:, :1], likeliest[:, :-1]], 1), many.segment, many.hidden)
    assert len(select_queries(known, student, tiny_backbone, VotesConfig(top_k=8), 50, 0)) == 0
