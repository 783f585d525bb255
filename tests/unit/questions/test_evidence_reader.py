"""The evidence reader: vectors of texts, overlap of words, and what it learns from questions."""

import numpy as np
import pytest
from toy_questions import WIDTH, toy_questions

from rayprivacy.questions.evidence_reader import (
    QuestionSet,
    SentenceVectors,
    accuracies,
    beginning,
    probabilities,
    scores,
    trained,
)
from rayprivacy.questions.overlap import Idf, words

SENTENCES = ["the cat sat", "the dog ran", "the cat and the dog"]
IDF = Idf.of(map(words, SENTENCES))


def test_overlap_is_the_share_of_weight_in_common_words():
    assert IDF.overlap("the cat", "The CAT sat.") == 1
    assert IDF.overlap("the cat", "the dog ran") < 0.5, "what every sentence has says little"
    assert IDF.overlap("a zebra?", "the cat sat") == 0
    assert IDF.overlap("?", "the cat sat") == 0
    assert IDF.overlap("cat cat dog", "cat") == IDF.overlap("dog cat", "cat"), "a word counts once"
    assert IDF["the"] < IDF["cat"] < IDF["sat"] < IDF["zebra"]


def test_vectors_are_of_one_length_and_of_the_directions_that_vary():
    dice = np.random.default_rng(0)
    table = dice.normal(size=(50, 12)).astype(np.float32)
    known = [dice.integers(40, size=8).tolist() for _ in range(300)]
    vectors = SentenceVectors.of(table, known, 5)
    found = vectors([*known, [], [45]])
    assert found.shape == (302, 5)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 2, rtol=1e-5)
    assert (vectors(known[3:4])[0] == found[3]).all()
    spread = found[:300].std(axis=0)
    assert spread.max() < 1.5 * spread.min(), "no direction outweighs the others"
    assert SentenceVectors.of(table, known, 64)(known).shape == (300, 12), "a small model has fewer directions"


def test_rows_become_arrays():
    rows = [("who sat ?", SENTENCES, 0), ("who ran ?", SENTENCES[1:], 0)]
    asked = QuestionSet.of(
        rows, lambda texts: np.array([[len(text), text.count("t")] for text in texts], np.float32), IDF
    )
    assert asked.questions.tolist() == [[9, 1], [9, 0]]
    assert asked.sentences[1, :2].tolist() == [[11, 1], [19, 3]]
    assert asked.real.tolist() == [[True] * 3, [True, True, False]]
    assert asked.overlaps[1, 2] == 0
    assert asked.overlaps[0, 0] == pytest.approx(IDF.overlap(*("who sat ?", SENTENCES[0])))
    assert asked.evidence.tolist() == [0, 0]
    assert len(asked[np.array([1])]) == 1


def test_filling_is_never_found():
    asked = toy_questions(np.random.default_rng(0), 50)
    theta = np.random.default_rng(1).normal(size=(3, WIDTH * WIDTH + 1)).astype(np.float32)
    assert (probabilities(theta, asked)[:, ~asked.real] == 0).all()
    np.testing.assert_allclose(probabilities(theta, asked).sum(axis=-1), 1, rtol=1e-5)
    assert (np.take_along_axis(asked.real[None], scores(theta, asked).argmax(-1)[..., None], 2)).all()


def test_it_learns_and_readers_do_not_meet():
    dice = np.random.default_rng(0)
    asked, others = toy_questions(dice, 300), toy_questions(dice, 300)
    begun = beginning(WIDTH)
    reader = trained(begun, asked, dice, 2)
    assert not begun.any(), "what it began with stays as it is"
    nothing, learnt = accuracies(np.stack([begun, reader]), others)
    assert learnt > 0.8 > 0.5 > nothing
    together, alone = (scores(theta, others)[0] for theta in (np.stack([reader, begun]), reader[None]))
    np.testing.assert_allclose(together, alone, rtol=1e-5)
