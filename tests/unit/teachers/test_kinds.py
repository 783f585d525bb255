"""One user changes one teacher of any kind: what is computed for a shard depends on it alone, to the last bit."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from rayprivacy.core.errors import ConfigError
from rayprivacy.models.adapters import HeadAdapter, next_token_loss
from rayprivacy.models.features import Encoded, Queries, encode
from rayprivacy.models.layers import lower_trunk
from rayprivacy.release.votes import SCALE, VoteMechanism
from rayprivacy.teachers.head_kinds import FILLED, State
from rayprivacy.teachers.lora_kind import LoraKind
from rayprivacy.teachers.settings import TeachersConfig
from rayprivacy.teachers.square_kind import Adam, SquareKind
from rayprivacy.teachers.votes import summed_votes

pytestmark = pytest.mark.usefixtures("one_thread")  # as in a teacher actor
TEACHERS, CANDIDATES, QUERIES, ROW = 6, 8, 70, 32
Make = Callable[..., SquareKind]


@pytest.fixture(scope="module")
def make(tiny_basis, tiny_backbone):
    draw = torch.Generator().manual_seed(8)
    warm = HeadAdapter(tiny_basis, torch.randn(12, 16, generator=draw) / 30)
    config = TeachersConfig(count=TEACHERS, max_tokens=30, row_tokens=ROW, batch=16, learning_rate=2e-2)

    def kind(rank=16, max_steps=30):
        changed = config.model_copy(update={"rank": rank, "max_steps": max_steps})
        return SquareKind(changed, warm, tiny_backbone.head)

    return kind


@dataclass(frozen=True)
class World:
    """Six shards of different length, the last of them empty; their teachers, and what these are asked."""

    kind: SquareKind
    shards: list[Encoded]
    trained: State
    queries: Queries
    mechanism: VoteMechanism

    def votes(self, teachers=None, queries=None):
        """The sum of some teachers' votes, or of all."""
        state = self.trained if teachers is None else picked(self.trained, teachers)
        return summed_votes(self.kind, state, queries or self.queries, self.mechanism)

    def answers(self, state):
        return torch.cat(list(self.kind.answers(state, self.queries)))


@pytest.fixture(scope="module")
def world(make, tiny_backbone, tiny_features, public_sentences, asked):
    kind, shards = make(), []
    for shard in range(TEACHERS - 1):
        documents = [tiny_backbone.document(text, 30) for text in public_sentences[shard : shard + 1 + shard % 3]]
        shards.append(encode(tiny_backbone, documents, ROW, 4))
    shards.append(Encoded.empty(ROW, 64))
    queries = asked(tiny_features.hidden[:QUERIES].float(), torch.zeros(QUERIES, 2, dtype=torch.int64))
    logits = (kind.warm(queries.hidden) @ kind.head.T).gather(1, queries.candidates)
    queries = replace(queries, centre=logits.masked_fill(~queries.allowed, -torch.inf).softmax(-1))
    mechanism = VoteMechanism(queries=QUERIES, candidates=CANDIDATES, teachers=TEACHERS, sigma=1.0)
    return World(kind, shards, kind.train(shards), queries, mechanism)


def random_shard(seed, rows):
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(400, (rows, ROW), generator=draw)
    return Encoded(ids, torch.zeros_like(ids), torch.randn(rows, ROW, 64, generator=draw).bfloat16())


def changed(shard, change):
    return Encoded(shard.ids, shard.segment, change(shard.hidden))


def picked(state, teachers):
    return {name: tensor[teachers] for name, tensor in state.items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def loss(kind, matrix, hidden, targets):
    hidden = kind.warm(hidden)
    logits = hidden @ kind.head.T + kind.inward(hidden) @ matrix @ kind.columns.T
    return torch.nn.functional.cross_entropy(logits[:, kind._shortlist], targets)


@pytest.mark.parametrize("teacher", range(TEACHERS))
def test_a_teacher_does_not_depend_on_the_other_shards(teacher, world):
    others = [
        [random_shard(seed, 1 + 7 * seed) for seed in range(TEACHERS)],
        [Encoded.empty(ROW, 64)] * TEACHERS,
        [changed(shard, lambda hidden: hidden * 1e9) for shard in world.shards],
        [changed(shard, lambda hidden: torch.full_like(hidden, math.nan)) for shard in world.shards],
        [changed(shard, lambda hidden: torch.full_like(hidden, math.inf)) for shard in world.shards],
    ]
    for stack in others:
        stack = [*stack]
        stack[teacher] = world.shards[teacher]
        assert same(picked(world.kind.train(stack), [teacher]), picked(world.trained, [teacher]))


@pytest.mark.parametrize("rank", [3, 10, 16])
def test_very_skewed_shards_train_the_same_teacher_in_any_slot_and_company(make, rank):
    kind, rows = make(rank), (0, 1, 2, 5, 90, 1, 40)
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


def test_a_teacher_works_as_long_as_its_own_data_asks(make, monkeypatch):
    kind, steps, real = make(), [], Adam.step
    monkeypatch.setattr(Adam, "step", lambda self: (steps.append(1), real(self))[1])
    for rows, wanted in ((0, 0), (1, None), (3, None), (200, 30)):
        steps.clear()
        shard = random_shard(rows, rows)
        kind.train([shard])
        assert len(steps) == min(30, math.ceil(4 * len(kind._usable(shard.examples)) / 16))
        assert wanted in (None, len(steps))
    # Examples that no step reaches change nothing.
    kind, long = make(max_steps=2), random_shard(4, 40)  # 2 steps of 16 examples
    tail = changed(long, lambda hidden: torch.cat([hidden[:10], torch.full_like(hidden[10:], math.nan)]))
    assert same(kind.train([long]), kind.train([tail]))


def test_training_is_adamw_on_the_cross_entropy(make):
    kind, shard = make(max_steps=6), random_shard(1, 3)
    examples = kind._usable(shard.examples)
    matrix = kind.start().requires_grad_()
    optimizer = torch.optim.AdamW([matrix], lr=2e-2, betas=(0.9, 0.95), weight_decay=0.0)
    for step in range(6):
        take = (torch.arange(16) + 16 * step) % len(examples)
        optimizer.zero_grad()
        loss(kind, matrix, examples.hidden[take], examples.targets[take]).backward()
        optimizer.step()
    found = kind.train([shard])
    assert len(examples) > 16
    assert (found["matrix"][0] - matrix).abs().max() < 2e-3, "twenty of these are one step"


def test_training_is_repeatable_and_draws_nothing_from_the_global_generator(world):
    before = torch.random.get_rng_state()
    assert same(world.kind.train(world.shards), world.trained)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not any(tensor.requires_grad for tensor in world.trained.values())


def test_an_empty_shard_votes_the_students_centre_exactly(world):
    answers = world.answers({"matrix": world.kind.start()[None]})[:, 0]
    assert (answers - world.queries.centre).abs().max() < 1e-6, "who learnt nothing yet is the public student"
    assert world.trained[FILLED].tolist() == [True] * 5 + [False]
    votes = world.votes([5])
    assert np.array_equal(votes, np.rint(world.queries.centre.numpy() * np.float32(SCALE)).astype(np.int64))
    rest = world.votes([0, 1, 2, 3, 4])
    assert np.abs(world.votes() - rest - votes).max() <= TEACHERS, "a block of five may round the last bit differently"
    # Centred votes are measured from it.
    centred = replace(world, mechanism=replace(world.mechanism, clip=0.1))
    assert not centred.votes([5]).any()
    votes = centred.votes()
    assert np.abs(votes).max() > 1000
    assert np.linalg.norm(votes, axis=1).max() <= TEACHERS * (0.1 * SCALE + CANDIDATES)
    centred.mechanism.check(votes)


def test_a_nan_shard_votes_the_constant_and_moves_nobody_else(world, tiny_basis):
    stack, rest = [*world.shards], [0, 2, 3, 4, 5]
    stack[1] = changed(stack[1], lambda hidden: hidden.index_fill(2, torch.tensor([3]), math.nan))
    again = world.kind.train(stack)
    assert again["matrix"][1].isnan().any()
    assert same(picked(again, rest), picked(world.trained, rest))
    votes = replace(world, trained=again).votes()
    own = votes - world.votes() + world.votes([1])
    assert np.abs(own - round(SCALE / CANDIDATES)).max() <= 1, "only its own vote has changed"
    world.mechanism.check(votes)
    # A shard whose targets are all off the shortlist counts as empty.
    outside = torch.tensor(sorted(set(range(400)) - set(tiny_basis.shortlist.tolist())))
    stack = [*world.shards]
    stack[2] = replace(stack[2], ids=outside[stack[2].ids % len(outside)])
    again = world.kind.train(stack)
    assert not again[FILLED][2]
    assert same(picked(again, [0, 1, 3, 4, 5]), picked(world.trained, [0, 1, 3, 4, 5]))


def _naive(world, state):
    """Each teacher by itself, each query by itself, in float64."""
    kind, queries = world.kind, world.queries
    total = np.zeros((len(queries), CANDIDATES), dtype=np.int64)
    for place, filled in enumerate(state[FILLED].tolist()):
        matrix = state["matrix"][place].double()
        for query in range(len(queries)):
            hidden = kind.warm(queries.hidden[query : query + 1])
            moved = (kind.inward(hidden).double() @ matrix)[0]
            token = queries.candidates[query]
            logits = kind.head[token].double() @ hidden[0].double() + kind.columns[token].double() @ moved
            logits[~queries.allowed[query]] = -torch.inf
            answer = torch.softmax(logits, 0) if filled else queries.centre[query]
            total[query] += world.mechanism.quantise(answer.numpy())
    return total


def test_votes_are_the_sum_of_every_teachers_own_quantised_softmax(world):
    votes, masked = world.votes(), ~world.queries.allowed.numpy()
    assert votes.dtype == np.int64
    assert np.abs(votes - _naive(world, world.trained)).max() <= TEACHERS * 16, "float32 against float64"
    public = _naive(world, picked(world.trained, [5] * TEACHERS))
    assert np.abs(votes - public).max() > 1000 * TEACHERS, "the teachers vote their own mind"
    assert masked.any()
    assert (votes[masked] == 0).all()
    assert (np.abs(votes.sum(1) - TEACHERS * SCALE) <= TEACHERS * CANDIDATES).all()
    world.mechanism.check(votes)


@pytest.mark.parametrize("teacher", range(TEACHERS - 1))
def test_a_vote_does_not_depend_on_what_the_neighbours_vote(teacher, world):
    calm = world.answers(world.trained)
    for value in (math.nan, math.inf, 1e30, 0.0):
        noisy = torch.full_like(world.trained["matrix"], value)
        noisy[teacher] = world.trained["matrix"][teacher]
        assert torch.equal(world.answers({"matrix": noisy})[:, teacher], calm[:, teacher])


@pytest.mark.parametrize("size", [32, 64, 96])
def test_batches_of_queries_do_not_change_the_sums(size, world):
    parts = [world.votes(queries=world.queries.rows(at, at + size)) for at in range(0, QUERIES, size)]
    assert np.array_equal(np.concatenate(parts), world.votes())


def test_a_query_does_not_depend_on_the_other_queries(world):
    queries, whole = world.queries, world.votes()
    hidden, candidates = torch.full_like(queries.hidden, math.nan), queries.candidates.flip(0)
    hidden[17], candidates[17] = queries.hidden[17], queries.candidates[17]
    broken = replace(queries, hidden=hidden, candidates=candidates)
    again, own = world.votes(queries=broken), world.votes([5], broken)
    assert np.array_equal(again[17], whole[17])
    assert np.array_equal(again[18], 5 * round(SCALE / CANDIDATES) + own[18])


def test_the_rank_may_be_less_than_that_of_the_bases(make, world):
    for rank in (5, 40):
        kind = make(rank)
        (answers, *_) = kind.answers(kind.train([random_shard(1, 2)]), world.queries)
        assert answers.shape == (32, 1, CANDIDATES)
        assert kind.columns.shape[1] == min(rank, 16)


ROW_TOKENS = 64
LORA = TeachersConfig(kind="lora", rank=4, row_tokens=ROW_TOKENS, batch=2 * ROW_TOKENS, epochs=12.0, learning_rate=2e-2)


@pytest.fixture(scope="module")
def public_rows(tiny_backbone, public_sentences):
    """Twelve rows, more than one call of the trunk takes."""
    rows = encode(tiny_backbone, [tiny_backbone.document(text, 40) for text in public_sentences * 5], ROW_TOKENS, 12)
    assert len(rows) == 12
    return rows


@dataclass(frozen=True)
class LoraWorld:
    """Four shards of different length; the third is empty, and has no width, as one that nobody fell into."""

    kind: LoraKind
    shards: list[Encoded]
    state: State
    queries: Queries

    def answers(self, state=None, queries=None):
        return list(self.kind.answers(state or self.state, queries or self.queries))


@pytest.fixture(scope="module", params=[(1, 1), (None, 0)], ids=["last layer", "all layers"])
def lora(request, tiny_backbone, public_rows, public_sentences, asked):
    layers, cut = request.param
    kind = LoraKind(tiny_backbone, LORA.model_copy(update={"layers": layers}), public_rows)
    assert kind.cut == cut
    trunk = lower_trunk(tiny_backbone, cut)

    def shard(first, last):
        documents = [tiny_backbone.document(text, 40) for text in public_sentences[first:last]]
        return encode(tiny_backbone, documents, ROW_TOKENS, 8, trunk)

    shards = [shard(0, 1), shard(1, 6), Encoded.empty(ROW_TOKENS, 0), shard(6, 8)]
    context = public_rows.predicts.nonzero()
    context = context[torch.randperm(len(context), generator=torch.Generator().manual_seed(5))[:QUERIES]]
    queries = asked(public_rows.hidden[context[:, 0], context[:, 1]].float(), context)
    return LoraWorld(kind, shards, kind.train(shards), queries)


@pytest.mark.parametrize("teacher", [0, 1, 3])
def test_a_lora_teacher_does_not_depend_on_the_other_shards(teacher, lora):
    worlds: list[Sequence[Encoded]] = [
        [Encoded.empty(ROW_TOKENS, 64)] * 4,
        lora.shards[::-1],
        [Encoded(shard.ids, shard.segment, torch.full_like(shard.hidden, math.nan)) for shard in lora.shards],
    ]
    for others in worlds:
        again = lora.kind.train([*others[:teacher], lora.shards[teacher], *others[teacher + 1 :]])
        assert same(picked(again, [teacher]), picked(lora.state, [teacher]))


def test_the_state_says_who_had_text_and_leaves_the_base_alone(lora, tiny_backbone, public_rows):
    state, start = lora.state, lora.kind._upper.start
    assert state[FILLED].tolist() == [True, True, False, True]
    assert all(len(tensor) == 4 and tensor.is_contiguous() for tensor in state.values())
    assert same({name: state[name][2] for name in start}, start), "an empty shard keeps the public start"
    assert not same({name: state[name][0] for name in start}, start)
    assert not any(parameter.requires_grad for parameter in tiny_backbone.model.parameters())
    assert not any("lora" in name for name, _ in tiny_backbone.model.named_modules())
    queries = lora.queries
    logits = torch.einsum("qw,qkw->qk", queries.hidden, tiny_backbone.head[queries.candidates])
    expected = torch.softmax(logits.masked_fill(~queries.allowed, -torch.inf), -1)
    assert torch.allclose(torch.cat(lora.answers())[:, 2], expected, atol=1e-5)
    # Another process would train the same teachers.
    torch.manual_seed(99)
    before = torch.random.get_rng_state()
    assert same(LoraKind(tiny_backbone, lora.kind._config, public_rows).train(lora.shards), lora.state)
    assert torch.equal(torch.random.get_rng_state(), before), "nothing is drawn from the process's own generator"


def test_a_teacher_expects_its_own_text_more_than_the_base_does(lora, tiny_backbone):
    upper = lora.kind._upper

    @torch.no_grad()
    def nll(tensors, shard):
        upper.load({name: tensors[name] for name in upper.start})
        return float(next_token_loss(upper.states(shard), shard, tiny_backbone.head))

    for number in (0, 1, 3):
        shard = lora.shards[number]
        assert nll({name: tensor[number] for name, tensor in lora.state.items()}, shard) < 0.9 * nll(upper.start, shard)


def test_an_answer_is_that_of_the_tuned_model_read_as_a_whole(lora, public_rows, tiny_backbone):
    answers, queries, upper = torch.cat(lora.answers()), lora.queries, lora.kind._upper
    assert answers.dtype == torch.float32
    assert not answers.transpose(1, 2)[~queries.allowed].any()
    upper.load({name: lora.state[name][1] for name in upper.start})
    merged = upper.merged()
    for number in (0, 31, 69):
        row, position = queries.context[number].tolist()
        inside = public_rows.segment[row] == public_rows.segment[row, position]
        ids = public_rows.ids[row][inside & (torch.arange(ROW_TOKENS) <= position)]
        below = lower_trunk(tiny_backbone, lora.kind.cut)(input_ids=ids[None], use_cache=False).last_hidden_state
        with torch.no_grad():
            final = merged(inputs_embeds=below.bfloat16().float(), use_cache=False).last_hidden_state[0, -1]
        logits = tiny_backbone.head[queries.candidates[number]] @ final
        expected = torch.softmax(logits.masked_fill(~queries.allowed[number], -torch.inf), -1)
        assert torch.allclose(answers[number, 1], expected, atol=1e-4)


def test_neither_other_queries_nor_other_teachers_change_an_answer(lora):
    whole = torch.cat(lora.answers())
    parts = [lora.queries.rows(at, min(at + 32, QUERIES)) for at in (0, 32, 64)]
    assert torch.equal(torch.cat([block for part in parts for block in lora.answers(queries=part)]), whole)
    broken = {name: tensor.clone() for name, tensor in lora.state.items()}
    for name in lora.kind._upper.start:
        broken[name][0] = math.nan
    again = torch.cat(lora.answers(broken))
    assert torch.equal(again[:, 1:], whole[:, 1:])
    assert again[:, 0].isnan().any(), "a teacher that diverged says so"


def test_lora_keeps_the_names_of_peft_and_takes_no_more_layers_than_the_base_has(tiny_backbone, public_rows):
    one, many = (TeachersConfig(kind="lora", layers=layers, row_tokens=ROW_TOKENS) for layers in (1, 3))
    start = LoraKind(tiny_backbone, one, public_rows)._upper.start
    assert start["base_model.model.layers.0.self_attn.q_proj.lora_A.weight"].shape == (8, 64)
    assert len(start) == 14, "two matrices for each of the seven linear maps of a layer"
    with pytest.raises(ConfigError, match=r"layers is 3 and model\.base has 2 of them: choose 1 to 2"):
        LoraKind(tiny_backbone, many, public_rows)
