"""Teachers that train layers: each depends on its own shard alone, learns it, and answers from the public rows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from rayprivacy.core.errors import ConfigError
from rayprivacy.models.adapters import next_token_loss
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.features import Encoded, Queries, encode
from rayprivacy.models.layers import lower_trunk
from rayprivacy.teachers.head_kinds import FILLED, State
from rayprivacy.teachers.lora_kind import LoraKind
from rayprivacy.teachers.settings import TeachersConfig

pytestmark = pytest.mark.usefixtures("one_thread")  # as in a teacher actor

ROW_TOKENS, CANDIDATES, QUERIES = 64, 8, 70
CONFIG = TeachersConfig(
    kind="lora", rank=4, row_tokens=ROW_TOKENS, batch=2 * ROW_TOKENS, epochs=12.0, learning_rate=2e-2
)


@pytest.fixture(scope="module")
def public_rows(tiny_backbone: Backbone, public_sentences: list[str]) -> Encoded:
    """Twelve rows, more than one call of the trunk takes."""
    rows = encode(tiny_backbone, [tiny_backbone.document(text, 40) for text in public_sentences * 5], ROW_TOKENS, 12)
    assert len(rows) == 12
    return rows


@dataclass(frozen=True)
class World:
    """Four shards of different length; the third is empty, and has no width, as one that nobody fell into."""

    kind: LoraKind
    shards: list[Encoded]
    state: State
    queries: Queries

    def answers(self, state: State | None = None, queries: Queries | None = None) -> list[torch.Tensor]:
        return list(self.kind.answers(state or self.state, queries or self.queries))


@pytest.fixture(scope="module", params=[(1, 1), (None, 0)], ids=["last layer", "all layers"])
def world(
    request: pytest.FixtureRequest, tiny_backbone: Backbone, public_rows: Encoded, public_sentences: Any, asked: Any
) -> World:
    layers, cut = request.param
    kind = LoraKind(tiny_backbone, CONFIG.model_copy(update={"layers": layers}), public_rows)
    assert kind.cut == cut
    trunk = lower_trunk(tiny_backbone, cut)

    def shard(first: int, last: int) -> Encoded:
        documents = [tiny_backbone.document(text, 40) for text in public_sentences[first:last]]
        return encode(tiny_backbone, documents, ROW_TOKENS, 8, trunk)

    shards = [shard(0, 1), shard(1, 6), Encoded.empty(ROW_TOKENS, 0), shard(6, 8)]
    context = public_rows.predicts.nonzero()
    context = context[torch.randperm(len(context), generator=torch.Generator().manual_seed(5))[:QUERIES]]
    queries = asked(public_rows.hidden[context[:, 0], context[:, 1]].float(), context)
    return World(kind, shards, kind.train(shards), queries)


def _teacher(state: State, number: int) -> State:
    return {name: tensor[number] for name, tensor in state.items()}


def _same(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("teacher", [0, 1, 3])
def test_a_teacher_does_not_depend_on_the_other_shards(teacher: int, world: World) -> None:
    worlds: list[Sequence[Encoded]] = [
        [Encoded.empty(ROW_TOKENS, 64)] * 4,
        world.shards[::-1],
        [Encoded(shard.ids, shard.segment, torch.full_like(shard.hidden, math.nan)) for shard in world.shards],
    ]
    for others in worlds:
        again = world.kind.train([*others[:teacher], world.shards[teacher], *others[teacher + 1 :]])
        assert _same(_teacher(again, teacher), _teacher(world.state, teacher))


def test_another_process_would_train_the_same_teachers(
    world: World, tiny_backbone: Backbone, public_rows: Encoded
) -> None:
    torch.manual_seed(99)
    before = torch.random.get_rng_state()
    assert _same(LoraKind(tiny_backbone, world.kind._config, public_rows).train(world.shards), world.state)
    assert torch.equal(torch.random.get_rng_state(), before), "nothing is drawn from the process's own generator"


def test_the_state_says_who_had_text_and_leaves_the_base_alone(world: World, tiny_backbone: Backbone) -> None:
    state, start = world.state, world.kind._upper.start
    assert state[FILLED].tolist() == [True, True, False, True]
    assert all(len(tensor) == 4 and tensor.is_contiguous() for tensor in state.values())
    assert _same({name: state[name][2] for name in start}, start), "an empty shard keeps the public start"
    assert not _same({name: state[name][0] for name in start}, start)
    assert not any(parameter.requires_grad for parameter in tiny_backbone.model.parameters())
    assert not any("lora" in name for name, _ in tiny_backbone.model.named_modules())


def test_a_teacher_expects_its_own_text_more_than_the_base_does(world: World, tiny_backbone: Backbone) -> None:
    upper = world.kind._upper

    @torch.no_grad()
    def nll(tensors: State, shard: Encoded) -> float:
        upper.load({name: tensors[name] for name in upper.start})
        return float(next_token_loss(upper.states(shard), shard, tiny_backbone.head))

    for number in (0, 1, 3):
        shard = world.shards[number]
        assert nll(_teacher(world.state, number), shard) < 0.9 * nll(upper.start, shard)


def test_answers_are_distributions_over_the_allowed_candidates(world: World) -> None:
    blocks = world.answers()
    assert [block.shape for block in blocks] == [(32, 4, CANDIDATES), (32, 4, CANDIDATES), (6, 4, CANDIDATES)]
    answers = torch.cat(blocks)
    assert answers.dtype == torch.float32
    assert torch.allclose(answers.sum(-1), torch.ones(QUERIES, 4), atol=1e-5)
    assert not answers.transpose(1, 2)[~world.queries.allowed].any()


def test_an_answer_is_that_of_the_tuned_model_read_as_a_whole(
    world: World, public_rows: Encoded, tiny_backbone: Backbone
) -> None:
    answers, queries, upper = torch.cat(world.answers()), world.queries, world.kind._upper
    upper.load({name: world.state[name][1] for name in upper.start})
    merged = upper.merged()
    for number in (0, 31, 69):
        row, position = queries.context[number].tolist()
        inside = public_rows.segment[row] == public_rows.segment[row, position]
        ids = public_rows.ids[row][inside & (torch.arange(ROW_TOKENS) <= position)]
        below = lower_trunk(tiny_backbone, world.kind.cut)(input_ids=ids[None], use_cache=False).last_hidden_state
        with torch.no_grad():
            final = merged(inputs_embeds=below.bfloat16().float(), use_cache=False).last_hidden_state[0, -1]
        logits = tiny_backbone.head[queries.candidates[number]] @ final
        expected = torch.softmax(logits.masked_fill(~queries.allowed[number], -torch.inf), -1)
        assert torch.allclose(answers[number, 1], expected, atol=1e-4)


def test_an_empty_shard_answers_as_the_public_model(world: World, tiny_backbone: Backbone) -> None:
    queries = world.queries
    logits = torch.einsum("qw,qkw->qk", queries.hidden, tiny_backbone.head[queries.candidates])
    expected = torch.softmax(logits.masked_fill(~queries.allowed, -torch.inf), -1)
    assert torch.allclose(torch.cat(world.answers())[:, 2], expected, atol=1e-5)


def test_neither_other_queries_nor_other_teachers_change_an_answer(world: World) -> None:
    whole = torch.cat(world.answers())
    parts = [world.queries.rows(at, min(at + 32, QUERIES)) for at in (0, 32, 64)]
    assert torch.equal(torch.cat([block for part in parts for block in world.answers(queries=part)]), whole)
    broken = {name: tensor.clone() for name, tensor in world.state.items()}
    for name in world.kind._upper.start:
        broken[name][0] = math.nan
    again = torch.cat(world.answers(broken))
    assert torch.equal(again[:, 1:], whole[:, 1:])
    assert again[:, 0].isnan().any(), "a teacher that diverged says so"


def test_lora_keeps_the_names_of_peft_and_takes_no_more_layers_than_the_base_has(
    tiny_backbone: Backbone, public_rows: Encoded
) -> None:
    one, many = (TeachersConfig(kind="lora", layers=layers, row_tokens=ROW_TOKENS) for layers in (1, 3))
    start = LoraKind(tiny_backbone, one, public_rows)._upper.start
    assert start["base_model.model.layers.0.self_attn.q_proj.lora_A.weight"].shape == (8, 64)
    assert len(start) == 14, "two matrices for each of the seven linear maps of a layer"
    with pytest.raises(ConfigError, match=r"layers is 3 and model\.base has 2 of them: choose 1 to 2"):
        LoraKind(tiny_backbone, many, public_rows)
