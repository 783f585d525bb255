"""Figures of words, labels and trees: by hand, against sacrebleu and against searches that try everything."""

import json
import math
import random
from collections import Counter
from typing import Any

import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st

from rayprivacy.core.errors import ConfigError, CorpusError
from rayprivacy.evaluation import language
from rayprivacy.evaluation.language import bleu, distinct_n, length_summary, normal_words, perplexity, pool_bleu
from rayprivacy.evaluation.memorisation import GRAM, shared_runs
from rayprivacy.evaluation.settings import EvaluationConfig
from rayprivacy.evaluation.texts import Texts, draw, plain
from rayprivacy.evaluation.trees import chi_square, tree_figures, tree_rows, word_recall
from rayprivacy.evaluation.words import downstream, labelled
from rayprivacy.tagging.figures import Errors, Frame, all_errors, errors_of
from rayprivacy.tagging.settings import Tags, spans

HYPOTHESES = ["the cat sat on the mat", "hello there, how are you ?", "I like tea"]
REFERENCES = ["the cat sat on a mat", "hello, how are you today ?", "I like green tea"]


def test_bleu_and_perplexity_by_hand():
    # 5 of 6 words, 3 of 5 pairs, 2 of 4 triples; equal lengths, so no brevity penalty
    assert bleu(HYPOTHESES[:1], REFERENCES[:1], 3) == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4) ** (1 / 3))
    assert bleu(["a b c"], ["a b c d"], 2) == pytest.approx(100 * math.exp(1 - 4 / 3)), "brevity penalty"
    assert bleu(HYPOTHESES, REFERENCES, 4) == pytest.approx(sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score)
    assert bleu(["so do I"], ["so do I"], 4) == pytest.approx(100), "short texts count the orders there are"
    assert bleu([], [], 4) == bleu([""], ["some text"], 4) == 0
    assert perplexity(10 * math.log(49152), 10) == pytest.approx(49152), "of a uniform guess, that of the vocabulary"
    for nll, tokens in ((1.0, 0), (1.0, -3), (-1.0, 2), (math.nan, 2), (math.inf, 2), (1e6, 2)):
        with pytest.raises(ConfigError):
            perplexity(nll, tokens)


def test_bleu_against_a_pool_is_that_of_sacrebleu_with_many_references_and_may_leave_each_text_out():
    one = sacrebleu.sentence_bleu(HYPOTHESES[0], REFERENCES, smooth_method="exp").score
    assert pool_bleu(HYPOTHESES[:1], REFERENCES, 4) == pytest.approx(one)
    assert pool_bleu(["a b c d", "x y z w"], ["a b c d"], 4) == pytest.approx(100 / 2, abs=3)
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


def test_distinct_and_shared_words_by_hand():
    texts = ["a b a b", "a b"]
    assert distinct_n(texts, 1) == 2 / 6
    assert distinct_n(texts, 2) == 2 / 4  # ab, ba of ab, ba, ab, ab: no pair runs across texts
    assert distinct_n(texts, 5) == 0.0
    assert distinct_n([], 1) == 0.0
    with pytest.raises(ConfigError):
        distinct_n(texts, 0)
    found = language.shared_words(["the cat sat", "A dog"], ["The cat ran", "the end"])
    assert found["word_type_overlap"] == 2 / 7  # the, cat of the, cat, sat, a, dog, ran, end
    assert found["new_word_share"] == 2 / 5
    assert language.shared_words([], []) == {"word_type_overlap": 0, "new_word_share": 0}


def test_synthetic_metrics_by_hand():
    names = ("texts", "distinct_1", "distinct_2", "empty_share", "duplicate_share")
    found, nothing = language.synthetic_metrics(["a b", "a b", " ", "c"]), language.synthetic_metrics([])
    assert [found[name] for name in names] == [4, 3 / 5, 1 / 2, 0.25, 0.25]
    assert found["words"]["mean"] == 5 / 4
    assert [nothing[name] for name in names] == [0] * 5
    found, nothing = length_summary(["w " * count for count in range(101)]), length_summary([])
    assert [found[name] for name in ("mean", "p5", "p50", "p95")] == [50, 5, 50, 95]
    assert [nothing[name] for name in ("mean", "p5", "p50", "p95")] == [0] * 4
    for words, place in ((0, 0), (1, 1), (4, 1), (5, 2), (99, 7), (100, 8), (5000, 8)):
        assert length_summary(["w " * words])["histogram"]["counts"].index(1) == place


@settings(max_examples=30)
@given(st.lists(st.text(max_size=40), max_size=20))
def test_every_text_falls_into_one_public_bin(texts):
    found = length_summary(texts)
    assert found["histogram"]["edges"] == list(language.WORD_EDGES)
    assert sum(found["histogram"]["counts"]) == len(texts)
    json.dumps(found, allow_nan=False)


def brute(text, real, most=100):
    words, others = normal_words(text), [f" {' '.join(normal_words(other))} " for other in real]
    for length in range(min(len(words), most), 0, -1):
        pieces = (f" {' '.join(words[at : at + length])} " for at in range(len(words) - length + 1))
        if any(piece in other for piece in pieces for other in others):
            return length
    return 0


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("alphabet", ["ab", "abcdefgh"])
def test_the_longest_run_is_that_of_a_search_that_tries_all(seed, alphabet):
    draw = random.Random(seed)
    texts, real = ([" ".join(draw.choices(alphabet, k=draw.randint(0, 30))) for _ in range(25)] for _ in range(2))
    found = shared_runs(texts, [real])
    assert found.longest.tolist() == [brute(text, real) for text in texts]
    assert found.words.tolist() == [len(text.split()) for text in texts]


def test_grams_by_hand():
    real = ["one two three four five six seven eight nine ten"]
    found = shared_runs(["x one two three four five six seven eight nine y", "nine ten one two", "", real[0]], [real])
    assert found.longest.tolist() == [9, 2, 0, 10]
    assert found.grams.tolist() == [2, 0, 0, 3]
    assert found.long_enough.tolist() == [True, False, False, True]
    assert found.gram_share.tolist() == [2 / 4, 0, 0, 1]
    assert found.copied.tolist() == [False, False, False, True]
    # A run does not cross texts, and no words are no run.
    assert shared_runs(["a b", "c d", "a b c d"], [["a b", "c d"]]).longest.tolist() == [2, 2, 2]
    assert shared_runs([], [["a b"]]).longest.tolist() == []
    assert shared_runs(["!?", "a"], [["..."]]).longest.tolist() == [0, 0]
    real = [f"w{row} x{row} y{row} z{row}" for row in range(20_000)]
    assert shared_runs([real[19_999], "w1 x2"], [real]).longest.tolist() == [4, 1]


def test_capitals_punctuation_and_unicode_forms_do_not_hide_a_copy():
    real = "We'll meet at the café, near the OLD station, at nine o'clock"
    copy = "we ll MEET at the cafe\u0301 near... the old station - at nine o clock!"
    found = shared_runs([copy], [[real]])
    assert found.copied.tolist() == [True]
    assert found.longest[0] >= GRAM
    for real, other in (  # words have no spaces
        ("我昨天在北京大学医院看了心脏病专家。他给我开了药。", "今天天气很好。我们一起去公园散步吧。"),
        ("ฉันไปพบแพทย์โรคหัวใจที่โรงพยาบาลเมื่อวานนี้", "วันนี้อากาศดีมากเราไปเดินเล่นกัน"),
    ):
        found = shared_runs([f"{other}{real[2:]}", other], [[real]])
        assert found.longest[0] > GRAM
        assert found.grams[0] > found.grams[1] == 0


@pytest.mark.parametrize("size", [1, 7, 40])
def test_blocks_of_real_texts_are_as_good_as_all_at_once(size):
    draw = random.Random(size)
    texts, real = ([" ".join(draw.choices("abc", k=draw.randint(0, 30))) for _ in range(40)] for _ in range(2))
    whole = shared_runs(texts, [real])
    found = shared_runs(texts, (real[at : at + size] for at in range(0, 40, size)))
    for ours, theirs in zip(vars(found).values(), vars(whole).values(), strict=True):
        assert ours.tolist() == theirs.tolist()
    assert whole.grams.max() > 1, "the same places of different blocks are counted once"


TRUTH = Frame("play", [("artist", "the doors"), ("year", "1967"), ("artist", "love")])
FRAMES = st.builds(
    Frame,
    st.sampled_from(["play", "book"]),
    st.lists(st.tuples(st.sampled_from(["artist", "year", "city"]), st.sampled_from(["a", "b"])), max_size=5),
)


def test_rates_by_hand():
    for slots in range(4):
        held = TRUTH.slots[:slots]
        assert errors_of(Frame("play", held), Frame("book", held)).rate == 1 / (slots + 1)
    found = errors_of(Frame("play", []), Frame("play", [("artist", "a"), ("artist", "a")]))
    assert (found.insertions, found.rate) == (2, 2.0), "insertions alone can exceed one"
    found = errors_of(TRUTH, Frame("book", [("artist", "doors"), ("city", "1967"), ("artist", "love")]))
    assert found == Errors(intents=1, substitutions=1, deletions=1, insertions=1, texts=1, slots=3)
    assert found.rate == 1.0
    pairs = [(TRUTH, Frame("book", TRUTH.slots)), (Frame("play", []), Frame("play", []))]
    assert all_errors(pairs).rate == 1 / 5, "over the slots of all texts"
    # Labels that are missing or unknown are outside.
    tags = Tags(("play",), ("artist",))
    assert [tags.names[at] for at in tags.words("B-artist I-city", 4)] == ["B-artist", "O", "O", "O"]
    assert tags.words(None, 2) == [2, 2]
    assert tags.words("O O O", 1) == [2], "more labels than words"
    assert tags.intent(None) == tags.intent("sing") == 0


@given(FRAMES, FRAMES)
def test_errors_are_those_of_the_other_side_mirrored(one, other):
    there, back = errors_of(one, other), errors_of(other, one)
    assert (there.deletions, there.insertions) == (back.insertions, back.deletions)
    assert (there.substitutions, there.intents) == (back.substitutions, back.intents)
    assert there.substitutions + there.deletions <= there.slots
    assert (there.rate == 0) == (one.intent == other.intent and sorted(one.slots) == sorted(other.slots))


@given(st.lists(st.sampled_from(["O", "B-x", "I-x", "B-y", "I-y"]), max_size=9))
def test_spans_hold_every_word_that_has_a_slot(labels):
    words = [str(at) for at in range(len(labels))]
    inside = [word for label, word in zip(labels, words, strict=True) if label != "O"]
    assert [word for _, said in spans(labels, words) for word in said.split()] == inside
    assert len(spans(labels, words)) >= sum(label.startswith("B") for label in labels)


COUNTS = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 9), min_size=1).map(Counter)


@given(COUNTS, COUNTS)
def test_the_distance_is_symmetric_and_at_most_two(first, second):
    found = chi_square(first, second)
    assert found == pytest.approx(chi_square(second, first))
    assert 0 <= found <= 2 + 1e-12
    assert chi_square(first, Counter({name: 3 * count for name, count in first.items()})) == pytest.approx(0)
    shares = [(first[name] * second.total(), second[name] * first.total()) for name in first | second]
    assert (found > 1e-9) == any(one != other for one, other in shares)


def test_trees_by_hand():
    texts = plain([f"text {number}" for number in range(60)])
    assert tree_rows(draw(texts, texts, None, EvaluationConfig(tree="lispress"))) == [], "there is no column of trees"
    real = ["(A (B) (B) (C))", '(A (D "x"))']  # A 2, B 2, C 1, D 1
    synthetic = ["(A (B))", "no tree", "(E)"]  # A, B, E once each
    found = tree_figures(real, synthetic)
    assert found["function_recall"] == 2 / 4
    terms = [(1 / 3 - 1 / 3) ** 2 / (2 / 3)] * 2 + [1 / 6] * 2 + [1 / 3]
    assert found["function_distance_unhalved"] == pytest.approx(sum(terms))
    assert found["function_distance"] == pytest.approx(sum(terms) / 2)
    assert found["top_10"] == 2 / 4
    frequent = [f"(F{n} " + "(A)" * (100 - n) + ")" for n in range(30)]
    assert tree_figures(frequent, frequent[:5])["top_25"] < 1
    assert word_recall(["Cancel the meeting"], ["cancel the Cancel"]) == 2 / 3
    assert tree_figures([], ["(A)"])["function_recall"] == word_recall([], ["a"]) == 0


WORDS = {"tea": "green black hot cup milk honey".split(), "rain": "storm wind cloud wet grey umbrella".split()}  # noqa: SIM905


def corpus(seed, count, swap=False, tea=0.5):
    draw = random.Random(seed)
    topics = ["tea" if draw.random() < tea else "rain" for _ in range(count)]
    texts = [" ".join(draw.choices(WORDS[topic], k=4)) for topic in topics]
    labels = [{"tea": "rain", "rain": "tea"}[topic] if swap else topic for topic in topics]
    return plain(texts, [f"{seed}-{row // 4}" for row in range(count)], labels)


def test_good_synthetic_text_teaches_as_well_as_real_text_and_wrong_labels_do_not():
    ours, theirs, sizes = downstream(corpus(1, 200), corpus(2, 120), corpus(3, 80))
    assert ours["accuracy"].value == theirs["accuracy"].value == 1.0
    assert ours["macro_f1"].value == 1.0
    assert sizes == {"trained_on_texts": 120, "tested_on_texts": 80}
    ours, theirs, _ = downstream(corpus(1, 100), corpus(2, 100, swap=True), corpus(3, 80))
    assert ours["accuracy"].value == 0.0
    assert theirs["accuracy"].value == 1.0
    test: Any = corpus(3, 200)
    _, theirs, _ = downstream(corpus(1, 200, tea=0.9), corpus(2, 200), test)
    assert theirs["most_frequent_label_accuracy"].value == test.labels.count("tea") / 200


def test_macro_f1_counts_each_label_of_the_test_alike():
    test = plain(["green milk"] * 9 + ["storm wind"], labels=["tea"] * 9 + ["rain"])
    taught = plain(["green", "storm wind", "honey"] * 9, labels=["tea", "tea", "x"] * 9)
    ours, _, _ = downstream(corpus(1, 60), taught, test)  # says tea to everything here: F1 18/19 of tea, 0 of rain
    assert ours["macro_f1"].value == pytest.approx((18 / 19 + 0) / 2)
    assert ours["accuracy"].value == 0.9
    assert labelled(plain(["a", "b", "c"], labels=["x", None, "y"])).texts == ["a", "c"], "less those without a label"
    assert labelled(plain(["a"])).texts == []
    test = corpus(3, 100)
    labels = ["tea" if row % 5 == 0 else label for row, label in enumerate(test.labels or [])]
    noisy = Texts(test.texts, test.users, labels)
    found: Any = downstream(corpus(1, 100), corpus(2, 100), noisy)[0]["accuracy"]
    assert found.low < found.value < found.high


def test_one_label_is_nothing_to_learn_and_is_not_quoted():
    secret = plain(["a b", "c d"] * 20, labels=["secret-label"] * 40)
    for arguments, side in (((corpus(1, 50), secret), "--synthetic"), ((secret, corpus(1, 50)), "--real")):
        with pytest.raises(CorpusError, match=f"fewer than two labels in {side}") as caught:
            downstream(*arguments, corpus(3, 50))
        assert "secret-label" not in str(caught.value)
    with pytest.raises(CorpusError, match="without labels"):
        downstream(corpus(1, 50), corpus(2, 50), plain(["a"], labels=[None]))
    # Nor is a label that is in none of the drawn texts.
    rare = plain(["a b", "c d"] * 500, labels=["tea"] * 999 + ["rain"])
    with pytest.raises(CorpusError, match="fewer than two labels in --real"):
        downstream(rare, corpus(2, 20), corpus(3, 50))
