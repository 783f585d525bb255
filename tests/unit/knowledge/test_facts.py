"""Facts of released counts, and what is written from them, in the form of `rayprivacy.questions`."""

import json

import numpy as np
import pyarrow as pa
from toy_knowledge import small

from rayprivacy.knowledge.facts import FACTS, answers, asked, facts, passages
from rayprivacy.knowledge.reading import Vote
from rayprivacy.questions.table import check_offsets, finished, write_formats
from rayprivacy.release.thresholded import ReleasedCounts

ROWS = [
    ("zorvel", "type", "water", 30.0),
    ("zorvel", "type", "fire", 30.0),
    ("zorvel", "weight", "12.5", 40.0),
    ("zorvel", "sighted", "1987-03-14", 33.0),
    ("mirak", "rival", "zorvel", 35.0),
    ("mirak", "rival", "mirak two", 25.0),
]


def counted(rows):
    ends = [(*row, row[-1] - 2, row[-1] + 2) for row in rows]
    return pa.Table.from_pylist([dict(zip(FACTS.names, row, strict=True)) for row in ends], schema=FACTS)


def found():
    return facts(counted(ROWS))


def test_each_question_has_one_answer_with_the_largest_count_and_of_equal_ones_the_first():
    rows = [tuple(row.values()) for row in found().to_pylist()]
    assert rows == [
        ("mirak", "rival", "zorvel", 35.0, 33.0, 37.0),
        ("zorvel", "sighted", "1987-03-14", 33.0, 31.0, 35.0),
        ("zorvel", "type", "fire", 30.0, 28.0, 32.0),
        ("zorvel", "weight", "12.5", 40.0, 38.0, 42.0),
    ]


def test_facts_do_not_depend_on_the_order_of_counts():
    assert facts(counted(ROWS[::-1])) == found()


def test_passages_state_all_facts_of_a_name_in_several_wordings():
    texts = [each.text for each in passages(found(), small())]
    assert texts[:2] == ["The rival of Mirak is Zorvel.", "Mirak has Zorvel as its rival."]
    stated = (
        "The type of Zorvel is fire.",
        "The weight of Zorvel is 12.5 kg.",
        "The sighted of Zorvel is 14 March 1987.",
    )
    assert texts[3] == " ".join(stated)


def test_questions_and_answers_stand_in_their_passages_and_are_written_as_others_are(tmp_path):
    questions = asked(found(), small())
    check_offsets(questions)
    rows = questions.to_pylist()
    assert {row["question"] for row in rows} == {
        "What type is Zorvel?",
        "How heavy is Zorvel?",
        "When was Zorvel seen?",
        "Who is the rival of Mirak?",
        "Who does Mirak fight?",
    }
    written = finished(questions, {"kept": [True] * len(rows)}, seed=0, origin="made up")
    write_formats(tmp_path, written, passages(found(), small()), ["squad", "beir"])
    squad = json.loads((tmp_path / "squad.json").read_text())
    assert {each["title"] for each in squad["data"]} == {"Mirak", "Zorvel"}
    assert len((tmp_path / "beir" / "corpus.jsonl").read_text().splitlines()) == 6


def test_without_facts_there_is_nothing_to_write():
    nothing = facts(FACTS.empty_table())
    assert passages(nothing, small()) == []
    assert len(asked(nothing, small())) == 0


def test_released_answers_have_the_interval_of_the_release():
    votes = [Vote("zorvel", "type", "fire"), Vote("mirak", "home", 'Lake "Ost"')]
    released = ReleasedCounts(tuple(vote.key for vote in votes), np.array([30.0, 25.0]), np.array([12.0, 20.0]), 2.0)
    low, high = released.interval()
    rows = [tuple(row.values()) for row in answers(released).to_pylist()]
    assert rows == [(*votes[0], 30.0, low[0], high[0]), (*votes[1], 25.0, low[1], high[1])]
