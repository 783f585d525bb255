"""Candidates and queries: public, distinct, repeatable, and asked only where the student is unsure."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rayprivacy.methods.seqpate.public_side import candidate_tokens, select_queries
from rayprivacy.methods.seqpate.recipe import VotesConfig
from rayprivacy.methods.seqpate.students import HeadStudent
from rayprivacy.models.adapters import HeadAdapter
from rayprivacy.models.features import Encoded, Queries, encode

VOCABULARY = 30
Select = Callable[..., Queries]


@given(st.integers(0, 1000), st.integers(2, VOCABULARY), st.floats(1e-6, 1.0), st.integers(0, VOCABULARY - 1))
def test_candidates_are_the_end_and_the_likeliest(seed, top_k, top_p, end):
    logits = 3 * torch.randn(20, VOCABULARY, generator=torch.Generator().manual_seed(seed))
    before = logits.clone()
    candidates, whole = candidate_tokens(logits, end, VotesConfig(top_k=top_k))
    same, allowed = candidate_tokens(logits, end, VotesConfig(top_k=top_k, top_p=top_p))
    assert torch.equal(logits, before), "the student's logits are left as they are"
    assert candidates.shape == whole.shape == (20, top_k)
    assert whole.all()
    assert torch.equal(candidates, same)
    for row, found, mask in zip(torch.softmax(logits, -1), candidates.tolist(), allowed.tolist(), strict=True):
        assert len(set(found)) == top_k
        ranked = [token for token in row.argsort(descending=True).tolist() if token != end]
        assert set(found) == {end, *ranked[: top_k - 1]}
        kept = [token for token, keep in zip(found, mask, strict=True) if keep]
        assert {end, ranked[0]} <= set(kept)
        others = [token for token in kept if token != end]
        dropped = [token for token in found if token not in kept]
        if others and dropped:
            assert min(row[others]) >= max(row[dropped]), "the unlikely ones go"
            assert row[others].sum() >= top_p - 1e-4, "enough mass stays"
        assert row[others[:-1]].sum() < top_p + 1e-4 or len(others) == 1, "and not more than needed"


def test_a_sure_student_keeps_two_candidates():
    logits = torch.zeros(1, VOCABULARY)
    logits[0, 7] = 20.0
    candidates, allowed = candidate_tokens(logits, 3, VotesConfig(top_k=10, top_p=0.9))
    assert candidates[allowed].tolist() == [3, 7]


@pytest.fixture(scope="module")
def many(tiny_backbone):
    """More contexts than one block of the selection holds: random documents, some of them with one beginning."""
    random = torch.randint(5, 400, (40, 18), generator=torch.Generator().manual_seed(1)).tolist()
    documents = [[tiny_backbone.start, *tokens] for tokens in random]
    documents += [[*documents[n][:9], *documents[n + 1][9:]] for n in range(0, 20, 2)]
    return encode(tiny_backbone, documents, 64, 100)


@pytest.fixture(scope="module")
def select(many, student, tiny_backbone):
    def select(count=10_000, seed=0, rows=many, **votes):
        return select_queries(rows, student, tiny_backbone, VotesConfig(top_k=8, **votes), count, seed)

    return select


@pytest.fixture(scope="module")
def student(tiny_basis, tiny_backbone):
    matrix = 0.2 * torch.randn(16, 16, generator=torch.Generator().manual_seed(4))
    return HeadStudent(tiny_backbone, HeadAdapter(tiny_basis, matrix))


@pytest.fixture(scope="module")
def logits(many, student, tiny_backbone):
    """The student's, for every place of every row."""
    return student.hidden(many).float() @ tiny_backbone.head.T


def _contexts(rows, places):
    """The tokens of each context, from the start of its document."""
    found = []
    for row, position in places.tolist():
        own = (rows.segment[row] == rows.segment[row, position]).nonzero().flatten()
        found.append(tuple(rows.ids[row, own[0] : position + 1].tolist()))
    return found


@pytest.mark.parametrize("how", ["any", "threshold"])
def test_queries_are_asked_only_outside_the_students_top_and_each_context_once(
    how, many, logits, select, tiny_backbone
):
    queries = select(select=how)
    row, position = queries.context.T
    own = logits[row, position]
    rank = (own > own.gather(1, many.ids[row, position + 1][:, None])).sum(1)
    assert (rank >= (how == "threshold")).all()
    asked = _contexts(many, queries.context)
    assert len(set(asked)) == len(asked), "equal beginnings of two documents are one query"
    if how == "any":
        contexts = set(_contexts(many, many.predicts.nonzero()))
        assert set(asked) == contexts
        counts = (1, 10, 511, 600)  # no more than are paid for
        assert [len(select(count, select="any")) for count in counts] == [min(n, len(contexts)) for n in counts]
    assert torch.equal(queries.hidden, many.hidden[row, position].float())
    expected, _ = candidate_tokens(own, tiny_backbone.end, VotesConfig(top_k=8))
    assert torch.equal(queries.candidates.sort(1).values, expected.sort(1).values)


def test_the_centre_is_the_students_distribution_over_the_allowed(logits, select):
    queries = select(100, top_p=0.01)
    own = torch.softmax(logits[tuple(queries.context.T)], -1).gather(1, queries.candidates) * queries.allowed
    assert not queries.allowed.all()
    torch.testing.assert_close(queries.centre, own / own.sum(1, keepdim=True))


@pytest.mark.parametrize("how", ["any", "threshold", "entropy"])
def test_the_selection_repeats_with_its_seed(how, select):
    state = torch.random.get_rng_state()
    first, again, other = (select(50, seed, select=how, top_p=0.9) for seed in (0, 0, 1))
    for name in vars(first):
        assert torch.equal(getattr(first, name), getattr(again, name))
    assert torch.equal(first.context, other.context) == (how == "entropy")
    assert torch.equal(torch.random.get_rng_state(), state)


def test_entropy_asks_where_the_student_is_least_sure(logits, select):
    places, asked = select(select="any").context, select(60, select="entropy").context.tolist()
    entropy = torch.distributions.Categorical(logits=logits[tuple(places.T)]).entropy()
    chosen = torch.tensor([place in asked for place in places.tolist()])
    assert len(asked) == chosen.sum() == 60
    assert entropy[chosen].min() >= entropy[~chosen].max() - 1e-5


def test_fewer_queries_are_among_more_in_the_order_of_rows(select):
    few, more = (select(count).context.tolist() for count in (20, 90))
    assert len(few) < len(more)
    assert all(place in more for place in few)
    assert more == sorted(more)


def test_a_student_that_knows_everything_asks_nothing(many, logits, select):
    known = torch.cat([many.ids[:, :1], logits.argmax(-1)[:, :-1]], 1)
    assert len(select(50, rows=Encoded(known, many.segment, many.hidden))) == 0
