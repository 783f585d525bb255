"""Coupled sensitivity, end to end without Ray: from a user, a record or a phrase to the integer sums that get noise.

The corpus with and without it is sharded, encoded, trained and asked with the same code. Nobody but the unit's own
teachers may change by a single bit, and every query's sum may move by at most the declared sensitivity.
"""

import math
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
import torch

from rayprivacy.core.keys import Key
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.layout import HOLDOUT, Layout, finish, prepare
from rayprivacy.corpus.phrases import Phrases, tidy
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.models.adapters import HeadAdapter
from rayprivacy.models.features import Encoded, Queries, encode, join
from rayprivacy.release.votes import SCALE, VoteMechanism
from rayprivacy.teachers.settings import TeachersConfig
from rayprivacy.teachers.square_kind import SquareKind
from rayprivacy.teachers.votes import summed_votes

pytestmark = pytest.mark.usefixtures("one_thread")  # as in a teacher actor

KEY, SHARDS, CANDIDATES, BOUND = Key.for_tests(), 6, 5, 2
TOKENS, ROW, USER_ROWS = 30, 48, 3
LIVES_IN = [0, 3, 5]  # shard 5 has nobody else
VOTES = VoteMechanism(64, CANDIDATES, SHARDS, 1.0)
CLIPPED = VoteMechanism(64, CANDIDATES, SHARDS, 1.0, clip=0.2)
OF_PHRASES = VoteMechanism(64, CANDIDATES, SHARDS, 1.0, PrivacyUnit.PHRASE, BOUND)
PHRASES = Phrases.of(["the", "like to eat", "hello"])
Row = tuple[str, str]

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
def kind(tiny_basis, tiny_backbone):
    config = TeachersConfig(
        count=SHARDS,
        max_tokens=TOKENS,
        row_tokens=ROW,
        max_rows=USER_ROWS,
        rank=16,
        max_steps=8,
        batch=16,
        stack=SHARDS,
    )
    warm = HeadAdapter(tiny_basis, torch.randn(16, 16, generator=torch.Generator().manual_seed(1)) / 30)
    return SquareKind(config, warm, tiny_backbone.head)


@pytest.fixture(scope="module")
def asked(kind):
    """How far two states move the sum of any query, in L2 and in units of the sensitivity."""
    hidden = torch.randn(64, 64, generator=torch.Generator().manual_seed(4))
    logits = kind.warm(hidden) @ kind.head.T
    candidates = logits.topk(CANDIDATES).indices
    centre = logits.gather(1, candidates).softmax(-1)
    every = torch.ones_like(candidates, dtype=torch.bool)
    queries = Queries(hidden, candidates, every, centre, torch.zeros(64, 2).long())

    def moved(states, mechanism=VOTES):
        sums = [mechanism.check(summed_votes(kind, state, queries, mechanism)) for state in states]
        return float(np.linalg.norm(sums[0] - sums[1], axis=1).max()) / mechanism.sensitivity

    return moved


def _changed(one, other):
    """The teachers that differ in any bit."""
    return {at for at in range(SHARDS) if any(not torch.equal(one[name][at], other[name][at]) for name in one)}


def _encode(backbone, texts):
    """One group of documents: a user."""
    return encode(backbone, [backbone.document(text, TOKENS) for text in texts], ROW, USER_ROWS)


@pytest.fixture(scope="module")
def with_user(public_sentences, kind, tiny_backbone, asked):
    """Asserts that a user in a shard changes its teacher alone, and moves sums by at most the sensitivity."""
    corpus = [*(public_sentences[shard : shard + 3] for shard in range(SHARDS - 1)), []]
    before = [_encode(tiny_backbone, own) for own in corpus]
    calm = kind.train(before)

    def moves(user, shard, first=False):
        after = [*before]
        after[shard] = join([user, before[shard]] if first else [before[shard], user], ROW, 64)
        states = [calm, kind.train(after)]
        assert _changed(*states) <= {shard}
        assert max(asked(states), asked(states, CLIPPED)) <= 1

    return moves


@pytest.mark.parametrize("shard", LIVES_IN)
@pytest.mark.parametrize("texts", ADVERSARIAL_TEXTS.values(), ids=ADVERSARIAL_TEXTS)
@pytest.mark.parametrize("first", [True, False], ids=["user first", "user last"])
def test_a_users_texts_move_each_sum_by_at_most_the_sensitivity(shard, texts, first, with_user, tiny_backbone):
    """Users are groups of their own: the others of the same shard keep their states, and their place in it."""
    user = _encode(tiny_backbone, texts)
    assert len(user) <= USER_ROWS
    with_user(user, shard, first)


@pytest.mark.parametrize("shard", LIVES_IN)
@pytest.mark.parametrize("change", INJECTED.values(), ids=INJECTED)
def test_broken_hidden_states_move_each_sum_by_at_most_the_sensitivity(shard, change, with_user, tiny_backbone):
    user = _encode(tiny_backbone, ["hello, the sun is out and i like apples, pears and soup", "take the train"])
    broken = change(user.hidden.float().flatten(0, 1)).view_as(user.hidden).bfloat16()
    with_user(Encoded(user.ids, user.segment, broken), shard)


@pytest.fixture(scope="module")
def rows(public_sentences):
    return [(f"user-{n}", text) for n in range(10) for text in public_sentences[n % 4 :: 3]]


@pytest.fixture(scope="module")
def teachers(kind, tiny_backbone):
    """Trained on rows, of whose users nothing is known where the unit is a record or a phrase."""

    def trained(rows, unit):
        bounds = {"phrases": "-", "max_shards_per_phrase": BOUND, "max_chars": 60}
        of_phrases = unit is PrivacyUnit.PHRASE
        corpus = CorpusConfig(**bounds) if of_phrases else CorpusConfig(max_records_per_user=None)
        layout = Layout(corpus, SHARDS, SHARDS, unit)
        block = pa.table({"user": [user for user, _ in rows], "text": [text for _, text in rows]})
        prepared = prepare(tidy(block, KEY, layout, PHRASES if of_phrases else None)[0], KEY, layout)[0]
        kept = prepared.filter(pa.array([part != HOLDOUT for part in prepared["file"].to_pylist()]))
        table = finish(kept, 0, KEY, layout)[0].to_pylist()
        texts = [[row["text"] for row in table if row["shard"] == shard] for shard in range(SHARDS)]
        return kind.train([_encode(tiny_backbone, own) for own in texts])

    return trained


@pytest.mark.parametrize("user", ["user-1", "user-3", "nobody yet"])
@pytest.mark.parametrize("text", ["hello", "take the train " * 300, "\x00\u200b", "i like soup"])
def test_a_record_moves_one_teacher(user, text, rows, teachers, asked):
    states = [teachers(own, PrivacyUnit.RECORD) for own in (rows, [(user, text), *rows])]
    assert len(_changed(*states)) <= 1
    assert asked(states) <= 1


@pytest.mark.parametrize("number", range(3))
def test_a_phrase_moves_n_teachers(number, rows, teachers, asked):
    without = [(user, PHRASES.mask(text, lambda found: found == number)) for user, text in rows]
    assert without != rows
    states = [teachers(own, PrivacyUnit.PHRASE) for own in (rows, without)]
    assert _changed(*states) <= PHRASES.allowed(number, KEY, BOUND, SHARDS)
    assert number or len(_changed(*states)) == BOUND  # "the" is everywhere
    assert asked(states, OF_PHRASES) <= 1


@pytest.mark.parametrize(("mechanism", "least"), [(VOTES, 0.99), (CLIPPED, 0.7), (OF_PHRASES, 0.99)])
def test_the_bound_is_nearly_reached_by_teachers_that_turn_around(mechanism, least, asked):
    """The tests above have power: opposite and certain teachers come close to the declared sensitivity."""
    matrices = torch.zeros(SHARDS, 16, 16)
    turned = BOUND if mechanism is OF_PHRASES else 1
    matrices[1 : 1 + turned] = 1e4 * torch.randn(16, 16, generator=torch.Generator().manual_seed(0))
    filled = torch.ones(SHARDS, dtype=torch.bool)
    found = asked([{"matrix": sign * matrices, "filled": filled} for sign in (1, -1)], mechanism)
    assert least <= found <= 1
    assert mechanism is CLIPPED or mechanism.sensitivity * found >= 0.99 * turned * math.sqrt(2) * SCALE
