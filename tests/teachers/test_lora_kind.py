"""Teachers that train layers: each depends on its own shard alone, learns it, and answers from the public rows."""

import math
from collections.abc import Sequence

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
LAYERS = {"last layer": (1, 1), "all layers": (None, 0)}


@pytest.fixture(scope="module")
def public_rows(tiny_backbone: Backbone, public_sentences: list[str]) -> Encoded:
    """Twelve rows, more than one call of the trunk takes."""
    documents = [tiny_backbone.document(text, 40) for text in public_sentences * 5]
    rows = encode(tiny_backbone, documents, ROW_TOKENS, 12)
    assert len(rows) == 12
    return rows


@pytest.fixture(scope="module", params=LAYERS.values(), ids=LAYERS.keys())
def kind(request: pytest.FixtureRequest, tiny_backbone: Backbone, public_rows: Encoded) -> LoraKind:
    layers, cut = request.param
    config = TeachersConfig(
        kind="lora",
        layers=layers,
        rank=4,
        row_tokens=ROW_TOKENS,
        batch=2 * ROW_TOKENS,
        epochs=12.0,
        learning_rate=2e-2,
    )
    built = LoraKind(tiny_backbone, config, public_rows)
    assert built.cut == cut
    return built


@pytest.fixture(scope="module")
def shards(kind: LoraKind, tiny_backbone: Backbone, public_sentences: list[str]) -> list[Encoded]:
    """Four shards of different length; the third is empty, and has no width, as one that nobody fell into."""
    trunk = lower_trunk(tiny_backbone, kind.cut)

    def shard(first: int, last: int) -> Encoded:
        documents = [tiny_backbone.document(text, 40) for text in public_sentences[first:last]]
        return encode(tiny_backbone, documents, ROW_TOKENS, 8, trunk)

    return [shard(0, 1), shard(1, 6), Encoded.empty(ROW_TOKENS, 0), shard(6, 8)]


@pytest.fixture(scope="module")
def state(kind: LoraKind, shards: list[Encoded]) -> State:
    return kind.train(shards)


@pytest.fixture(scope="module")
def queries(public_rows: Encoded) -> Queries:
    draw = torch.Generator().manual_seed(5)
    context = public_rows.predicts.nonzero()
    context = context[torch.randperm(len(context), generator=draw)[:QUERIES]]
    candidates = torch.stack([torch.randperm(400, generator=draw)[:CANDIDATES] for _ in range(QUERIES)])
    allowed = torch.rand(QUERIES, CANDIDATES, generator=draw) < 0.7
    allowed[:, 0] = True
    hidden = public_rows.hidden[context[:, 0], context[:, 1]].float()
    return Queries(hidden, candidates, allowed, allowed / allowed.sum(1, keepdim=True), context)


def _teacher(state: State, number: int) -> State:
    return {name: tensor[number] for name, tensor in state.items()}


def _same(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("teacher", [0, 1, 3])
def test_a_teacher_does_not_depend_on_the_other_shards(
    teacher: int, kind: LoraKind, shards: list[Encoded], state: State
) -> None:
    worlds: list[Sequence[Encoded]] = [
        [Encoded.empty(ROW_TOKENS, 64)] * 4,
        shards[::-1],
        [Encoded(shard.ids, shard.segment, torch.full_like(shard.hidden, math.nan)) for shard in shards],
    ]
    for world in worlds:
        again = kind.train([*world[:teacher], shards[teacher], *world[teacher + 1 :]])
        assert _same(_teacher(again, teacher), _teacher(state, teacher))


def test_another_process_would_train_the_same_teachers(
    kind: LoraKind, shards: list[Encoded], state: State, tiny_backbone: Backbone, public_rows: Encoded
) -> None:
    torch.manual_seed(99)
    before = torch.random.get_rng_state()
    assert _same(LoraKind(tiny_backbone, kind._config, public_rows).train(shards), state)
    assert torch.equal(torch.random.get_rng_state(), before), "nothing is drawn from the process's own generator"


def test_the_state_says_who_had_text_and_leaves_the_base_alone(
    kind: LoraKind, state: State, shards: list[Encoded], tiny_backbone: Backbone
) -> None:
    assert state[FILLED].tolist() == [True, True, False, True]
    assert all(len(tensor) == len(shards) and tensor.is_contiguous() for tensor in state.values())
    start = kind._upper.start
    assert _same({name: state[name][2] for name in start}, start), "an empty shard keeps the public start"
    assert not _same({name: state[name][0] for name in start}, start)
    assert not any(parameter.requires_grad for parameter in tiny_backbone.model.parameters())
    assert not any("lora" in name for name, _ in tiny_backbone.model.named_modules())


def _nll(kind: LoraKind, tensors: State, shard: Encoded, head: torch.Tensor) -> float:
    kind._upper.load({name: tensors[name] for name in kind._upper.start})
    with torch.no_grad():
        return float(next_token_loss(kind._upper.states(shard), shard, head))


def test_a_teacher_expects_its_own_text_more_than_the_base_does(
    kind: LoraKind, state: State, shards: list[Encoded], tiny_backbone: Backbone
) -> None:
    for number in (0, 1, 3):
        before = _nll(kind, kind._upper.start, shards[number], tiny_backbone.head)
        assert _nll(kind, _teacher(state, number), shards[number], tiny_backbone.head) < 0.9 * before


def test_answers_are_distributions_over_the_allowed_candidates(kind: LoraKind, state: State, queries: Queries) -> None:
    blocks = list(kind.answers(state, queries))
    assert [block.shape for block in blocks] == [(32, 4, CANDIDATES), (32, 4, CANDIDATES), (6, 4, CANDIDATES)]
    answers = torch.cat(blocks)
    assert answers.dtype == torch.float32
    assert torch.allclose(answers.sum(-1), torch.ones(QUERIES, 4), atol=1e-5)
    assert not answers.transpose(1, 2)[~queries.allowed].any()


def test_an_answer_is_that_of_the_tuned_model_read_as_a_whole(
    kind: LoraKind, state: State, queries: Queries, public_rows: Encoded, tiny_backbone: Backbone
) -> None:
    answers = torch.cat(list(kind.answers(state, queries)))
    kind._upper.load({name: state[name][1] for name in kind._upper.start})
    merged = kind._upper.merged()
    for number in (0, 31, 69):
        row, position = queries.context[number].tolist()
        inside = public_rows.segment[row] == public_rows.segment[row, position]
        ids = public_rows.ids[row][inside & (torch.arange(ROW_TOKENS) <= position)]
        below = lower_trunk(tiny_backbone, kind.cut)(input_ids=ids[None], use_cache=False).last_hidden_state
        with torch.no_grad():
            final = merged(inputs_embeds=below.bfloat16().float(), use_cache=False).last_hidden_state[0, -1]
        logits = tiny_backbone.head[queries.candidates[number]] @ final
        expected = torch.softmax(logits.masked_fill(~queries.allowed[number], -torch.inf), -1)
        assert torch.allclose(answers[number, 1], expected, atol=1e-4)


def test_an_empty_shard_answers_as_the_public_model(
    kind: LoraKind, state: State, queries: Queries, tiny_backbone: Backbone
) -> None:
    logits = torch.einsum("qw,qkw->qk", queries.hidden, tiny_backbone.head[queries.candidates])
    expected = torch.softmax(logits.masked_fill(~queries.allowed, -torch.inf), -1)
    assert torch.allclose(torch.cat(list(kind.answers(state, queries)))[:, 2], expected, atol=1e-5)


def test_neither_other_queries_nor_other_teachers_change_an_answer(
    kind: LoraKind, state: State, queries: Queries
) -> None:
    whole = torch.cat(list(kind.answers(state, queries)))
    parts = [queries.rows(0, 32), queries.rows(32, 64), queries.rows(64, QUERIES)]
    assert torch.equal(torch.cat([block for part in parts for block in kind.answers(state, part)]), whole)
    broken = {name: tensor.clone() for name, tensor in state.items()}
    for name in kind._upper.start:
        broken[name][0] = math.nan
    again = torch.cat(list(kind.answers(broken, queries)))
    assert torch.equal(again[:, 1:], whole[:, 1:])
    assert again[:, 0].isnan().any(), "a teacher that diverged says so"


def test_lora_keeps_the_names_of_peft_and_the_public_steps(tiny_backbone: Backbone, public_rows: Encoded) -> None:
    config = TeachersConfig(kind="lora", layers=1, row_tokens=ROW_TOKENS)
    start = LoraKind(tiny_backbone, config, public_rows)._upper.start
    assert "base_model.model.layers.0.self_attn.q_proj.lora_A.weight" in start
    assert start["base_model.model.layers.0.self_attn.q_proj.lora_A.weight"].shape == (8, 64)
    assert len(start) == 14, "two matrices for each of the seven linear maps of a layer"


def test_more_layers_than_the_base_has_are_refused(tiny_backbone: Backbone, public_rows: Encoded) -> None:
    config = TeachersConfig(kind="lora", layers=3, row_tokens=ROW_TOKENS)
    with pytest.raises(ConfigError, match=r"layers is 3 and model\.base has 2 of them: choose 1 to 2"):
        LoraKind(tiny_backbone, config, public_rows)
