"""The private votes by topic and length: each user has one vote of each, whatever they wrote and wherever it lies."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from rayprivacy.blocks.match import LENGTHS, Shape, lengths, part_votes, shape_votes
from rayprivacy.blocks.match_plan import MatchConfig
from rayprivacy.core.errors import ReleaseError
from rayprivacy.core.keys import Key
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.manifest import part_path, write_part
from rayprivacy.models.sentences import SentenceModel
from rayprivacy.release.histogram import SCALE, Margins

FOOD = ["I like soup and bread", "we ate apples for dinner", "this soup needs salt", "bread with cheese is good"]
PETS = ["my dog is ill", "the puppy sleeps all day", "cats hate water", "our kitten plays with the dog"]


@pytest.fixture(scope="module")
def model() -> SentenceModel:
    return SentenceModel.packaged()


@pytest.fixture(scope="module")
def shape(model: SentenceModel) -> Shape:
    return Shape.of(FOOD + PETS, model, MatchConfig(topics=2))


def _part(folder: Path, rows: list[tuple[str, str]], part: int = 0) -> Path:
    kinds = {"shard": pa.int32(), "user": pa.string(), "record": pa.int32(), "text": pa.large_string()}
    made = [dict(zip(kinds, (part, user, at, text), strict=True)) for at, (user, text) in enumerate(rows)]
    write_part(pa.Table.from_pylist(made, schema=pa.schema(kinds)), part, Key.for_tests(), folder)
    return folder


def _margins(shape: Shape, unit: PrivacyUnit = PrivacyUnit.USER) -> Margins:
    return Margins(shape.blocks, 5.0, unit)


def test_texts_of_one_meaning_have_one_topic(shape: Shape, model: SentenceModel) -> None:
    topics = shape.cells([*FOOD, *PETS, "a bowl of hot soup", "a small dog"], model)[:, 0].tolist()
    food, pets = topics[0], topics[4]
    assert topics == [food] * 4 + [pets] * 4 + [food, pets]
    assert food != pets


def test_fewer_texts_than_topics_make_fewer_topics(model: SentenceModel) -> None:
    assert Shape.of(["a", "a", "b"], model, MatchConfig(topics=9)).blocks == (2, LENGTHS)


def test_lengths_grow_with_the_words() -> None:
    bins = lengths(["word " * count for count in range(1, 300)])
    assert (bins[0], bins[-1]) == (0, LENGTHS - 1)
    assert set(np.diff(bins).tolist()) == {0, 1}


def test_a_user_has_one_vote_however_much_they_write(tmp_path: Path, shape: Shape, model: SentenceModel) -> None:
    rows = [("ann", FOOD[0])] * 30 + [("ann", PETS[0])] * 10 + [("bob", PETS[1])]
    margins = _margins(shape)
    sums = part_votes(_part(tmp_path, rows), 0, shape, margins, model)
    topics, by_length = margins.split(sums / SCALE)
    assert np.allclose(sorted(topics), [0.75, 1.25], atol=1e-5)
    assert np.isclose(by_length.sum(), 2, atol=1e-5)
    records = part_votes(tmp_path, 0, shape, _margins(shape, PrivacyUnit.RECORD), model)
    assert [block.sum() // SCALE for block in margins.split(records)] == [41, 41]


def test_one_more_user_changes_the_sums_by_their_own_votes_alone(
    tmp_path: Path, shape: Shape, model: SentenceModel
) -> None:
    margins = _margins(shape)
    others = [("ann", FOOD[0]), ("bob", PETS[1]), ("bob", FOOD[2])]
    more = [("eve", text) for text in ["x" * 5000, "soup " * 900, "", "\u0000\ud7ff\u202e", *PETS]]
    without = part_votes(_part(tmp_path, others), 0, shape, margins, model)
    moved = part_votes(_part(tmp_path, others + more), 0, shape, margins, model) - without
    assert moved.min() >= 0
    assert np.linalg.norm(moved.astype(float)) <= margins.sensitivity
    assert np.array_equal(moved, part_votes(_part(tmp_path, more), 0, shape, margins, model))


def test_nobody_changes_the_vote_of_a_text_between_two_topics(tmp_path: Path, model: SentenceModel) -> None:
    """Topics so near to each other that the last bits of an embedding decide between them."""
    near = 1e-7 * np.random.default_rng(0).standard_normal((64, model.vectors(FOOD).shape[1]))
    shape = Shape((model.vectors(FOOD).mean(axis=0) + near).astype(np.float32))
    margins, people = _margins(shape), [("ann", FOOD[0]), ("bob", PETS[1]), ("bob", FOOD[2]), ("cyd", FOOD[3])]
    dog, soup, pets = [("eve", "dog " * 60)], [("aaa", "a"), ("eve", "soup and bread " * 9)], [("bo", t) for t in PETS]
    for more in (dog, soup, pets):
        without = part_votes(_part(tmp_path, people), 0, shape, margins, model)
        moved = part_votes(_part(tmp_path, people + more), 0, shape, margins, model) - without
        assert np.array_equal(moved, part_votes(_part(tmp_path, more), 0, shape, margins, model))


def test_parts_add_up_on_ray_and_one_that_cannot_be_read_is_told_without_its_text(
    tmp_path: Path, local_ray: Path, shape: Shape, model: SentenceModel
) -> None:
    for part, rows in enumerate([[("ann", FOOD[0]), ("ann", PETS[0])], [], [("bob", PETS[1])]]):
        _part(tmp_path, rows, part)
    margins, told = _margins(shape), list[int]()
    alone = sum(part_votes(tmp_path, part, shape, margins, model) for part in range(3))
    assert np.array_equal(shape_votes(tmp_path, 3, shape, margins, told.append).reveal(), alone)
    assert told == [1, 2, 3]
    part_path(tmp_path, 0).write_bytes(b"my secret soup")
    with pytest.raises(ReleaseError, match=r"^voting for topics and lengths stopped .*nothing was charged") as stopped:
        shape_votes(tmp_path, 1, shape, margins)
    assert "secret" not in str(stopped.value)
