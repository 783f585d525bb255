"""SQuAD's splits: no text in two of them, and private documents with what was asked about them."""

import json
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from benchmark_modules import BENCHMARKS

from rayprivacy.questions.passages import plain, shared

CONTEXT = "In 2016 the champion (of the AFC) won. It was cold."


def rows(split, count, start=0):
    return [
        {"split": split, "sentence": f"{split} sentence {number // 2} .", "question": f"{split} what is {number} ?"}
        for number in range(start, start + count)
    ]


@pytest.fixture
def made(tmp_path, monkeypatch):
    """All splits of a few rows, of which XQuAD has one sentence and one question."""
    known = [
        {"split": "dev", "sentence": "in 2016 the champion -lrb- of the afc -rrb- won .", "question": "who won ?"},
        {"split": "dev", "sentence": "another sentence of its article .", "question": "how cold was it ?"},
    ]
    pairs = [*rows("dev", 24), *known, *rows("test", 30)]
    asked = [
        {"id": f"x{number}", "title": f"title {number}", "context": CONTEXT, "question": "How cold was it?"}
        | {"answer": "cold", "answer_start": CONTEXT.index("cold")}
        for number in range(5)
    ]
    texts = [{"text": "short"}, {"text": "word " * 30}]
    names = ("squad_nqg_sentence_question", "squad_xquad_en", "wikitext2_raw_valid_test")
    for name, found in zip(names, (pairs, asked, texts), strict=True):
        pq.write_table(pa.Table.from_pylist(found), tmp_path / f"{name}.parquet")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import squad

    squad.prepare(tmp_path, tmp_path / "out")
    yield {path.stem: pq.read_table(path).to_pylist() for path in (tmp_path / "out").iterdir()}
    del sys.modules["squad"]


def test_what_xquad_has_is_in_no_private_document(made):
    passages = [row["passage"] for row in made["private"]]
    assert len(passages) == 3  # 12 sentences in windows of five
    assert not any(shared([sentence], [CONTEXT])[0] for text in passages for sentence in text.split(" . "))
    questions = [each["question"] for row in made["private"] for each in json.loads(row["asked"])]
    assert len(questions) == 24
    assert plain("How cold was it?") not in map(plain, questions)


def test_a_private_document_has_what_was_asked_about_it(made):
    for row in made["private"]:
        assert all(each["answer"] in row["passage"] for each in json.loads(row["asked"]))
    assert len({row["document"] for row in made["private"]}) == 3


def test_public_pairs_and_passages_are_of_other_articles(made):
    assert all(row["sentence"].startswith("test") for row in made["pairs"])
    assert len(made["pairs"]) == 30
    assert [len(row["passage"].split()) for row in made["public"]] == [20, 20, 20, 30]


def test_titles_are_annotated_or_held_out(made):
    ours, theirs = ({row["title"] for row in made[name]} for name in ("annotations", "heldout"))
    assert ours == {"title 0", "title 2", "title 4"}
    assert theirs == {"title 1", "title 3"}
    for row in [*made["annotations"], *made["heldout"]]:
        (text,), (start,) = row["answers"]["text"], row["answers"]["answer_start"]
        assert row["context"][start:].startswith(text)
