"""Content words: what real text is about, beside the share of synthetic texts that say it."""

import numpy as np

from rayprivacy.evaluation.evaluate import draw
from rayprivacy.evaluation.figures import CONTENT, tables
from rayprivacy.evaluation.settings import EvaluationConfig
from rayprivacy.evaluation.texts import Texts
from rayprivacy.evaluation.words import content_words


def _drawn(real, synthetic):
    sides = (Texts(each, np.arange(len(each))) for each in (real, synthetic))
    return draw(*sides, None, EvaluationConfig())


def test_text_that_is_not_about_the_subject_shows():
    real = [f"the kernel driver of machine {n} does not load" for n in range(60)]
    found = {each["word"]: each for each in content_words(_drawn(real, ["nice to meet you, machine"] * 60))}
    assert found["kernel"]["reference"] == found["driver"]["reference"] == 1
    assert found["kernel"]["synthetic"] == 0
    assert found["machine"]["synthetic"] == 1
    assert "the" not in found, "grammar says nothing of a subject"
    title, cells = next(tables({"rows": [], "content_words": list(found.values())}))
    assert title == CONTENT
    assert ("kernel", "0.0%", "100.0%", "near the real one") in cells


def test_words_of_one_or_two_users_are_not_listed():
    real = [f"kernel of somebody {'wunderlich' if n == 0 else ''}" for n in range(60)]
    words = {each["word"] for each in content_words(_drawn(real, ["kernel"] * 60))}
    assert "kernel" in words
    assert "wunderlich" not in words
