"""Coupled sensitivity of the units 'record' and 'phrase', from rows of the corpus to the integer sums that get noise.

The corpus with and without one record, or with one phrase masked, goes through sharding, training and voting with the
same code. At most one teacher (n_s teachers) may change by a single bit, and each sum by the declared sensitivity.

Caught: a record that moves another, a phrase left in an n_s + 1st shard, a sensitivity that forgets n_s or counts it
twice, a teacher that its neighbours in the stack change.
"""

import math

import numpy as np
import pyarrow as pa
import pytest
import torch

from rayprivacy.core.keys import Key
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.layout import HOLDOUT, Layout, finish, prepare
from rayprivacy.corpus.phrases import Phrases, tidy
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.models.adapters import Basis, HeadAdapter
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.features import Features, Queries, encode
from rayprivacy.release.votes import SCALE, VoteMechanism
from rayprivacy.teachers.head_kinds import State
from rayprivacy.teachers.settings import TeachersConfig
from rayprivacy.teachers.square_kind import SquareKind
from rayprivacy.teachers.votes import summed_votes

pytestmark = pytest.mark.usefixtures("one_thread")  # as in a teacher actor

KEY, SHARDS, CANDIDATES, BOUND = Key.for_tests(), 6, 5, 2
TEACHERS = TeachersConfig(
    count=SHARDS, max_tokens=30, row_tokens=48, max_rows=3, rank=16, max_steps=6, batch=16, stack=SHARDS
)
PHRASES = Phrases.of(["the", "like to eat", "hello"])
CORPUS = {
    PrivacyUnit.RECORD: CorpusConfig(max_records_per_user=None),
    PrivacyUnit.PHRASE: CorpusConfig(max_chars=60, phrases="-", max_shards_per_phrase=BOUND),
}
MECHANISMS = {
    unit: VoteMechanism(64, CANDIDATES, SHARDS, 1.0, unit, BOUND if unit is PrivacyUnit.PHRASE else 1)
    for unit in CORPUS
}
Row = tuple[str, str]


@pytest.fixture(scope="module")
def rows(public_sentences: list[str]) -> list[Row]:
    return [(f"user-{n}", text) for n in range(10) for text in public_sentences[n % 4 :: 3]]


@pytest.fixture(scope="module")
def queries(tiny_features: Features, tiny_backbone: Backbone) -> Queries:
    hidden = tiny_features.hidden[:64].float()
    candidates = (hidden @ tiny_backbone.head.T).topk(CANDIDATES).indices
    centre = torch.full(candidates.shape, 1 / CANDIDATES)
    return Queries(hidden, candidates, torch.ones_like(candidates, dtype=torch.bool), centre, torch.zeros(64, 2).long())


@pytest.fixture(scope="module")
def kind(tiny_basis: Basis, tiny_backbone: Backbone) -> SquareKind:
    return SquareKind(TEACHERS, HeadAdapter.zeros(tiny_basis, 16, 16), tiny_backbone.head)


def _teachers(rows: list[Row], unit: PrivacyUnit, kind: SquareKind, backbone: Backbone) -> State:
    layout = Layout(CORPUS[unit], SHARDS, SHARDS, unit)
    block = pa.table({"user": [user for user, _ in rows], "text": [text for _, text in rows]})
    prepared = prepare(tidy(block, KEY, layout, PHRASES if unit is PrivacyUnit.PHRASE else None)[0], KEY, layout)[0]
    trained = prepared.filter(pa.array([part != HOLDOUT for part in prepared["file"].to_pylist()]))
    table = finish(trained, 0, KEY, layout)[0].to_pylist()
    texts = [[row["text"] for row in table if row["shard"] == shard] for shard in range(SHARDS)]
    documents = [[backbone.document(text, TEACHERS.max_tokens) for text in own] for own in texts]
    return kind.train([encode(backbone, own, TEACHERS.row_tokens, TEACHERS.max_rows) for own in documents])


def _changed(one: State, other: State) -> set[int]:
    return {
        teacher
        for teacher in range(SHARDS)
        if any(not torch.equal(one[name][teacher], other[name][teacher]) for name in one)
    }


def _moved(states: list[State], unit: PrivacyUnit, kind: SquareKind, queries: Queries) -> float:
    sums = [summed_votes(kind, state, queries, MECHANISMS[unit]) for state in states]
    return float(np.linalg.norm(sums[0] - sums[1], axis=1).max())


@pytest.mark.parametrize("user", ["user-1", "user-3", "nobody yet"])
@pytest.mark.parametrize("text", ["hello", "take the train " * 300, "\x00\u200b", "i like soup"])
def test_a_record_moves_one_teacher(
    user: str, text: str, rows: list[Row], kind: SquareKind, tiny_backbone: Backbone, queries: Queries
) -> None:
    unit = PrivacyUnit.RECORD
    states = [_teachers(own, unit, kind, tiny_backbone) for own in (rows, [(user, text), *rows])]
    assert len(_changed(*states)) <= 1
    assert _moved(states, unit, kind, queries) <= MECHANISMS[unit].sensitivity


@pytest.mark.parametrize("number", range(3))
def test_a_phrase_moves_n_teachers(
    number: int, rows: list[Row], kind: SquareKind, tiny_backbone: Backbone, queries: Queries
) -> None:
    unit = PrivacyUnit.PHRASE
    without = [(user, PHRASES.mask(text, lambda found: found == number)) for user, text in rows]
    assert without != rows
    states = [_teachers(own, unit, kind, tiny_backbone) for own in (rows, without)]
    assert _changed(*states) <= PHRASES.allowed(number, KEY, BOUND, SHARDS)
    assert number or len(_changed(*states)) == BOUND  # "the" is everywhere
    assert _moved(states, unit, kind, queries) <= MECHANISMS[unit].sensitivity


def test_the_bound_is_nearly_reached_by_n_teachers_that_turn_around(kind: SquareKind, queries: Queries) -> None:
    """The tests above have power: n_s opposite and certain teachers come close to the declared sensitivity."""
    draw = torch.Generator().manual_seed(0)
    matrices = torch.zeros(SHARDS, 16, 16)
    matrices[1:3] = 1e4 * torch.randn(16, 16, generator=draw)
    filled = torch.ones(SHARDS, dtype=torch.bool)
    unit = PrivacyUnit.PHRASE
    moved = _moved([{"matrix": sign * matrices, "filled": filled} for sign in (1, -1)], unit, kind, queries)
    assert 0.99 * BOUND * math.sqrt(2) * SCALE <= moved
    assert 0.99 * MECHANISMS[unit].sensitivity <= moved <= MECHANISMS[unit].sensitivity
