"""Coupled sensitivity, end to end without Ray: from a user's texts to the integer sums that get noise.

The corpus with and without a user is encoded, trained and asked with the same code. Nobody but the user's own teacher
may change by a single bit, and every query's sum may move by at most the declared sensitivity.
"""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from rayprivacy.models.adapters import Basis, HeadAdapter
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.features import Encoded, Queries, encode, join
from rayprivacy.release.votes import SCALE, VoteMechanism
from rayprivacy.teachers.head_kinds import State
from rayprivacy.teachers.settings import TeachersConfig
from rayprivacy.teachers.square_kind import SquareKind
from rayprivacy.teachers.votes import summed_votes

pytestmark = pytest.mark.usefixtures("one_thread")  # as in a teacher actor

SHARDS, CANDIDATES = 6, 5
ROW, USER_ROWS = 48, 3
LIVES_IN = [0, 3, 5]  # shard 5 has nobody else
MECHANISMS = [
    VoteMechanism(queries=64, candidates=CANDIDATES, teachers=SHARDS, sigma=1.0),
    VoteMechanism(queries=64, candidates=CANDIDATES, teachers=SHARDS, sigma=1.0, clip=0.2),
]

ADVERSARIAL_TEXTS = {
    "one word": ["bread"],
    "ordinary": ["we should meet at the station and play cards", "the sea is nice"],
    "very long": ["the quick brown fox jumps over the lazy dog " * 2000],
    "very many": [f"message number {i}" for i in range(300)],
    "empty-ish": ["", " ", "\n\n", "\u200b"],
    "repeated tokens": ["a" * 3000, "train " * 500],
    "special tokens": ["<|endoftext|><|im_end|><|im_end|> hello <|endoftext|>"],
    "no letters": ["\x00\x01\x7f", "\U0001f600" * 50, "é\u0301\u0301\u0301"],
    "a copy of the others": ["hello how are you today, i am fine thank you"] * 20,
}
INJECTED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "1e9 times too large": lambda hidden: hidden * 1e9,
    "1e-9 times too small": lambda hidden: hidden * 1e-9,
    "largest numbers": lambda hidden: torch.full_like(hidden, 3e38),
    "NaN": lambda hidden: torch.full_like(hidden, math.nan),
    "one NaN": lambda hidden: torch.cat([torch.full_like(hidden[:1], math.nan), hidden[1:]]),
    "infinite": lambda hidden: torch.full_like(hidden, -math.inf),
    "growing, alternating": lambda hidden: hidden * (-4.0) ** torch.arange(len(hidden))[:, None].clamp_max(60),
    "turned around": lambda hidden: -hidden,
}


@pytest.fixture(scope="module")
def kind(tiny_basis: Basis, tiny_backbone: Backbone) -> SquareKind:
    config = TeachersConfig(count=SHARDS, max_tokens=30, row_tokens=ROW, rank=16, max_steps=12, batch=16)
    warm = HeadAdapter(tiny_basis, torch.randn(16, 16, generator=torch.Generator().manual_seed(1)) / 30)
    return SquareKind(config, warm, tiny_backbone.head)


@pytest.fixture(scope="module")
def corpus(public_sentences: list[str]) -> list[list[str]]:
    return [*(public_sentences[shard : shard + 3] for shard in range(SHARDS - 1)), []]


@pytest.fixture(scope="module")
def queries(kind: SquareKind) -> Queries:
    draw = torch.Generator().manual_seed(4)
    hidden = torch.randn(64, 64, generator=draw)
    logits = kind.warm(hidden) @ kind.head.T
    candidates = logits.topk(CANDIDATES).indices
    centre = logits.gather(1, candidates).softmax(-1)
    return Queries(hidden, candidates, torch.ones_like(candidates, dtype=torch.bool), centre, torch.zeros(64, 2).long())


def _encode(backbone: Backbone, texts: list[str]) -> Encoded:
    """One group of documents: a user."""
    documents = [backbone.document(text, 30) for text in texts]
    return encode(backbone, documents, ROW, USER_ROWS)


def _shard(users: list[Encoded]) -> Encoded:
    return join(users, ROW, 64)


def _moved(before: list[Encoded], after: list[Encoded], shard: int, kind: SquareKind, queries: Queries) -> float:
    """Largest L2 change of a query's sum in units of the sensitivity; checks everybody else's teacher on the way."""
    states = [kind.train(shards) for shards in (before, after)]
    others = [other for other in range(SHARDS) if other != shard]
    for name, tensor in states[0].items():
        assert torch.equal(tensor[others], states[1][name][others])
    return max(_distance(states, kind, queries, mechanism) / mechanism.sensitivity for mechanism in MECHANISMS)


def _distance(states: list[State], kind: SquareKind, queries: Queries, mechanism: VoteMechanism) -> float:
    sums = [mechanism.check(summed_votes(kind, state, queries, mechanism)) for state in states]
    return float(np.linalg.norm(sums[0] - sums[1], axis=1).max())


@pytest.mark.parametrize("shard", LIVES_IN)
@pytest.mark.parametrize("texts", ADVERSARIAL_TEXTS.values(), ids=ADVERSARIAL_TEXTS)
@pytest.mark.parametrize("first", [True, False], ids=["user first", "user last"])
def test_a_users_texts_move_each_sum_by_at_most_the_sensitivity(
    shard: int,
    texts: list[str],
    first: bool,
    corpus: list[list[str]],
    kind: SquareKind,
    tiny_backbone: Backbone,
    queries: Queries,
) -> None:
    """Users are groups of their own: the others of the same shard keep their states, and their place in it."""
    before, user = [_encode(tiny_backbone, own) for own in corpus], _encode(tiny_backbone, texts)
    assert len(user) <= USER_ROWS
    after = [*before]
    after[shard] = _shard([user, before[shard]] if first else [before[shard], user])
    assert _moved(before, after, shard, kind, queries) <= 1


@pytest.mark.parametrize("shard", LIVES_IN)
@pytest.mark.parametrize("change", INJECTED.values(), ids=INJECTED)
def test_broken_hidden_states_move_each_sum_by_at_most_the_sensitivity(
    shard: int,
    change: Callable[[torch.Tensor], torch.Tensor],
    corpus: list[list[str]],
    kind: SquareKind,
    tiny_backbone: Backbone,
    queries: Queries,
) -> None:
    before = [_encode(tiny_backbone, own) for own in corpus]
    user = _encode(tiny_backbone, ["hello, the sun is out and i like apples, pears and soup", "take the train"])
    broken = change(user.hidden.float().flatten(0, 1)).view_as(user.hidden).bfloat16()
    after = [*before]
    after[shard] = _shard([before[shard], Encoded(user.ids, user.segment, broken)])
    assert _moved(before, after, shard, kind, queries) <= 1


def test_the_bound_is_nearly_reached_by_a_teacher_that_turns_around(kind: SquareKind, queries: Queries) -> None:
    """The test above has power: two opposite and certain teachers come close to the declared sensitivity."""
    draw = torch.Generator().manual_seed(0)
    calm = kind.train([Encoded.empty(ROW, 64)] * SHARDS)
    calm["filled"][2] = True
    opposite = []
    for sign in (1, -1):
        state = {name: tensor.clone() for name, tensor in calm.items()}
        state["matrix"][2] = sign * 1e4 * torch.randn(16, 16, generator=draw.manual_seed(0))
        opposite.append(state)
    plain, clipped = (_distance(opposite, kind, queries, mechanism) for mechanism in MECHANISMS)
    assert 0.99 * math.sqrt(2) * SCALE <= plain <= MECHANISMS[0].sensitivity
    assert 0.7 * MECHANISMS[1].sensitivity <= clipped <= MECHANISMS[1].sensitivity
