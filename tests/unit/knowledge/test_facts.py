"""Facts of released counts, and what is written from them, in the form of `rayprivacy.questions`."""

import json

import pyarrow as pa
from toy_knowledge import small

from rayprivacy.knowledge.facts import COUNTS, asked, facts, passages
from rayprivacy.questions.table import check_offsets, finished, write_formats

ROWS = [
    ("zorvel", "type", "water", 30.0),
    ("zorvel", "type", "fire", 30.0),
    ("zorvel", "weight", "12.5", 40.0),
    ("zorvel", "sighted", "1987-03-14", 33.0),
    ("mirak", "rival", "zorvel", 35.0),
    ("mirak", "rival", "mirak two", 25.0),
]


def found():
    counts = pa.Table.from_pylist([dict(zip(COUNTS.names, row, strict=True)) for row in ROWS], schema=COUNTS)
    return facts(counts, lambda count: (count - 2, count + 2))


def test_each_question_has_one_answer_with_the_largest_count_and_of_equal_ones_the_first():
    rows = [tuple(row.values()) for row in found().to_pylist()]
    assert rows == [
        ("mirak", "rival", "zorvel", 35.0, 33.0, 37.0),
        ("zorvel", "sighted", "1987-03-14", 33.0, 31.0, 35.0),
        ("zorvel", "type", "fire", 30.0, 28.0, 32.0),
        ("zorvel", "weight", "12.5", 40.0, 38.0, 42.0),
    ]


def test_facts_do_not_depend_on_the_order_of_counts():
    counts = pa.Table.from_pylist([dict(zip(COUNTS.names, row, strict=True)) for row in ROWS[::-1]], schema=COUNTS)
    assert facts(counts, lambda count: (count - 2, count + 2)) == found()


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
    nothing = facts(COUNTS.empty_table(), lambda count: (count, count))
    assert passages(nothing, small()) == []
    assert len(asked(nothing, small())) == 0
