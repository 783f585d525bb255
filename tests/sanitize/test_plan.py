"""What a recipe of SanText plans, from public values alone."""

from typing import Any

import numpy as np
import pytest

import rayprivacy as rp
from rayprivacy.accounting.metric import document_epsilon
from rayprivacy.methods.santext.mechanisms import planned, vocabulary_of
from rayprivacy.sanitize.mechanism import RandomizedResponse, SanText
from rayprivacy.sanitize.vocabulary import Vocabulary


def _recipe(**sanitize: Any) -> Any:
    blocks = {"words": 400, "keep": 0.5, "max_tokens": 10, **sanitize}
    corpus = {"source": "talk.parquet", "max_records_per_user": 3}
    return rp.load_recipe({"method": "santext", "corpus": corpus, "privacy": {"epsilon": 1e6}, "sanitize": blocks})


def test_all_documents_of_a_user_are_charged() -> None:
    recipe = _recipe()
    each = planned(recipe).mechanism.token_epsilon
    assert rp.plan(recipe).epsilon == pytest.approx(3 * 10 * each, rel=1e-9)
    response = _recipe(mechanism="randomized_response")
    assert rp.plan(response).epsilon == pytest.approx(30 * planned(response).mechanism.token_epsilon, rel=1e-9)
    assert planned(response).keep == pytest.approx(0.5, abs=1e-4)


def test_sensitive_words_are_the_least_frequent_ones_of_the_public_list() -> None:
    found = planned(_recipe(plus={"sensitive": 0.75, "p": 0.5}))
    assert isinstance(found.mechanism, SanText)
    assert found.mechanism.table.first == 100
    assert found.vocabulary.words[0] == "the", "the list runs from frequent to rare"
    assert found.mechanism.sensitive != ""


def test_at_one_rate_of_kept_words_randomised_response_bounds_all_pairs_by_less() -> None:
    santext = planned(_recipe())
    response = RandomizedResponse(400, santext.competitor)
    assert response.keep_rate == pytest.approx(santext.keep, abs=1e-6)
    assert response.token_epsilon < santext.mechanism.token_epsilon


def test_a_file_of_vectors_and_a_cap_are_taken(tmp_path: Any) -> None:
    dice = np.random.default_rng(0)
    words = np.array([f"w{at}" for at in range(450)])
    np.savez(tmp_path / "mine.npz", words=words, vectors=dice.normal(size=(450, 8)))
    recipe = _recipe(vectors_file=str(tmp_path / "mine.npz"), cap=0.8)
    found = planned(recipe)
    assert found.vocabulary.words == tuple(words[:400])
    assert isinstance(found.mechanism, SanText)
    assert found.mechanism.table.cap == 0.8
    assert np.allclose(np.linalg.norm(found.vocabulary.vectors[:-1], axis=1), 1)
    event = found.mechanism.event(1)
    assert document_epsilon(event) <= event.epsilon * 0.8 + 1e-3


@pytest.mark.parametrize("damage", ["array", "cut", "nonsense", "letters", "one array"])
def test_a_file_that_holds_no_vectors_is_one_sentence(tmp_path: Any, damage: str) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, words=np.array(["a", "b"]), vectors=np.eye(2))
    if damage == "array":
        np.save(tmp_path / "other.npy", np.eye(2))
        path.write_bytes((tmp_path / "other.npy").read_bytes())
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-40])
    elif damage == "nonsense":
        path.write_text("nothing")
    elif damage == "letters":
        np.savez(path, words=np.array(["a", "b"]), vectors=np.array([["x"], ["y"]]))
    else:
        np.savez(path, words=np.array(["a", "b"]))
    with pytest.raises(rp.ConfigError, match=r"sanitize\.vectors_file is .*: give a \.npz file"):
        vocabulary_of(_recipe(vectors_file=str(path)))


def test_words_of_a_model_are_a_vocabulary(tiny_base: Any) -> None:
    recipe = _recipe(vectors="base", words=30).model_copy(
        update={"model": _recipe().model.model_copy(update={"base": str(tiny_base)})}
    )
    found: Vocabulary = vocabulary_of(recipe)
    assert len(found) == 30
    assert all(word == word.lower() and " " not in word for word in found.words)
