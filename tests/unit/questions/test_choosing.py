"""The choice of questions by a reader: of toy questions, a part of which is about another sentence."""

import numpy as np
import pytest
from toy_questions import WIDTH, toy_questions

from rayprivacy.core.errors import ConfigError
from rayprivacy.questions import choosing
from rayprivacy.questions.choosing import Choosing, Sets, unread
from rayprivacy.questions.evidence_reader import beginning, scores, trained
from rayprivacy.questions.settings import QuestionsConfig

QUICK = {"iterations": 30, "estimators": 1, "inner_rate": 0.3}


@pytest.fixture(scope="module")
def sets():
    dice = np.random.default_rng(0)
    return Sets(*(toy_questions(dice, size) for size in (60, 200, 120)), np.repeat(np.arange(30), 4))


@pytest.fixture(scope="module")
def clean(sets):
    """Which of the written questions are about their evidence; the others are misplaced."""
    dice = np.random.default_rng(1)
    found = dice.random(len(sets.written)) < 0.5
    others = sets.written.real.copy()
    others[np.arange(len(found)), sets.written.evidence] = False
    wrong = np.where(others, dice.random(others.shape), -1).argmax(axis=1)
    evidence = np.where(found, sets.written.evidence, wrong)
    object.__setattr__(sets, "written", sets.written.about(evidence))
    return found


def chosen(sets, by, eligible=None, **more):
    eligible = np.ones(len(sets.written), dtype=bool) if eligible is None else eligible
    config = QuestionsConfig.parse({"keep": {"by": by}, "value": QUICK, **more})
    likelihood = np.linspace(-1, -2, len(eligible))
    return Choosing(sets, eligible, config, likelihood, actors=0)()


@pytest.fixture(scope="module")
def best(sets, clean):
    """The measured choice."""
    return chosen(sets, "measured")


@pytest.mark.parametrize("by", ["roundtrip", "classifier", "ranking", "value", "measured"])
def test_questions_that_are_about_their_evidence_are_kept(by, sets, clean, best):
    found = best if by == "measured" else chosen(sets, by)
    assert clean[found.kept].mean() > clean.mean() + 0.1
    assert found.kept.sum() < len(clean)


@pytest.mark.parametrize("by", ["classifier", "ranking"])
def test_annotations_of_one_sentence_teach_no_contrast(by, sets, monkeypatch):
    """The plan has looked at all of them, and a search learns from those that do not judge."""
    monkeypatch.setattr(choosing, "misplaced", lambda asked, dice: asked[:0])
    with pytest.raises(ConfigError, match=rf"keep\.by is '{by}', which learns from other sentences of annotated"):
        chosen(sets, by)


def test_the_highest_values_are_kept_and_the_share_that_was_asked_for(sets, clean):
    found = chosen(sets, "value", keep={"by": "value", "share": 0.25})
    values = found.columns["value"]
    assert found.kept.sum() == 50
    assert values[found.kept].min() >= values[~found.kept].max()
    likely = chosen(sets, "likelihood")
    assert likely.kept.tolist() == [True] * 120 + [False] * 80


def test_what_is_not_eligible_is_read_and_never_kept_and_has_no_value(sets, clean):
    eligible = np.arange(len(clean)) % 3 > 0
    for by in ("none", "random", "value"):
        found = chosen(sets, by, eligible)
        assert not found.kept[~eligible].any()
        assert found.kept.sum() == round(eligible.sum() * (1 if by == "none" else 0.6))
    assert np.isnan(found.columns["value"]).tolist() == (~eligible).tolist()
    assert len(found.columns["roundtrip"]) == len(eligible)


def test_the_reader_has_learnt_from_pairs_and_annotations_and_not_from_what_was_written(sets, clean):
    config = QuestionsConfig.parse({"keep": {"by": "roundtrip"}})
    choice = Choosing(sets, np.ones(len(clean), bool), config, None, 0)
    dice = np.random.default_rng([0, 1])
    start = trained(beginning(WIDTH), sets.source, dice, choosing.EPOCHS)
    assert (choice.start == start).all()
    reader = trained(start, sets.annotated, np.random.default_rng([0, 2]), choosing.EPOCHS)
    again = scores(reader[None], sets.written)[0].argmax(axis=-1) == sets.written.evidence
    assert (choice().columns["roundtrip"] == again).all()
    assert (choice().kept == again).all()


def test_rewards_come_from_annotations_and_never_from_those_that_judge(sets, clean, monkeypatch):
    seen = []

    class Watched(choosing.Feedback):
        def __init__(self, start, written, annotated, settings):
            seen.append((written, annotated))
            super().__init__(start, written, annotated, settings)

    monkeypatch.setattr(choosing, "Feedback", Watched)
    chosen(sets, "value")
    chosen(sets, "measured")
    (written, whole), (_, part) = seen
    assert (whole.questions == sets.annotated.questions).all()
    assert (written.questions == sets.written.questions).all()
    rewarding = {each.tobytes() for each in part.questions}
    judging = np.array([each.tobytes() not in rewarding for each in sets.annotated.questions])
    assert judging.sum() == 48, "two fifths"
    assert judging.reshape(30, 4).all(axis=1).sum() == 12, "by their groups"


def test_what_judges_a_trial_has_taught_it_nothing(sets, clean, monkeypatch):
    """With other evidence in the annotations that judge, the same questions are kept, and readers learn the same."""
    readers, real = [], Choosing._readers
    monkeypatch.setattr(Choosing, "_readers", lambda *given: readers.append(real(*given)) or readers[-1])
    config = QuestionsConfig.parse({"keep": {"by": "value"}, "value": QUICK | {"estimators": 2}})
    everything = np.ones(len(clean), bool)
    judging = Choosing(sets, everything, config, None, 0)._judging()
    others = np.where(judging & (sets.annotated.evidence == 0), 1, np.where(judging, 0, sets.annotated.evidence))
    swapped = Sets(sets.source, sets.written, sets.annotated.about(others), sets.groups)
    before, after = ([*Choosing(each, everything, config, None, 0).judged()] for each in (sets, swapped))
    assert (np.stack(readers[:2]) == np.stack(readers[2:])).all()
    assert [each.kept for each in before] == [each.kept for each in after] == [120, 120]
    assert before[-1].found.mean() > after[-1].found.mean() + 0.2
    assert len({*before[0].groups}) == 12
    assert not {*before[0].groups} & {*sets.groups[~judging]}


def test_a_measured_choice_is_the_best_of_what_it_says(best):
    assert best.by == max(best.figures, key=best.figures.get)
    assert {"none", "random", "roundtrip", "likelihood", "value 60%"} < best.figures.keys()


def test_without_a_reader_all_or_a_share_of_the_eligible_is_kept():
    eligible = np.arange(10) % 2 == 0
    assert (unread(eligible, QuestionsConfig()).kept == eligible).all()
    some = unread(eligible, QuestionsConfig.parse({"keep": {"by": "random"}})).kept
    assert some.sum() == 3
    assert not some[~eligible].any()
