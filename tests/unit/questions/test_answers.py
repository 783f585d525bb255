"""Answers as SQuAD compares them; the kind that a question asks for; entities by rules and by a model."""

import math

import numpy as np
import pytest

from rayprivacy.core.errors import ConfigError
from rayprivacy.questions.answers import (
    exact_match,
    f1,
    hit,
    holds,
    ndcg,
    normalised,
    reciprocal_rank,
    score_answers,
    score_rankings,
)
from rayprivacy.questions.entities import Entity, by_rules, finder
from rayprivacy.questions.typed import kinds_asked, typed_answer


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("The  Denver Broncos.", "denver broncos"),
        ("an A.B.C. of a thing", "abc of thing"),
        ("then", "then"),
        ("Saint-Denis", "saintdenis"),
        ("the", ""),
    ],
)
def test_answers_are_normalised_as_by_squads_script(answer, expected):
    assert normalised(answer) == expected


def test_f1_counts_each_word_as_often_as_it_stands():
    assert f1("new new york", "new york city") == pytest.approx(2 / 3)
    assert f1("new new york york", "new york") == pytest.approx(2 * 2 / 6)
    assert f1("new new york", "new new jersey") == pytest.approx(2 * 2 / 6)
    assert f1("", "new") == f1("the", "new") == 0
    assert exact_match("the Broncos", "Broncos!") == 1
    assert exact_match("broncos broncos", "Broncos") == 0


def test_an_answer_counts_by_its_best_reference():
    found = score_answers(["the cat", "a dog"], [["dog", "cat"], ["big dog"]])
    assert found["exact_match"].value == 0.5
    assert found["f1"].value == pytest.approx((1 + 2 / 3) / 2)


def test_intervals_are_over_articles_and_not_over_questions():
    right = [True] * 200 + [False] * 200  # of four articles, two are known by heart
    articles = [f"article {row // 100}" for row in range(400)]
    predictions = ["yes" if each else "no" for each in right]
    by_article = score_answers(predictions, [["yes"]] * 400, articles)["exact_match"]
    by_question = score_answers(predictions, [["yes"]] * 400)["exact_match"]
    assert by_article.value == by_question.value == 0.5
    assert (by_article.low, by_article.high) == (0.0, 1.0)
    assert by_question.high - by_question.low < 0.12
    assert score_answers(["yes"], [["yes"]])["f1"].low is None


@pytest.mark.parametrize("given", [([], []), (["a"], []), (["a"], [["b"]], ["x", "y"]), (["a"], [[]])], ids=str)
def test_what_does_not_fit_is_refused_in_a_sentence(given):
    with pytest.raises(ConfigError, match=r"^[^\n]+\.$"):
        score_answers(*given)


def test_rankings_count_by_the_place_of_what_is_right():
    ranking = ["a", "b", "c", "d"]
    assert [hit(ranking, {"b"}, most) for most in (1, 2)] == [0, 1]
    assert reciprocal_rank(ranking, {"c", "d"}) == pytest.approx(1 / 3)
    assert reciprocal_rank(ranking, {"x"}) == ndcg(ranking, {"x"}) == 0
    assert ndcg(ranking, {"a"}) == 1
    assert ndcg(ranking, {"b"}) == pytest.approx(1 / math.log2(3))
    assert ndcg(ranking, {"a", "c"}) == pytest.approx((1 + 0.5) / (1 + 1 / math.log2(3)))
    assert ndcg(["x"] * 10 + ["a"], {"a"}) == reciprocal_rank(["x"] * 10 + ["a"], {"a"}) == 0
    found = score_rankings([ranking, ranking], [{"a"}, {"d"}], ["one", "two"])
    assert {name: each.value for name, each in found.items()} == pytest.approx(
        {"top_1": 0.5, "top_5": 1.0, "top_20": 1.0, "mrr_10": 0.625, "ndcg_10": (1 + 1 / math.log2(5)) / 2}
    )
    assert (found["top_1"].low, found["top_1"].high) == (0, 1)


def test_ndcg_is_that_of_another_implementation():
    theirs = pytest.importorskip("sklearn.metrics").ndcg_score
    dice = np.random.default_rng(0)
    for _ in range(50):
        scores, relevant = dice.permutation(30), dice.random(30) < 0.2
        ranking, right = np.argsort(-scores).tolist(), {*np.flatnonzero(relevant).tolist()}
        expected = theirs([relevant.astype(float)], [scores], k=10) if right else 0
        assert ndcg(ranking, right) == pytest.approx(expected)


def test_rankings_that_do_not_fit_are_refused():
    for given in (([], []), ([[1]], []), ([[1]], [{1}], ["x", "y"])):
        with pytest.raises(ConfigError, match=r"^[^\n]+\.$"):
            score_rankings(*given)


def test_words_stand_in_a_text_whole():
    assert holds("The mill of Elm was closed.", "the Mill")
    assert not holds("The millers of Elm", "mill")


EVIDENCE = "Mr. Lee paid $ 5 million in May 2016, and 308 people left Elm Lake for the third time."


def test_rules_find_what_is_told_by_its_form():
    found = {EVIDENCE[each.start : each.end]: each.kind for each in by_rules(EVIDENCE)}
    assert found == {
        "Mr. Lee": "PERSON",
        "$ 5 million": "MONEY",
        "May 2016": "DATE",
        "308": "CARDINAL",
        "Elm Lake": "LOC",
        "third": "ORDINAL",
    }


def test_the_model_finds_the_same_whatever_else_it_is_given():
    pytest.importorskip("spacy")
    find = finder("spacy")
    alone = find([EVIDENCE])[0]
    assert Entity(EVIDENCE.index("308"), EVIDENCE.index("308") + 3, "CARDINAL") in alone
    assert find(["Short.", EVIDENCE, EVIDENCE * 5])[1] == alone
    assert all(EVIDENCE[each.start : each.end].strip() for each in alone)


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("How much money did Mr. Lee pay?", "$ 5 million"),
        ("When did he pay?", "May 2016"),
        ("How many people left Elm Lake?", "308"),
        ("Who paid?", "Mr. Lee"),
        ("Who did Mr. Lee pay?", None),  # the only person stands in the question
        ("Why did he pay?", None),
        ("What percentage left?", None),
    ],
)
def test_an_answer_is_the_entity_of_its_kind(question, answer):
    found = typed_answer(question, EVIDENCE, by_rules(EVIDENCE))
    assert (found and EVIDENCE[found.start : found.end]) == answer


def test_of_two_entities_the_one_beside_the_questions_words_answers():
    evidence = "The mill had 40 workers in a good year, while the small school beside it had 12 teachers."
    found = by_rules(evidence)
    for question, answer in (("How many teachers had the school?", "12"), ("How many workers had the mill?", "40")):
        chosen = typed_answer(question, evidence, found)
        assert chosen
        assert evidence[chosen.start : chosen.end] == answer


def test_what_a_question_asks_for_is_read_off_its_words():
    assert kinds_asked("In what year was it?") == ("DATE", "TIME")
    assert kinds_asked("Which company was it?") == ("ORG",)
    assert kinds_asked("the whole of it") == ()
