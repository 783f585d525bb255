"""Figures against values worked out by hand, and against sacrebleu on the same input."""

import json
import math

import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st

from rayprivacy.core.errors import ConfigError
from rayprivacy.evaluation.language import (
    WORD_EDGES,
    bleu,
    distinct_n,
    length_summary,
    perplexity,
    pool_bleu,
    synthetic_metrics,
)

HYPOTHESES = ["the cat sat on the mat", "hello there, how are you ?", "I like tea"]
REFERENCES = ["the cat sat on a mat", "hello, how are you today ?", "I like green tea"]


def test_perplexity_is_the_exponential_of_the_mean() -> None:
    assert perplexity(10 * math.log(49152), 10) == pytest.approx(49152), "of a uniform guess, that of the vocabulary"
    for nll, tokens in ((1.0, 0), (1.0, -3), (-1.0, 2), (math.nan, 2), (math.inf, 2), (1e6, 2)):
        with pytest.raises(ConfigError):
            perplexity(nll, tokens)


@pytest.mark.parametrize(
    ("hypotheses", "references", "order", "score"),
    [
        # 5 of 6 words, 3 of 5 pairs, 2 of 4 triples; equal lengths, so no brevity penalty
        (HYPOTHESES[:1], REFERENCES[:1], 3, 100 * (5 / 6 * 3 / 5 * 2 / 4) ** (1 / 3)),
        (["a b c"], ["a b c d"], 2, 100 * math.exp(1 - 4 / 3)),  # brevity penalty
        (HYPOTHESES, REFERENCES, 4, sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score),
        (["so do I"], ["so do I"], 4, 100),  # short texts count the orders there are
        ([], [], 4, 0),
        ([""], ["some text"], 4, 0),
    ],
)
def test_bleu_by_hand(hypotheses: list[str], references: list[str], order: int, score: float) -> None:
    assert bleu(hypotheses, references, order) == pytest.approx(score)


def test_bleu_against_a_pool_is_that_of_sacrebleu_with_many_references() -> None:
    one = sacrebleu.sentence_bleu(HYPOTHESES[0], REFERENCES, smooth_method="exp").score
    assert pool_bleu(HYPOTHESES[:1], REFERENCES, 4) == pytest.approx(one)
    assert pool_bleu(["a b c d", "x y z w"], ["a b c d"], 4) == pytest.approx(100 / 2, abs=3)


def test_self_bleu_leaves_each_text_out() -> None:
    assert pool_bleu(["a b c d"] * 3, ["a b c d"] * 3, 4, leave_one_out=True) == pytest.approx(100)
    alone = ["a b c d", "e f g h", "i j k l"]
    assert pool_bleu(alone, alone, 4) == pytest.approx(100)
    assert pool_bleu(alone, alone, 4, leave_one_out=True) < 10
    assert pool_bleu(alone[:1], alone[:1], 4, leave_one_out=True) == 0
    with pytest.raises(ConfigError, match="leaves each text out"):
        pool_bleu(alone, alone[:2], 4, leave_one_out=True)
    with pytest.raises(ConfigError, match="2 hypotheses and 1 references"):
        bleu(["a", "b"], ["a"], 4)
    with pytest.raises(ConfigError, match="order is 0"):
        bleu(["a"], ["a"], 0)


def test_distinct_by_hand() -> None:
    texts = ["a b a b", "a b"]
    assert distinct_n(texts, 1) == 2 / 6
    assert distinct_n(texts, 2) == 2 / 4  # ab, ba of ab, ba, ab, ab: no pair runs across texts
    assert distinct_n(texts, 5) == 0.0
    assert distinct_n([], 1) == 0.0
    with pytest.raises(ConfigError):
        distinct_n(texts, 0)


def test_synthetic_metrics_by_hand() -> None:
    names = ("texts", "distinct_1", "distinct_2", "empty_share", "duplicate_share")
    found, nothing = synthetic_metrics(["a b", "a b", " ", "c"]), synthetic_metrics([])
    assert [found[name] for name in names] == [4, 3 / 5, 1 / 2, 0.25, 0.25]
    assert found["words"]["mean"] == 5 / 4
    assert [nothing[name] for name in names] == [0] * 5


def test_lengths_by_hand() -> None:
    found, nothing = length_summary(["w " * count for count in range(101)]), length_summary([])
    assert [found[name] for name in ("mean", "p5", "p50", "p95")] == [50, 5, 50, 95]
    assert [nothing[name] for name in ("mean", "p5", "p50", "p95")] == [0] * 4


@pytest.mark.parametrize(("words", "place"), [(0, 0), (1, 1), (4, 1), (5, 2), (99, 7), (100, 8), (5000, 8)])
def test_bins_start_at_their_edge(words: int, place: int) -> None:
    assert length_summary(["w " * words])["histogram"]["counts"].index(1) == place


@settings(max_examples=30)
@given(st.lists(st.text(max_size=40), max_size=20))
def test_every_text_falls_into_one_public_bin(texts: list[str]) -> None:
    found = length_summary(texts)
    assert found["histogram"]["edges"] == list(WORD_EDGES)
    assert sum(found["histogram"]["counts"]) == len(texts)
    json.dumps(found, allow_nan=False)
