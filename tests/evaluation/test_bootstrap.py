"""Intervals over users cover the truth as often as they say; intervals over texts do not, where users differ."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from rayprivacy.evaluation.figures import Figure, mean_figure
from rayprivacy.evaluation.language import perplexity_figures, row_nll, total_nll
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.features import encode

USERS, EACH, WORLDS = 60, 20, 300


def test_intervals_by_hand() -> None:
    users = np.array([0, 0, 1])
    assert mean_figure([1.0, 2.0, 6.0], users, 0).value == 3
    assert mean_figure([1.0, 2.0, 6.0], users, 0, weights=[1, 1, 2]).value == 3.75
    assert mean_figure([1.0, 2.0], np.array([4, 4]), 0) == Figure(1.5), "one user has no interval"
    found = mean_figure([0.0, 1.0], np.array([0, 1]), 0)  # of four equally likely draws two give 0 or 1, two one half
    assert (found.low, found.high) == (0.0, 1.0)


def test_the_seed_decides_and_gaps_in_numbers_do_not() -> None:
    values = np.random.default_rng(1).normal(size=50)
    users = np.repeat(np.arange(10), 5)
    assert mean_figure(values, users, 3) == mean_figure(values, users * 7, 3)
    assert mean_figure(values, users, 3) != mean_figure(values, users, 4)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_resampling_users_covers_the_truth_and_resampling_texts_does_not() -> None:
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


def test_one_perplexity_by_hand() -> None:
    found = perplexity_figures({"base": np.array([math.log(8)])}, np.array([1.0]), np.array([0]))
    assert found == {"perplexity": {"base": pytest.approx(8)}, "perplexity_interval": {}, "over_base": {}}


def test_models_are_resampled_together() -> None:
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


def test_texts_of_one_user_are_one_observation() -> None:
    nll = {"base": np.repeat([20.0, 30.0, 40.0, 50.0], 100)}
    own = perplexity_figures(nll, np.full(400, 10.0), np.repeat(np.arange(4), 100))["perplexity_interval"]["base"]
    apart = perplexity_figures(nll, np.full(400, 10.0), np.arange(400))["perplexity_interval"]["base"]
    assert own[1] / own[0] > 2 * apart[1] / apart[0]


def test_the_rows_add_up_to_the_whole(tiny_backbone: Backbone, public_sentences: list[str]) -> None:
    documents = [tiny_backbone.document(text, 40) for text in public_sentences]
    rows = encode(tiny_backbone, documents, 64, len(documents))
    each = row_nll(rows.hidden, rows, tiny_backbone.head)
    total, tokens = total_nll(rows.hidden, rows, tiny_backbone.head)
    assert total == pytest.approx(float(each.sum()))
    assert tokens == int(rows.predicts.sum())
    logits = rows.hidden[0].float() @ tiny_backbone.head.T
    keep = rows.predicts[0]
    expected = torch.nn.functional.cross_entropy(logits[:-1][keep], rows.ids[0, 1:][keep], reduction="sum")
    assert float(each[0]) == pytest.approx(float(expected), rel=1e-5)
