"""What a recipe of SanText plans, from public values alone."""

from io import BytesIO

import numpy as np
import pytest

import rayprivacy as rp
from rayprivacy.accounting.events import document_epsilon
from rayprivacy.methods.santext.heldout import charts
from rayprivacy.methods.santext.mechanisms import planned, vocabulary_of
from rayprivacy.sanitize.mechanism import RandomizedResponse, SanText
from rayprivacy.sanitize.vocabulary import Vocabulary

WORDS = {"words": 400, "keep": 0.5, "max_tokens": 10}
MECHANISMS = pytest.mark.parametrize("mechanism", ["santext", "randomized_response"])


def _recipe(budget=1e6, corpus=None, **sanitize):
    """A recipe of three records for each user."""
    read = {"source": "talk.parquet", "max_records_per_user": 3, **(corpus or {})}
    blocks = {"corpus": read, "privacy": {"epsilon": budget}, "sanitize": WORDS | sanitize}
    return rp.load_recipe({"method": "santext", **blocks})


def _labelled(budget, epsilon, mechanism, **values):
    """Labels cost 3 records times their columns times their epsilon, and words get the rest."""
    labels = {"kind": "randomize", "epsilon": epsilon, "values": values}
    own = {"words": 200, "keep": None, "mechanism": mechanism, "labels": labels}
    return _recipe(budget, {"labels": list(values)}, **own)


def test_all_documents_of_a_user_are_charged():
    recipe = _recipe()
    each = planned(recipe).mechanism.token_epsilon
    assert rp.plan(recipe).epsilon == pytest.approx(3 * 10 * each, rel=1e-9)
    response = _recipe(mechanism="randomized_response")
    assert rp.plan(response).epsilon == pytest.approx(30 * planned(response).mechanism.token_epsilon, rel=1e-9)
    assert planned(response).keep == pytest.approx(0.5, abs=1e-4)


@MECHANISMS
def test_labels_are_paid_before_the_budget_decides_what_words_get(mechanism):
    for budget, each in ((300.0, 2.0), (300.0, 0.1), (7.3, 1.1), (120.07, 1 / 3)):
        recipe = _labelled(budget, each, mechanism, mood=("glad", "sad"), topic=("sun", "soup", "train"))
        plan = rp.plan(recipe)
        assert 0.97 * budget <= plan.epsilon <= budget
        assert len(plan.plan.charges) == 2
        assert document_epsilon(plan.plan.charges[1]) == pytest.approx(6 * each)


@MECHANISMS
def test_labels_that_leave_nothing_for_words_are_refused_in_a_sentence(mechanism):
    said = r"^sanitize\.labels\.epsilon is 2, so that the labels of a user cost 6, and privacy\.epsilon, 6, leaves"
    with pytest.raises(rp.ConfigError, match=said + r" nothing for words: lower sanitize\.labels\.epsilon or .*raise"):
        rp.plan(_labelled(6.0, 2.0, mechanism, mood=("glad", "sad")))


def test_sensitive_words_are_the_least_frequent_ones_of_the_public_list():
    found = planned(_recipe(plus={"sensitive": 0.75, "p": 0.5}))
    assert isinstance(found.mechanism, SanText)
    assert found.mechanism.table.first == 100
    assert found.vocabulary.words[0] == "the", "the list runs from frequent to rare"
    assert found.mechanism.sensitive != ""


def test_at_one_rate_of_kept_words_randomised_response_bounds_all_pairs_by_less():
    santext = planned(_recipe())
    response = RandomizedResponse(400, santext.competitor)
    assert response.keep_rate == pytest.approx(santext.keep, abs=1e-6)
    assert response.token_epsilon < santext.mechanism.token_epsilon


def test_a_file_of_vectors_and_a_cap_are_taken(tmp_path):
    words = np.array([f"w{at}" for at in range(450)])
    np.savez(tmp_path / "mine.npz", words=words, vectors=np.random.default_rng(0).normal(size=(450, 8)))
    found = planned(_recipe(vectors_file=str(tmp_path / "mine.npz"), cap=0.8))
    assert found.vocabulary.words == tuple(words[:400])
    assert isinstance(found.mechanism, SanText)
    assert found.mechanism.table.cap == 0.8
    assert np.allclose(np.linalg.norm(found.vocabulary.vectors[:-1], axis=1), 1)
    event = found.mechanism.event(1)
    assert document_epsilon(event) <= event.epsilon * 0.8 + 1e-3


def _npz(**arrays):
    file = BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _npy():
    file = BytesIO()
    np.save(file, np.eye(2))
    return file.getvalue()


NAMES = np.array(["a", "b"])
DAMAGED = {"array": _npy(), "cut": _npz(words=NAMES, vectors=np.eye(2))[:-40], "nonsense": b"nothing"}
DAMAGED |= {"letters": _npz(words=NAMES, vectors=np.array([["x"], ["y"]])), "one array": _npz(words=NAMES)}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_file_that_holds_no_vectors_is_one_sentence(tmp_path, damage):
    (tmp_path / "mine.npz").write_bytes(DAMAGED[damage])
    with pytest.raises(rp.ConfigError, match=r"sanitize\.vectors_file is .*: give a \.npz file"):
        vocabulary_of(_recipe(vectors_file=str(tmp_path / "mine.npz")))


def test_words_of_a_model_are_a_vocabulary(tiny_base):
    recipe = _recipe(vectors="base", words=30)
    model = recipe.model.model_copy(update={"base": str(tiny_base)})
    found: Vocabulary = vocabulary_of(recipe.model_copy(update={"model": model}))
    assert len(found) == 30
    assert all(word == word.lower() and " " not in word for word in found.words)


def test_a_cut_by_characters_is_refused_in_a_sentence():
    said = r"^corpus\.max_chars is 2000, .*remove it, and let the method cut by words"
    with pytest.raises(rp.ConfigError, match=said):
        rp.plan(_recipe(corpus={"max_chars": 2000}))


@pytest.mark.parametrize("words", [2, 3, 19, 20, 400])
def test_charts_of_few_words_have_fewer_points_and_no_gap(words):
    found = charts(planned(_recipe(words=words, keep=None, epsilon=2.0)))
    lines = [line for chart in found for line in chart.series.values()]
    assert [len(line) for line in lines] == [min(words, 50)] * 3 + [min(words, 20)]
    assert all(np.isfinite(line).all() for line in lines)


@MECHANISMS
def test_a_share_of_kept_words_that_no_draw_is_below_is_refused(mechanism):
    """Randomised response took it for 'not set', and spent the whole budget."""
    with pytest.raises(rp.ConfigError, match=r"^sanitize\.keep is 0\.0025, .* keeps 0\.0025 of the 400 words"):
        rp.plan(_recipe(keep=1 / 400, mechanism=mechanism))
    with pytest.raises(rp.ConfigError, match=r"keeps 0\.0125 of the 80 words that can come out"):
        rp.plan(_recipe(keep=0.01, plus={"sensitive": 0.2}))
    assert 0 < rp.plan(_recipe(keep=1 / 400 + 1e-7, mechanism=mechanism)).epsilon < 1
    assert rp.plan(_recipe(keep=None, epsilon=700.0, mechanism="randomized_response")).plan.figures  # all words stay
