"""One user changes one teacher: what a stack computes for a shard depends on that shard alone, to the last bit."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from rayprivacy.models.adapters import Basis, HeadAdapter
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.features import Encoded, Queries, encode
from rayprivacy.release.votes import SCALE, VoteMechanism
from rayprivacy.teachers.head_kinds import FILLED, State
from rayprivacy.teachers.settings import TeachersConfig
from rayprivacy.teachers.square_kind import Adam, SquareKind
from rayprivacy.teachers.votes import summed_votes

pytestmark = pytest.mark.usefixtures("one_thread")  # as in a teacher actor

TEACHERS, CANDIDATES, QUERIES, ROW = 6, 8, 70, 32
Make = Callable[[int, int], SquareKind]


@pytest.fixture(scope="module")
def make(tiny_basis: Basis, tiny_backbone: Backbone) -> Make:
    draw = torch.Generator().manual_seed(8)
    warm = HeadAdapter(tiny_basis, torch.randn(12, 16, generator=draw) / 30)

    def kind(rank: int = 16, max_steps: int = 30) -> SquareKind:
        config = TeachersConfig(
            count=TEACHERS, max_tokens=30, row_tokens=ROW, rank=rank, batch=16,
            max_steps=max_steps, learning_rate=2e-2,
        )  # fmt: skip
        return SquareKind(config, warm, tiny_backbone.head)

    return kind


@pytest.fixture(scope="module")
def kind(make: Make) -> SquareKind:
    return make(16, 30)


@pytest.fixture(scope="module")
def shards(tiny_backbone: Backbone, public_sentences: list[str]) -> list[Encoded]:
    """Six shards of different length; the last is empty."""
    found = []
    for shard in range(TEACHERS - 1):
        documents = [tiny_backbone.document(text, 30) for text in public_sentences[shard : shard + 1 + shard % 3]]
        found.append(encode(tiny_backbone, documents, ROW, 4))
    return [*found, Encoded.empty(ROW, 64)]


@pytest.fixture(scope="module")
def trained(kind: SquareKind, shards: list[Encoded]) -> State:
    return kind.train(shards)


@pytest.fixture(scope="module")
def queries(kind: SquareKind, tiny_features: Queries) -> Queries:
    draw = torch.Generator().manual_seed(5)
    hidden = tiny_features.hidden[:QUERIES].float()
    candidates = torch.stack([torch.randperm(400, generator=draw)[:CANDIDATES] for _ in range(QUERIES)])
    allowed = torch.rand(QUERIES, CANDIDATES, generator=draw) < 0.7
    allowed[:, 0] = True
    logits = (kind.warm(hidden) @ kind.head.T).gather(1, candidates).masked_fill(~allowed, -torch.inf)
    return Queries(hidden, candidates, allowed, logits.softmax(-1), torch.zeros(QUERIES, 2, dtype=torch.int64))


@pytest.fixture(scope="module")
def mechanism() -> VoteMechanism:
    return VoteMechanism(queries=QUERIES, candidates=CANDIDATES, teachers=TEACHERS, sigma=1.0)


def random_shard(seed: int, rows: int) -> Encoded:
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(400, (rows, ROW), generator=draw)
    return Encoded(ids, torch.zeros_like(ids), torch.randn(rows, ROW, 64, generator=draw).bfloat16())


def changed(shard: Encoded, change: Callable[[torch.Tensor], torch.Tensor]) -> Encoded:
    return Encoded(shard.ids, shard.segment, change(shard.hidden))


def picked(state: State, teachers: list[int]) -> State:
    return {name: tensor[teachers] for name, tensor in state.items()}


def same(one: State, other: State) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("teacher", range(TEACHERS))
def test_a_teacher_does_not_depend_on_the_other_shards(
    teacher: int, kind: SquareKind, shards: list[Encoded], trained: State
) -> None:
    others = [
        [random_shard(seed, 1 + 7 * seed) for seed in range(TEACHERS)],
        [Encoded.empty(ROW, 64)] * TEACHERS,
        [changed(shard, lambda hidden: hidden * 1e9) for shard in shards],
        [changed(shard, lambda hidden: torch.full_like(hidden, math.nan)) for shard in shards],
        [changed(shard, lambda hidden: torch.full_like(hidden, math.inf)) for shard in shards],
    ]
    for stack in others:
        stack = [*stack]
        stack[teacher] = shards[teacher]
        assert same(picked(kind.train(stack), [teacher]), picked(trained, [teacher]))


@pytest.mark.parametrize("rank", [3, 10, 16])
def test_very_skewed_shards_train_the_same_teacher_in_any_slot_and_company(make: Make, rank: int) -> None:
    kind, rows = make(rank, 30), (0, 1, 2, 5, 90, 1, 40)
    stack = [random_shard(seed, size) for seed, size in enumerate(rows)]
    alone = [kind.train([shard]) for shard in stack]
    whole = kind.train(stack)
    assert len({len(shard.examples) for shard in stack}) > 5
    for turn in range(len(stack)):
        order = [(place + turn) % len(stack) for place in range(len(stack))]
        mixed = kind.train([stack[place] for place in order])
        for slot, place in enumerate(order):
            assert same(picked(mixed, [slot]), alone[place])
            assert same(picked(mixed, [slot]), picked(whole, [place]))


def test_a_teacher_works_as_long_as_its_own_data_asks(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, steps = make(16, 30), []
    real = Adam.step
    monkeypatch.setattr(Adam, "step", lambda self: (steps.append(1), real(self))[1])
    counts = []
    for rows in (0, 1, 3, 200):
        steps.clear()
        kind.train([random_shard(rows, rows)])
        counts.append(len(steps))
    usable = [len(kind._usable(random_shard(rows, rows).examples)) for rows in (0, 1, 3, 200)]
    assert counts == [min(30, math.ceil(4 * n / 16)) for n in usable]
    assert counts[0] == 0
    assert counts[-1] == 30


def test_examples_that_no_step_reaches_change_nothing(make: Make) -> None:
    kind, long = make(16, 2), random_shard(4, 40)  # 2 steps of 16 examples
    tail = changed(long, lambda hidden: torch.cat([hidden[:10], torch.full_like(hidden[10:], math.nan)]))
    assert same(kind.train([long]), kind.train([tail]))


def test_training_moves_every_teacher_that_has_text_and_lowers_its_loss(
    kind: SquareKind, shards: list[Encoded], trained: State
) -> None:
    for place, shard in enumerate(shards[:-1]):
        examples = kind._usable(shard.examples)
        hidden = kind.warm(examples.hidden)

        def loss(
            matrix: torch.Tensor, hidden: torch.Tensor = hidden, targets: torch.Tensor = examples.targets
        ) -> float:
            logits = hidden @ kind.head.T + kind.inward(hidden) @ matrix @ kind.columns.T
            return float(torch.nn.functional.cross_entropy(logits[:, kind._shortlist], targets))

        assert loss(trained["matrix"][place]) < loss(kind.start()) - 0.05


def test_training_is_adamw_on_the_cross_entropy(make: Make) -> None:
    kind, shard = make(16, 6), random_shard(1, 3)
    examples = kind._usable(shard.examples)
    matrix = kind.start().requires_grad_()
    optimizer = torch.optim.AdamW([matrix], lr=2e-2, betas=(0.9, 0.95), weight_decay=0.0)
    for step in range(6):
        take = (torch.arange(16) + 16 * step) % len(examples)
        hidden = kind.warm(examples.hidden[take])
        logits = hidden @ kind.head.T + kind.inward(hidden) @ matrix @ kind.columns.T
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(logits[:, kind._shortlist], examples.targets[take]).backward()
        optimizer.step()
    found = kind.train([shard])
    assert len(examples) > 16
    assert (found["matrix"][0] - matrix).abs().max() < 2e-3, "twenty of these are one step"


def test_training_is_repeatable_and_draws_nothing_from_the_global_generator(
    kind: SquareKind, shards: list[Encoded], trained: State
) -> None:
    before = torch.random.get_rng_state()
    assert same(kind.train(shards), trained)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not any(tensor.requires_grad for tensor in trained.values())


def test_a_teacher_that_learnt_nothing_yet_is_the_public_student(kind: SquareKind, queries: Queries) -> None:
    answers = torch.cat(list(kind.answers({"matrix": kind.start()[None]}, queries)))[:, 0]
    assert (answers - queries.centre).abs().max() < 1e-6


def test_an_empty_shard_votes_the_students_centre_exactly(
    kind: SquareKind, trained: State, queries: Queries, mechanism: VoteMechanism
) -> None:
    assert trained[FILLED].tolist() == [True] * 5 + [False]
    votes = summed_votes(kind, picked(trained, [5]), queries, mechanism)
    assert np.array_equal(votes, np.rint(queries.centre.numpy() * np.float32(SCALE)).astype(np.int64))
    rest = summed_votes(kind, picked(trained, [0, 1, 2, 3, 4]), queries, mechanism)
    whole = summed_votes(kind, trained, queries, mechanism)
    assert np.abs(whole - rest - votes).max() <= TEACHERS, "a block of five may round the last bit differently"


def test_centred_votes_are_measured_from_the_students_centre(
    kind: SquareKind, trained: State, queries: Queries
) -> None:
    centred = VoteMechanism(queries=QUERIES, candidates=CANDIDATES, teachers=TEACHERS, sigma=1.0, clip=0.1)
    assert not summed_votes(kind, picked(trained, [5]), queries, centred).any()
    votes = summed_votes(kind, trained, queries, centred)
    assert np.abs(votes).max() > 1000
    assert np.linalg.norm(votes, axis=1).max() <= TEACHERS * (0.1 * SCALE + CANDIDATES)
    centred.check(votes)


def test_a_shard_whose_targets_are_all_off_the_shortlist_counts_as_empty(
    kind: SquareKind, shards: list[Encoded], trained: State, tiny_basis: Basis
) -> None:
    outside = torch.tensor(sorted(set(range(400)) - set(tiny_basis.shortlist.tolist())))
    assert len(outside) == 200
    stack = [*shards]
    stack[2] = Encoded(outside[shards[2].ids % len(outside)], shards[2].segment, shards[2].hidden)
    again = kind.train(stack)
    assert not again[FILLED][2]
    assert same(picked(again, [0, 1, 3, 4, 5]), picked(trained, [0, 1, 3, 4, 5]))


def test_a_nan_shard_votes_the_constant_and_moves_nobody_else(
    kind: SquareKind, shards: list[Encoded], trained: State, queries: Queries, mechanism: VoteMechanism
) -> None:
    stack, rest = [*shards], [0, 2, 3, 4, 5]

    def broken(hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden.clone()
        hidden[..., 3] = math.nan
        return hidden

    stack[1] = changed(shards[1], broken)
    again = kind.train(stack)
    assert again["matrix"][1].isnan().any()
    assert same(picked(again, rest), picked(trained, rest))
    votes = summed_votes(kind, again, queries, mechanism)
    without = summed_votes(kind, trained, queries, mechanism)
    own = summed_votes(kind, picked(trained, [1]), queries, mechanism)
    assert np.abs(votes - without + own - round(SCALE / CANDIDATES)).max() <= 1, "only its own vote has changed"
    mechanism.check(votes)


def _naive(kind: SquareKind, state: State, queries: Queries, mechanism: VoteMechanism) -> np.ndarray:
    """Each teacher by itself, each query by itself, in float64."""
    total, columns, head = np.zeros((len(queries), mechanism.candidates), dtype=np.int64), kind.columns, kind.head
    for place, filled in enumerate(state[FILLED].tolist()):
        matrix = state["matrix"][place].double()
        for query in range(len(queries)):
            hidden = kind.warm(queries.hidden[query : query + 1])
            moved = (kind.inward(hidden).double() @ matrix)[0]
            token = queries.candidates[query]
            logits = head[token].double() @ hidden[0].double() + columns[token].double() @ moved
            logits[~queries.allowed[query]] = -torch.inf
            total[query] += mechanism.quantise((torch.softmax(logits, 0) if filled else queries.centre[query]).numpy())
    return total


def test_votes_are_the_sum_of_every_teachers_own_quantised_softmax(
    kind: SquareKind, trained: State, queries: Queries, mechanism: VoteMechanism
) -> None:
    votes = summed_votes(kind, trained, queries, mechanism)
    assert votes.dtype == np.int64
    assert np.abs(votes - _naive(kind, trained, queries, mechanism)).max() <= TEACHERS * 16, "float32 against float64"
    public = _naive(kind, picked(trained, [5] * TEACHERS), queries, mechanism)
    assert np.abs(votes - public).max() > 1000 * TEACHERS, "the teachers vote their own mind"


@pytest.mark.parametrize("teacher", range(TEACHERS - 1))
def test_a_vote_does_not_depend_on_what_the_neighbours_vote(
    teacher: int, kind: SquareKind, trained: State, queries: Queries
) -> None:
    calm = torch.cat(list(kind.answers(trained, queries)))
    for value in (math.nan, math.inf, 1e30, 0.0):
        noisy = torch.full_like(trained["matrix"], value)
        noisy[teacher] = trained["matrix"][teacher]
        assert torch.equal(torch.cat(list(kind.answers({"matrix": noisy}, queries)))[:, teacher], calm[:, teacher])


@pytest.mark.parametrize("size", [32, 64, 96])
def test_batches_of_queries_do_not_change_the_sums(
    size: int, kind: SquareKind, trained: State, queries: Queries, mechanism: VoteMechanism
) -> None:
    whole = summed_votes(kind, trained, queries, mechanism)
    parts = [
        summed_votes(kind, trained, queries.rows(at, at + size), mechanism) for at in range(0, QUERIES, size)
    ]  # fmt: skip
    assert np.array_equal(np.concatenate(parts), whole)


def test_a_query_does_not_depend_on_the_other_queries(
    kind: SquareKind, trained: State, queries: Queries, mechanism: VoteMechanism
) -> None:
    whole = summed_votes(kind, trained, queries, mechanism)
    hidden, candidates = torch.full_like(queries.hidden, math.nan), queries.candidates.flip(0)
    hidden[17], candidates[17] = queries.hidden[17], queries.candidates[17]
    broken = Queries(hidden, candidates, queries.allowed, queries.centre, queries.context)
    again = summed_votes(kind, trained, broken, mechanism)
    assert np.array_equal(again[17], whole[17])
    own = summed_votes(kind, picked(trained, [5]), broken, mechanism)
    assert np.array_equal(again[18], 5 * round(SCALE / CANDIDATES) + own[18])


def test_masked_candidates_get_nothing_and_each_query_sums_to_the_teachers(
    kind: SquareKind, trained: State, queries: Queries, mechanism: VoteMechanism
) -> None:
    votes = summed_votes(kind, trained, queries, mechanism)
    masked = ~queries.allowed.numpy()
    assert masked.any()
    assert (votes[masked] == 0).all()
    assert (np.abs(votes.sum(1) - TEACHERS * SCALE) <= TEACHERS * CANDIDATES).all()
    mechanism.check(votes)


def test_the_rank_may_be_less_than_that_of_the_bases(make: Make, queries: Queries) -> None:
    for rank in (5, 16, 40):
        kind = make(rank, 30)
        state = kind.train([random_shard(1, 2)])
        (answers, *_) = kind.answers(state, queries)
        assert answers.shape == (32, 1, CANDIDATES)
        assert kind.columns.shape[1] == min(rank, 16)
