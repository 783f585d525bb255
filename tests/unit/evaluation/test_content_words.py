"""Content words: what real text is about, beside the share of synthetic texts that say it."""

import numpy as np
import pytest

from rayprivacy.cli import runs
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


@pytest.mark.parametrize("terminal", [True, False])
def test_words_are_said_to_a_person_and_to_no_log(monkeypatch, capsys, terminal):
    monkeypatch.setenv("TTY_COMPATIBLE", "1" if terminal else "0")
    word = {"word": "zebra", "synthetic": 0.1, "reference": 0.2}
    runs._compared({"rows": [], "content_words": [word]})
    assert ("zebra" in capsys.readouterr().out) is terminal
