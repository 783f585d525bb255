"""Public pairs and annotations: their rows, what is held out, and what is refused without a word of their text."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from public_pages import asked_pages

from rayprivacy.core.errors import ConfigError
from rayprivacy.questions.public import annotations, held_out, row_of, rows_of_annotations, rows_of_pairs

PAIRS = [(f"sentence {number // 2}", f"question {number}") for number in range(120)]
SQUAD = asked_pages(5, 0)


def test_five_evidences_in_a_row_stand_for_a_passage():
    rows = rows_of_pairs(PAIRS)
    assert [row.question for row in rows] == [question for _, question in PAIRS]
    for (evidence, _), row in zip(PAIRS, rows, strict=True):
        assert row.sentences[row.evidence] == evidence
        assert len(row.sentences) == 5
    assert rows[0].sentences == [f"sentence {number}" for number in range(5)]
    assert len({row.group for row in rows}) == 12


def test_a_tenth_of_the_passages_is_held_out_whole():
    rows = rows_of_pairs(PAIRS)
    left, held = held_out(rows, 1)
    assert sorted(left + held) == sorted(rows)
    assert len(held) == 10, "one passage of twelve"
    assert not {row.group for row in left} & {row.group for row in held}
    assert held_out(rows, 1) == (left, held)
    assert {row.group for seed in range(9) for row in held_out(rows, seed)[1]} > {held[0].group}


def test_the_evidence_of_an_annotation_is_where_its_answer_begins():
    for row, squad in zip(rows_of_annotations(SQUAD), SQUAD, strict=True):
        assert row.sentences[row.evidence] == squad["sentence"]
        assert row.group == squad["title"]
    text = "One is here. Two is there."
    assert [row_of("?", text, start).evidence for start in (0, 11, 13, 25)] == [0, 0, 1, 1]
    assert row_of("?", text, 0).group == text


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_annotations_are_read_as_datasets_has_squad(kind, tmp_path):
    path = tmp_path / f"annotated.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(SQUAD), path)
    else:
        path.write_text("".join(f"{json.dumps(row)}\n" for row in SQUAD))
    assert annotations(str(path)) == SQUAD


BROKEN = {
    "an answer that is elsewhere": {"answers": {"text": ["a secret"], "answer_start": [3]}},
    "an answer before its passage": {"answers": {"text": ["."], "answer_start": [-1]}},
    "no answer": {"answers": {"text": [], "answer_start": []}},
    "an answer without a place": {"answers": {"text": ["a secret"], "answer_start": []}},
    "no question": {"question": None},
    "no passage": {"context": None},
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_annotation_is_told_by_its_number(case, tmp_path):
    rows = [row | {"context": "a secret place"} | BROKEN[case] if at == 3 else row for at, row in enumerate(SQUAD)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match=r"row 3 of questions\.value\.annotations has no answer") as caught:
        annotations(str(tmp_path / "a.parquet"))
    assert "secret" not in str(caught.value)


def test_files_that_hold_no_annotations_are_one_sentence(tmp_path):
    (tmp_path / "a.csv").write_text("context,question\n")
    (tmp_path / "a.jsonl").write_text("{no json\n")
    pq.write_table(pa.Table.from_pylist(SQUAD[:9]), tmp_path / "few.parquet")
    pq.write_table(pa.table({"context": ["x"], "question": ["y"]}), tmp_path / "other.parquet")
    said = {
        "none.parquet": "which does not exist",
        "a.csv": "a CSV file has no lists of answers: give Parquet or JSONL",
        "a.jsonl": r"cannot be read \(JSONDecodeError\)",
        "few.parquet": "has 9 rows: give at least 10",
        "other.parquet": "has no column 'answers' beside context, question",
    }
    for name, expected in said.items():
        with pytest.raises(ConfigError, match=rf"questions\.value\.annotations .*{expected}"):
            annotations(str(tmp_path / name))
