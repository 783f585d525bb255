"""Perplexities of models on the text of some users, and what resampling the users says of them."""

import math

import numpy as np
import pytest
import torch

from rayprivacy.evaluation.language import perplexity_figures, row_nll, total_nll
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.features import encode


def test_one_perplexity_by_hand() -> None:
    found = perplexity_figures({"base": np.array([math.log(8)])}, np.array([1.0]), np.array([0]))
    assert found["perplexity"]["base"] == pytest.approx(8)
    assert found["perplexity_interval"] == found["over_base"] == {}


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
