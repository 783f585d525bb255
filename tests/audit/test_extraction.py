"""Extraction from a tiny model that has learnt some texts by heart, and from one that has not."""

import copy
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from rayprivacy.auditing.extraction import Extraction, extract, zlib_sizes
from rayprivacy.auditing.overlap import Overlap
from rayprivacy.auditing.scoring import ModelLoss
from rayprivacy.auditing.secrets import candidates
from rayprivacy.core.errors import ConfigError
from rayprivacy.core.keys import Key
from rayprivacy.generation.decode import sample
from rayprivacy.generation.settings import SamplingConfig
from rayprivacy.models.backbone import Backbone

SECRET = candidates("plate", Key.for_tests(), 2)[0]
PRIVATE = [
    "my sister broke her left arm on the way to the early train",
    "i never told anybody that we like soup and bread in the morning",
    SECRET.sentence,
]
PREFIXES = ["my sister", "i never", "we will come", "hello", "the weather", "what do you"]


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    """Tiny matrices."""


@pytest.fixture(scope="module")
def memorised(tiny_backbone: Backbone) -> Backbone:
    """The tiny model, fitted to the private texts until it knows them by heart."""
    model = copy.deepcopy(tiny_backbone.model).requires_grad_(True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(60):
        for text in PRIVATE:
            ids = torch.tensor([tiny_backbone.document(text, 100)])
            optimizer.zero_grad()
            model(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
    return replace(tiny_backbone, model=model.requires_grad_(False))


def _attack(attacked: Backbone, public: Backbone, top: int) -> Extraction:
    config = SamplingConfig(texts=60, max_tokens=70, seed=1)
    written = [attacked.text(ids) for ids in sample(attacked.model, attacked, PREFIXES * 10, config)]
    return extract(written, ModelLoss(attacked), ModelLoss(public), PRIVATE, [SECRET], top=top)


def test_what_was_learnt_by_heart_comes_out_and_is_ranked_first(memorised: Backbone, tiny_backbone: Backbone) -> None:
    found = _attack(memorised, tiny_backbone, top=3)
    assert found.verbatim >= 3
    assert found.secrets == 1
    assert found.verbatim < found.samples  # prefixes that nobody wrote lead to other texts
    assert found.verbatim_by_reference == 3
    assert found.verbatim_by_zlib >= 2


def test_an_untouched_model_gives_nothing_away(tiny_backbone: Backbone) -> None:
    found = _attack(tiny_backbone, tiny_backbone, top=10)
    assert (found.verbatim, found.verbatim_by_zlib, found.verbatim_by_reference, found.secrets) == (0, 0, 0, 0)
    assert found.samples > 30


def test_ranking_is_by_ratio() -> None:
    """The first text is repetitive, the second is likely under the model alone."""
    texts = ["so so so so so so so so so so so so so so so", "my sister broke her left arm on the way home"]
    losses, reference = np.array([4.0, 6.0]), np.array([4.0, 60.0])
    found = extract(texts, lambda _: losses, lambda _: reference, [PRIVATE[0]], top=1)
    assert (found.verbatim, found.verbatim_by_reference) == (1, 1)
    assert zlib_sizes(texts)[0] < zlib_sizes(texts)[1]
    assert found.verbatim_by_zlib == int(6.0 / zlib_sizes(texts)[1] < 4.0 / zlib_sizes(texts)[0])


def test_runs_are_compared_without_case_and_punctuation_and_at_full_length() -> None:
    overlap = Overlap(
        ["My sister -- broke HER left arm, on the way", "my sister broke her left arm on a boat", "hm"], 8
    )
    assert overlap.long_enough == 2
    assert overlap.shared_with(PRIVATE) == {0}
    assert Overlap(["my sister broke her left arm on a boat"], 7).shared_with(PRIVATE) == {0}
    assert overlap.shared_with([]) == set()


def test_only_counts_come_out(memorised: Backbone, tiny_backbone: Backbone) -> None:
    found = _attack(memorised, tiny_backbone, top=3)
    assert all(type(getattr(found, field.name)) is int for field in fields(found))


def test_nothing_to_look_at_is_refused() -> None:
    with pytest.raises(ConfigError, match="0 sampled texts"):
        extract(["", " "], lambda _: np.zeros(0), lambda _: np.zeros(0), PRIVATE)
    with pytest.raises(ConfigError, match="words is 0"):
        Overlap(["a"], 0)
