"""Claims made of right answers have the labels that they are given, and a judge learns these from public claims."""

import json
import re
from collections import Counter

import numpy as np
import pytest
from public_pages import paragraphs
from small_tagger import save_tiny_bert

import rayprivacy as rp
from rayprivacy.core.errors import ConfigError
from rayprivacy.questions.answers import holds
from rayprivacy.questions.entities import by_rules

pytest.importorskip("bm25s")
from rayprivacy.questions.attribution import LABEL_OF, LABELS, Claim, simulated
from rayprivacy.questions.judge import nearest, told_by_words, trained_judge
from rayprivacy.questions.overlap import Idf, words
from rayprivacy.questions.settings import JudgeConfig

FACTS = {
    "Who opened the {}?": r"Mr\. \w+",
    "In what month was the {} opened?": r"(?<=opened in )\w+ \d+",
    "How many workers did the {} have?": r"\d+(?= workers)",
    "Where did people walk?": r"\w+ Lake",
}


def squad(question, context, answer):
    return {
        "question": question,
        "context": context,
        "answers": {"text": [answer], "answer_start": [context.index(answer)]},
    }


def asked(pages, seed=0):
    """Four questions about each of some pages; a page also says who did, and counts, something else."""
    rows = []
    for number in pages:
        text = paragraphs(number, seed)[0] + f" Mr. Quill drew a map of it in May 18{number % 90 + 10}, with 7 towers."
        work = re.search(r"The (\w+ of \w+)", text)[1]
        rows += [squad(question.format(work), text, re.search(pattern, text)[0]) for question, pattern in FACTS.items()]
    return rows


def find(texts):
    return [by_rules(text) for text in texts]


ROWS = asked(range(30))


@pytest.mark.parametrize("harder", [True, False])
def test_every_variant_is_what_its_label_says(harder):
    made = simulated(ROWS, find, harder=harder)
    assert Counter(each.variant for each in made).keys() == LABEL_OF.keys()
    for claim, variant, number in made:
        row = ROWS[number]
        right = row["answers"]["text"][0]
        assert claim.question == row["question"]
        if variant == "A":
            assert (claim.answer, claim.reference) == (right, row["context"])
        if variant == "B":
            assert claim.reference == row["context"]
            assert not holds(claim.answer, right)
            assert not holds(right, claim.answer)
            assert {each.kind for each in by_rules(claim.answer)} & {each.kind for each in by_rules(right)}
            assert holds(claim.reference, claim.answer) or not harder or "Lake" in right  # a page has one lake
        if variant == "C":
            assert claim.answer == right
            assert claim.reference != row["context"]
            assert not holds(claim.reference, right)
        if variant == "D":
            assert claim.reference in {other["context"] for other in ROWS} - {row["context"]}
            assert not holds(claim.reference, right)


def test_half_of_the_harder_answers_of_d_stand_in_its_passage():
    def share(harder):
        return np.mean([holds(*each.claim[:0:-1]) for each in simulated(ROWS, find, {"D": 1.0}, harder=harder)])

    assert share(False) == 0
    assert 0.3 < share(True) < 0.7


def test_d_has_no_form_of_the_answer():
    rows = [
        squad("Who won the cup in Denver?", "The cup in Denver was won by the Broncos.", "the Broncos"),
        squad("Who fills the cup?", "In Denver fans of Broncos fill the cup and won the day.", "fans"),
        squad("Who sees rain?", "Rain in Denver is seen by cats.", "cats"),
    ]
    made = [each.claim for each in simulated(rows, find, {"D": 1.0}, harder=False) if each.row == 0]
    assert made == [Claim(rows[0]["question"], "the Broncos", rows[2]["context"])]


def test_shares_are_as_asked_and_draws_are_the_seeds():
    shares = {"A": 0.5, "B": 0.25, "C": 0.1, "D": 1.0}
    made = simulated(ROWS, find, shares, seed=3)
    assert Counter(each.variant for each in made) == {name: round(share * len(ROWS)) for name, share in shares.items()}
    assert made == simulated(ROWS, find, shares, seed=3)
    assert made != simulated(ROWS, find, shares, seed=4)


def learnt(rows, config):
    made = simulated(rows, find)
    idf = Idf.of(words(each.claim.reference) for each in made)
    return trained_judge([each.claim for each in made], [each.label for each in made], idf, config)


@pytest.fixture(scope="module")
def by_words():
    return learnt(ROWS, JudgeConfig(encoder=None))


def test_a_judge_by_words_tells_most_claims_about_other_pages(by_words):
    made = simulated(asked(range(40, 60)), find)
    said = by_words.probabilities([each.claim for each in made])
    assert said.sum(axis=1) == pytest.approx(1)
    right = [LABELS[place] == each.label for place, each in zip(said.argmax(axis=1), made, strict=True)]
    assert np.mean(right) > 0.7  # half of them are contradictory


def test_a_saved_judge_says_the_same(by_words, tmp_path):
    by_words.save(tmp_path / "judge")
    again = rp.Judge.load(tmp_path / "judge")
    for each in simulated(ROWS[:8], find):
        label, probability = again(*each.claim)
        assert (label, probability) == by_words(*each.claim)
        assert label in LABELS


def test_a_saved_judge_with_an_encoder_says_the_same(tmp_path):
    texts = [text for row in ROWS for text in (row["question"], row["context"])]
    base = save_tiny_bert(tmp_path / "bert", texts)
    judge = learnt(ROWS[:32], JudgeConfig(encoder=str(base), epochs=1, batch=16, max_tokens=48))
    assert judge.weights.shape == (10 + 1 + 3 + 1, 3)
    judge.save(tmp_path / "judge")
    claims = [each.claim for each in simulated(ROWS[:8], find)]
    assert (rp.Judge.load(tmp_path / "judge").probabilities(claims) == judge.probabilities(claims)).all()


def test_an_encoder_reads_the_sentences_nearest_to_a_claim():
    claim = Claim(
        "Who won the cup?", "Anna", "It rained. The cup was won by Anna. Trees are green. A cup has a handle."
    )
    idf = Idf({}, 1.0)
    assert nearest(claim, idf, 1) == "The cup was won by Anna."
    assert nearest(claim, idf, 12) == "The cup was won by Anna. A cup has a handle."
    assert nearest(claim, idf, 99) == claim.reference
    assert nearest(Claim("Who?", "Ann", ""), idf, 9) == ""


def test_agreement_is_believed_and_its_mean_stands_for_what_is_not_given():
    made = simulated(ROWS, find)
    claims, labels = [each.claim for each in made], [each.label for each in made]
    agreement = [float(label == "attributable") for label in labels]
    idf = Idf.of(words(claim.reference) for claim in claims)
    judge = trained_judge(claims, labels, idf, JudgeConfig(encoder=None), agreement)
    supported = judge.probabilities(claims, agreement)[:, 0]
    assert ((supported > 0.5) == np.array(agreement, bool)).all()
    mean = np.full(len(claims), np.mean(agreement))
    assert judge.probabilities(claims) == pytest.approx(judge.probabilities(claims, mean))


def test_texts_without_words_are_judged(by_words):
    for claim in (Claim("", "", ""), Claim("Who?", "the", "."), Claim("?", "Ann", "Ann")):
        assert by_words(*claim)[0] in LABELS


NOT_THERE = squad("Who?", "Ann won.", "Ann") | {"context": "Nobody won."}
REFUSED = {
    "an answer that is not there": (
        lambda _: simulated([ROWS[0], NOT_THERE], find),
        "row 1 of the judge's questions has no answer where it says",
    ),
    "no answer": (
        lambda _: simulated([ROWS[0] | {"answers": {"text": [], "answer_start": []}}], find),
        "row 0 of the judge's questions",
    ),
    "another variant": (lambda _: simulated(ROWS, find, {"E": 1.0}), "shares has E: 1.0: name A, B, C or D"),
    "a share of more than all": (lambda _: simulated(ROWS, find, {"A": 2.0}), "shares has A: 2.0"),
    "no claims": (lambda _: trained_judge([], [], Idf({}, 1.0), JudgeConfig(encoder=None)), "0 claims were given"),
    "a folder without a judge": (lambda path: rp.Judge.load(path), "holds no judge that can be read (FileNotFound"),
    "an encoder that is none": (
        lambda path: learnt(ROWS[:8], JudgeConfig(encoder=str(path / "nowhere"))),
        "there is no such directory",
    ),
    "an encoder of fewer positions": (
        lambda path: learnt(ROWS[:8], JudgeConfig(encoder=str(save_tiny_bert(path / "b", ["who"])), max_tokens=96)),
        "must be a BERT with positions for 96 tokens",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_one_sentence(tmp_path, name):
    call, said = REFUSED[name]
    with pytest.raises(ConfigError) as refused:
        call(tmp_path)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_of_a_statement_the_words_are_counted_and_those_that_the_reference_lacks():
    told = told_by_words(Claim("Who?", "Ann won the cup twice", "Ann won a cup."), Idf({}, 1.0))
    assert len(told) == 10
    assert told[-2:] == pytest.approx([np.log(5), np.log(2)])


@pytest.mark.parametrize("damaged", [{"idf": None}, {"weights": [[0.0] * 3] * 10}])
def test_a_damaged_judge_is_refused(by_words, tmp_path, damaged):
    by_words.save(tmp_path)
    file = tmp_path / "judge.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | damaged))
    with pytest.raises(ConfigError, match="holds no judge that can be read"):
        rp.Judge.load(tmp_path)
