"""Coupled sensitivity, end to end without Ray: from a user's texts to the integer sums that get noise.

The corpus with and without a user is encoded, trained and asked with the same code. Nobody but the user's own teacher
may change by a single bit, and every query's sum may move by at most the declared sensitivity.
"""

import math
from collections.abc import Callable, Iterator

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

SHARDS, CANDIDATES = 6, 5
CONFIG = TeachersConfig(
    count=SHARDS, max_tokens=30, row_tokens=48, max_rows=3, rank=16, shortlist=200, steps=6, batch=16, stack=SHARDS
)
LIVES_IN = [0, 3, 5]  # shard 5 has nobody else
MECHANISM = VoteMechanism(queries=64, candidates=CANDIDATES, teachers=SHARDS, sigma=1.0)

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


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """As in a teacher actor."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def corpus(public_sentences: list[str]) -> list[list[str]]:
    return [*(public_sentences[shard : shard + 3] for shard in range(SHARDS - 1)), []]


@pytest.fixture(scope="module")
def queries(tiny_features: Features, tiny_backbone: Backbone) -> Queries:
    hidden = tiny_features.hidden[:64].float()
    candidates = (hidden @ tiny_backbone.head.T).topk(CANDIDATES).indices
    return Queries(hidden, candidates, torch.ones_like(candidates, dtype=torch.bool))


def _encode(backbone: Backbone, texts: list[str]) -> Features:
    documents = [backbone.document(text, CONFIG.max_tokens) for text in texts]
    return encode_documents(backbone, documents, CONFIG.row_tokens, CONFIG.max_rows)


def _moved(
    before: list[Features], after: list[Features], shard: int, basis: Basis, backbone: Backbone, queries: Queries
) -> float:
    """Largest L2 change of a query's sum in units of the sensitivity; everybody else's matrix is checked on the way."""
    matrices = [train_stack(shards, basis, backbone.head, CONFIG) for shards in (before, after)]
    others = [other for other in range(SHARDS) if other != shard]
    assert torch.equal(matrices[0][others], matrices[1][others])
    sums = [summed_votes(stack, basis, backbone.head, queries, MECHANISM) for stack in matrices]
    for total in sums:
        MECHANISM.check(total)
    return float(np.linalg.norm(sums[0] - sums[1], axis=1).max()) / MECHANISM.sensitivity


@pytest.mark.parametrize("shard", LIVES_IN)
@pytest.mark.parametrize("texts", ADVERSARIAL_TEXTS.values(), ids=ADVERSARIAL_TEXTS)
@pytest.mark.parametrize("first", [True, False], ids=["user first", "user last"])
def test_a_users_texts_move_each_sum_by_at_most_the_sensitivity(
    shard: int,
    texts: list[str],
    first: bool,
    corpus: list[list[str]],
    tiny_basis: Basis,
    tiny_backbone: Backbone,
    queries: Queries,
) -> None:
    before = [_encode(tiny_backbone, own) for own in corpus]
    joined = [*texts, *corpus[shard]] if first else [*corpus[shard], *texts]
    after = [_encode(tiny_backbone, joined if place == shard else own) for place, own in enumerate(corpus)]
    for place in range(SHARDS):
        if place != shard:
            assert torch.equal(before[place].hidden, after[place].hidden)
            assert torch.equal(before[place].targets, after[place].targets)
    assert len(after[shard]) <= CONFIG.max_rows * (CONFIG.row_tokens - 1)
    assert _moved(before, after, shard, tiny_basis, tiny_backbone, queries) <= 1


@pytest.mark.parametrize("shard", LIVES_IN)
@pytest.mark.parametrize("change", INJECTED.values(), ids=INJECTED)
def test_broken_hidden_states_move_each_sum_by_at_most_the_sensitivity(
    shard: int,
    change: Callable[[torch.Tensor], torch.Tensor],
    corpus: list[list[str]],
    tiny_basis: Basis,
    tiny_backbone: Backbone,
    queries: Queries,
) -> None:
    before = [_encode(tiny_backbone, own) for own in corpus]
    user = _encode(tiny_backbone, ["hello, the sun is out and i like apples, pears and soup", "take the train"])
    hidden = torch.cat([before[shard].hidden, change(user.hidden.float()).bfloat16()])
    after = [*before]
    after[shard] = Features(hidden, torch.cat([before[shard].targets, user.targets]))
    assert _moved(before, after, shard, tiny_basis, tiny_backbone, queries) <= 1


def test_the_bound_is_nearly_reached_by_a_teacher_that_turns_around(
    tiny_basis: Basis, tiny_backbone: Backbone, queries: Queries
) -> None:
    """The test above has power: two opposite and certain teachers come close to the declared sensitivity."""
    draw = torch.Generator().manual_seed(0)
    matrices = torch.zeros(SHARDS, 16, 16)
    matrices[2] = 1e4 * torch.randn(16, 16, generator=draw)
    opposite = matrices.clone()
    opposite[2] *= -1
    sums = [summed_votes(m, tiny_basis, tiny_backbone.head, queries, MECHANISM) for m in (matrices, opposite)]
    moved = np.linalg.norm(sums[0] - sums[1], axis=1).max()
    assert 0.99 * math.sqrt(2) * SCALE <= moved <= MECHANISM.sensitivity
