"""Clozes: the answer is in the passage and gone from the question, and the passage is the best one of its document."""

import random
import re

import numpy as np
import pytest
from public_pages import paragraphs

from rayprivacy.questions.clozes import PHRASES, Document, statements, where
from rayprivacy.questions.entities import Entity, by_rules
from rayprivacy.questions.lexical import Bm25
from rayprivacy.questions.settings import EvidenceConfig, PassagesConfig

pytest.importorskip("bm25s")
CUT = PassagesConfig(words=24, stride=12)
EVIDENCE = EvidenceConfig()


def made(texts):
    return Document(0, "", texts, range(len(texts)), CUT)


def documents(pages, *, together):
    texts = [paragraphs(number, seed=3) for number in range(pages)]
    return [made(each) for each in (texts if together else [[" ".join(page)] for page in texts])]


def asked(document, *, elsewhere, seed=0):
    found = [by_rules(text) for text in document.texts]
    return [*document.clozes(found, EVIDENCE, elsewhere, random.Random(f"{seed} {document.texts[0]}"))]


@pytest.fixture(scope="module", params=[True, False], ids=["of the rest of the page", "of its own text"])
def thousand(request):
    """A thousand clozes, each with its document, and whether it is asked of the rest of it."""
    found = []
    for document in documents(400, together=request.param):
        found += [(document, cloze) for cloze in asked(document, elsewhere=request.param)]
    assert len(found) >= 1000
    return request.param, found[:1000]


def sentence_of(document, cloze):
    """The text and the place of the sentence that a cloze was made of."""
    before, after = (re.escape(part) for part in cloze.question.split(cloze.phrase, 1))
    for text in document.texts:
        if cloze.question.count(cloze.phrase) == 1 and (
            match := re.search(f"{before}{re.escape(cloze.answer)}{after}", text)
        ):
            return text, match.span()
    return None


def test_the_answer_stands_in_the_passage_and_no_more_at_its_place_in_the_question(thousand):
    _, found = thousand
    seen = 0
    for document, cloze in found:
        text = document.passages[cloze.passage].text
        assert text.startswith(cloze.answer, cloze.start)
        assert cloze.evidence[0] <= cloze.start < cloze.start + len(cloze.answer) <= cloze.evidence[1]
        assert not re.search(rf"(?<!\w){re.escape(cloze.answer)}(?!\w)", cloze.question)
        if place := sentence_of(document, cloze):
            seen += 1
            sentence = place[0][slice(*place[1])]
            at = sentence.index(cloze.answer)
            assert cloze.question == sentence[:at] + cloze.phrase + sentence[at + len(cloze.answer) :]
    assert seen > 700


def test_the_phrase_is_one_of_its_kinds(thousand):
    _, found = thousand
    assert all(cloze.phrase in PHRASES[cloze.kind] for _, cloze in found)
    assert {cloze.phrase for _, cloze in found if cloze.kind == "DATE"} == set(PHRASES["DATE"])


def test_the_passage_is_the_best_of_its_document(thousand):
    elsewhere, found = thousand
    places = 0
    for document, cloze in found:
        scores = Bm25(piece.text for piece in document.passages).scores(cloze.question)
        own = sentence_of(document, cloze)
        if elsewhere and own:
            number = [*document.texts].index(own[0])
            for place, piece in enumerate(document.passages):
                if piece.number == number and piece.span[0] < own[1][1] and own[1][0] < piece.span[1]:
                    scores[place] = -np.inf
        if own or not elsewhere:
            places += 1
            assert np.argmax(scores) == cloze.passage
    assert places > 700


def test_a_sentence_is_not_asked_of_its_own_place_where_there_is_a_rest(thousand):
    elsewhere, found = thousand
    inside = 0
    for document, cloze in found:
        if own := sentence_of(document, cloze):
            piece = document.passages[cloze.passage]
            same = document.texts[piece.number] is own[0]
            inside += same and piece.span[0] < own[1][1] and own[1][0] < piece.span[1]
    assert (inside == 0) == elsewhere


def test_the_best_passage_is_looked_for_within_the_document_alone():
    page = ["The mill of Elm had 40 workers in a good year.", "About 40 workers of Elm came home from the mill."]
    other = ["The mill of Elm had 40 workers in a good year, as the mill of Elm had."]
    alone, beside = made(page), made([*page, *other])
    assert [cloze.passage for cloze in asked(alone, elsewhere=True)] == [1, 0]
    assert 2 in [cloze.passage for cloze in asked(beside, elsewhere=True)]


def test_an_entity_that_stands_twice_or_that_its_best_passage_lacks_is_no_answer():
    twice = made(["In 1850 the mill burnt, and 1850 was a bad year.", "The year 1850 was bad for the mill."])
    assert [cloze.answer for cloze in asked(twice, elsewhere=True)] == ["1850"]  # of the second sentence alone
    lacking = made(["The old mill burnt down in 1850.", "An old mill burnt.", "What was in 1850 nobody knows."])
    assert "The old mill burnt down in" not in " ".join(cloze.question for cloze in asked(lacking, elsewhere=True))


def test_each_entity_that_passes_is_as_likely():
    document = made(["Mr. Lee paid 40 workers in 1850.", "In 1850 the 40 workers of Mr. Lee were paid."])
    drawn = [asked(document, elsewhere=True, seed=seed)[0].answer for seed in range(300)]
    assert all(70 < drawn.count(answer) < 130 for answer in ("Mr. Lee", "40", "1850"))


def test_a_page_of_one_passage_has_no_rest():
    assert asked(made(["The mill had 40 workers in 1850."]), elsewhere=True) == []
    (cloze,) = asked(made(["The mill had 40 workers in 1850."]), elsewhere=False)
    assert cloze.answer in ("40", "1850")


def test_sentences_that_are_asked_about_are_neither_short_nor_long_nor_too_many():
    text = " ".join(
        ["Too short.", *(f"This one has just number {word}." for word in "abcdefghijkl"), "Long " * 70 + "."]
    )
    found = statements(text, EVIDENCE, random.Random(0))
    assert len(found) == EVIDENCE.most
    assert found == sorted(found)
    assert all(5 <= len(text[start:end].split()) <= 60 for start, end in found)
    assert len(statements(text, EvidenceConfig(most=50), random.Random(0))) == 12


def test_a_kind_without_a_phrase_is_not_asked_for():
    document = made(["The mill had 40 workers."])
    assert not [*document.clozes([[Entity(13, 15, "UNKNOWN")]], EVIDENCE, False, random.Random(0))]


def test_the_evidence_is_the_sentence_that_shares_most_with_the_question():
    passage = "In 1850 a fire came. The tall mill of Elm burnt in 1850. Nobody knew 18500 of it."
    question = "The mill of Elm burnt when"
    assert where(passage, question, "1850") == ((21, 56), 51)
    assert where(passage, question, "185") is None
