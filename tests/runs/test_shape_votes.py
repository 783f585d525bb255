"""Texts are matched to private votes by topic and length: one vote of each a user; none is taken twice or cut amiss."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayprivacy.blocks.match import beginnings, chosen, cut, part_votes, raked, shape_votes, shares_of
from rayprivacy.core.errors import ReleaseError
from rayprivacy.core.keys import Key
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.manifest import part_path, write_part
from rayprivacy.evaluation.shape import LENGTHS, Shape, lengths, rarest
from rayprivacy.models.sentences import SentenceModel
from rayprivacy.release.histogram import SCALE, Margins

FOOD = ["I like soup and bread", "we ate apples for dinner", "this soup needs salt", "bread with cheese is good"]
PETS = ["my dog is ill", "the puppy sleeps all day", "cats hate water", "our kitten plays with the dog"]


@pytest.fixture(scope="module")
def model():
    return SentenceModel.packaged()


@pytest.fixture(scope="module")
def shape(model):
    return Shape.of(FOOD + PETS, model, 2)


def _part(folder, rows, part=0):
    kinds = {"shard": pa.int32(), "user": pa.string(), "record": pa.int32(), "text": pa.large_string()}
    made = [dict(zip(kinds, (part, user, at, text), strict=True)) for at, (user, text) in enumerate(rows)]
    write_part(pa.Table.from_pylist(made, schema=pa.schema(kinds)), part, Key.for_tests(), folder)
    return folder


def _margins(shape, unit=PrivacyUnit.USER):
    return Margins(shape.blocks, 5.0, unit)


def test_texts_of_one_meaning_have_one_topic(shape, model):
    topics = shape.cells([*FOOD, *PETS, "a bowl of hot soup", "a small dog"], model)[:, 0].tolist()
    food, pets = topics[0], topics[4]
    assert topics == [food] * 4 + [pets] * 4 + [food, pets]
    assert food != pets
    assert Shape.of(["a", "a", "b"], model, 9).blocks == (2, LENGTHS), "as many as there are texts"


def test_lengths_grow_with_the_words():
    bins = lengths(["word " * count for count in range(1, 300)])
    assert (bins[0], bins[-1]) == (0, LENGTHS - 1)
    assert set(np.diff(bins).tolist()) == {0, 1}


def test_a_user_has_one_vote_however_much_they_write(tmp_path, shape, model):
    rows = [("ann", FOOD[0])] * 30 + [("ann", PETS[0])] * 10 + [("bob", PETS[1])]
    margins = _margins(shape)
    sums = part_votes(_part(tmp_path, rows), 0, shape, margins, model)
    topics, by_length = margins.split(sums / SCALE)
    assert np.allclose(sorted(topics), [0.75, 1.25], atol=1e-5)
    assert np.isclose(by_length.sum(), 2, atol=1e-5)
    records = part_votes(tmp_path, 0, shape, _margins(shape, PrivacyUnit.RECORD), model)
    assert [block.sum() // SCALE for block in margins.split(records)] == [41, 41]


@pytest.mark.parametrize("words", [(), ("soup", "dog", "water")])
def test_one_more_user_adds_their_own_votes_alone(tmp_path, shape, model, words):
    shape = replace(shape, words=words)
    margins = _margins(shape)
    others = [("ann", FOOD[0]), ("bob", PETS[1]), ("bob", FOOD[2])]
    more = [("eve", text) for text in ["x" * 5000, "soup " * 900, "", "\u0000\ud7ff\u202e", *PETS]]
    without = part_votes(_part(tmp_path, others), 0, shape, margins, model)
    moved = part_votes(_part(tmp_path, others + more), 0, shape, margins, model) - without
    assert moved.min() >= 0
    assert np.linalg.norm(moved.astype(float)) <= margins.sensitivity
    assert np.array_equal(moved, part_votes(_part(tmp_path, more), 0, shape, margins, model))


def test_a_text_votes_for_the_rarest_released_word_in_it(tmp_path, shape, model):
    told = replace(shape, words=("soup", "bread", "Dog", "the"))
    rows = [("ann", FOOD[0]), ("ann", "SOUP, dog's soup!"), ("bob", PETS[1]), ("bob", "good soup")]
    margins = _margins(told)
    *others, words = margins.split(part_votes(_part(tmp_path, rows), 0, told, margins, model) / SCALE)
    assert words.tolist() == [0.5, 1.0, 0.5, 0.0, 0.0], "words are in lower case, and none is grammar"
    plain = _margins(shape)
    assert np.allclose(np.concatenate(others) * SCALE, part_votes(tmp_path, 0, shape, plain, model))
    assert margins.noise_std_grid > plain.noise_std_grid, "one more block"
    assert margins.event == plain.event


def test_nobody_changes_the_vote_of_a_text_between_two_topics(tmp_path, model):
    """Topics so near to each other that the last bits of an embedding decide between them."""
    near = 1e-7 * np.random.default_rng(0).standard_normal((64, model.vectors(FOOD).shape[1]))
    shape = Shape((model.vectors(FOOD).mean(axis=0) + near).astype(np.float32))
    margins, people = (
        _margins(shape),
        [("ann", FOOD[0]), ("bob", PETS[1]), ("bob", FOOD[2]), ("cyd", FOOD[3])],
    )
    dog, soup, pets = [("eve", "dog " * 60)], [("aaa", "a"), ("eve", "soup and bread " * 9)], [("bo", t) for t in PETS]
    for more in (dog, soup, pets):
        without = part_votes(_part(tmp_path, people), 0, shape, margins, model)
        moved = part_votes(_part(tmp_path, people + more), 0, shape, margins, model) - without
        assert np.array_equal(moved, part_votes(_part(tmp_path, more), 0, shape, margins, model))


def test_parts_add_up_on_ray(tmp_path, local_ray, shape, model):
    for part, rows in enumerate([[("ann", FOOD[0]), ("ann", PETS[0])], [], [("bob", PETS[1])]]):
        _part(tmp_path, rows, part)
    margins, told = _margins(shape), list[int]()
    alone = sum(part_votes(tmp_path, part, shape, margins, model) for part in range(3))
    assert np.array_equal(shape_votes(tmp_path, 3, shape, margins, told.append).reveal(), alone)
    assert told == [1, 2, 3]
    # One that cannot be read is told without its text.
    part_path(tmp_path, 0).write_bytes(b"my secret soup")
    with pytest.raises(ReleaseError, match=r"^voting for topics and lengths stopped .*nothing was charged") as stopped:
        shape_votes(tmp_path, 1, shape, margins)
    assert "secret" not in str(stopped.value)


BLOCKS = (4, 3)
SENTENCE = st.integers(1, 12).map(lambda words: " ".join(["word"] * words) + ".")
TEXT = st.lists(SENTENCE, min_size=1, max_size=5).map(" ".join)


def _candidates(seed, count):
    draw = np.random.default_rng(seed)
    return np.column_stack([draw.integers(0, size, count) for size in BLOCKS])


def _shares(texts):
    return np.bincount(lengths(texts), minlength=LENGTHS) / len(texts)


@given(st.integers(0, 10_000), st.integers(1, 60), st.integers(1, 80))
def test_as_many_as_are_wanted_and_none_twice(seed, count, kept):
    cells, draw = _candidates(seed, count), np.random.default_rng(seed)
    weights = raked(cells, [draw.dirichlet(np.full(size, 0.3)) for size in BLOCKS], kept)
    assert ((weights >= 0) & (weights <= 1 + 1e-9)).all()
    places = chosen(weights, cells, seed)
    assert len(places) == min(kept, count)
    assert (np.diff(places) > 0).all(), "candidates keep their order, and none is there twice"
    assert (places == chosen(weights, cells, seed)).all()


def test_both_margins_are_met_where_there_are_candidates_enough():
    cells = _candidates(0, 4000)
    wanted = [np.array([0.7, 0.2, 0.1, 0.0]), np.array([0.1, 0.3, 0.6])]
    weights = raked(cells, wanted, 500)
    places = chosen(weights, cells, 0)
    for share, found in zip(wanted, shares_of(cells[places], BLOCKS), strict=True):
        assert np.abs(share - found).max() < 0.02
    assert (places != chosen(weights, cells, 1)).any(), "another seed is another choice"


def test_released_words_come_as_often_as_users_say():
    texts = [("kernel " if at % 20 == 0 else "soup " if at % 2 else "") + f"number {at}" for at in range(900)]
    found, wanted = rarest(texts, ["soup", "kernel"])[:, None], np.array([0.5, 0.4, 0.1])
    kept = found[chosen(raked(found, [wanted], 300), found, 0)]
    assert np.abs(shares_of(kept, [3])[0] - wanted).max() < 0.01
    assert np.abs(shares_of(found, [3])[0] - wanted).max() > 0.04


def test_a_cell_with_too_few_candidates_gives_all_and_one_without_leaves_its_share_to_the_others():
    cells = np.column_stack([np.array([0] * 10 + [1] * 990), np.zeros(1000, np.int64)])
    places = chosen(raked(cells, [np.array([0.5, 0.5]), np.ones(1)], 100), cells, 0)
    assert (len(places), (places < 10).sum()) == (100, 10)
    cells[:500, 0] = 0
    places = chosen(raked(cells, [np.array([0.3, 0.1, 0.6]), np.ones(1)], 100), cells, 0)
    assert len(places) == 100
    assert abs((places < 500).mean() - 0.75) < 0.15


@given(st.lists(TEXT, min_size=1, max_size=30), st.integers(0, 1000))
def test_each_text_is_cut_to_one_of_its_beginnings(texts, seed):
    wanted = np.random.default_rng(seed).dirichlet(np.full(LENGTHS, 0.2))
    found = cut(texts, wanted, seed)
    assert found == cut(texts, wanted, seed)
    for text, kept in zip(texts, found, strict=True):
        assert kept in beginnings(text)
        assert kept == text or kept.endswith(".")


def test_sentences_end_at_marks_before_a_space_and_at_lines():
    ends = ['He said "No!"', " and v1.2 left...", " Then", "\nhe slept"]
    assert beginnings("".join(ends)) == ["".join(ends[:end]) for end in (1, 2, 3, 4)]
    assert beginnings("no end") == ["no end"]
    assert beginnings("\n\nx") == ["\n\nx"]


def test_lengths_follow_the_wanted_shares_where_sentences_end_there():
    draw = np.random.default_rng(0)
    texts = [" ".join("word " * draw.integers(1, 9) + "end." for _ in range(6)) for _ in range(3000)]
    wanted = np.zeros(LENGTHS)
    wanted[2:9] = 1 / 7
    assert np.abs(_shares(texts) - wanted).sum() > 1
    assert np.abs(_shares(cut(texts, wanted, 0)) - wanted).sum() < 0.1
    assert cut(texts, wanted, 0) != cut(texts, wanted, 1)


def test_texts_stay_whole_where_lengths_are_right_or_none_has_an_end_or_nobody_wants_theirs():
    texts = [" ".join(["word."] * (2 + number % 30)) for number in range(3000)]
    assert np.abs(_shares(cut(texts, _shares(texts), 0)) - _shares(texts)).sum() < 0.1
    without_ends = [text.replace(".", "") for text in texts[:300]]
    assert cut(without_ends, _shares(texts), 0) == without_ends
    assert cut(["one two.", "three"], np.eye(LENGTHS)[-1], 0) == ["one two.", "three"]
