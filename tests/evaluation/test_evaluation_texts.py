"""Reading what is compared: every bad input is one sentence that names the option and quotes no text."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from rayprivacy.core.errors import CorpusError
from rayprivacy.corpus import sources
from rayprivacy.evaluation.settings import EvaluationConfig
from rayprivacy.evaluation.texts import LEAST_TEXTS, MAX_CHARS, Texts, halves, plain, read_texts, sample, text_blocks

SECRET = "the launch code is swordfish"
CONFIG = EvaluationConfig()
COLUMNS = {"text": [f"{SECRET} {row}" for row in range(30)], "user": [f"u{row % 6}" for row in range(30)]}


def write(path: Path, columns: dict[str, list[Any]]) -> str:
    match path.suffix:
        case ".parquet":
            pq.write_table(pa.table(columns), path)
        case ".csv":
            csv.write_csv(pa.table(columns), path)
        case ".jsonl":
            rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def refused(source: str, option: str = "--real", **config: Any) -> str:
    with pytest.raises(CorpusError) as caught:
        read_texts(source, option, EvaluationConfig(**config))
    message = str(caught.value)
    assert "swordfish" not in message
    assert "corpus." not in message  # keys of a recipe mean nothing here
    assert message.endswith(".")
    assert message.count(". ") == 0
    return message


def test_a_file_that_breaks_between_two_readings_is_not_quoted(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", COLUMNS)
    read_texts(source, "--real", CONFIG)
    blocks = text_blocks(source, "--real", CONFIG)
    (tmp_path / "a.jsonl").write_text(f'{{"text": "{SECRET}"}}\n{{"text": "{SECRET}", {SECRET}\n' * 20)
    with pytest.raises(CorpusError, match=r"^reading --real stopped with JSONDecodeError ") as caught:
        list(blocks)
    assert "swordfish" not in str(caught.value)
    found: BaseException | None = caught.value
    while found is not None:  # nor in anything that it drags along
        assert isinstance(found, CorpusError)
        found = found.__context__


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_every_format_gives_the_same_texts(tmp_path: Path, kind: str) -> None:
    found = read_texts(write(tmp_path / f"a.{kind}", COLUMNS), "--real", CONFIG)
    assert found.texts == COLUMNS["text"]
    assert found.users.tolist() == [row % 6 for row in range(30)]
    assert found.authored
    assert found.labels is None
    write(tmp_path / f"b.{kind}", COLUMNS)
    assert len(read_texts(str(tmp_path), "--real", CONFIG)) == 60, "a folder is one corpus"


def test_of_many_texts_a_sample_is_kept_and_all_are_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_PIECE_LINES", 2000)
    rows = 20_000
    columns = {
        "text": ["", *(f"text number {row} " + "x" * 300 for row in range(1, rows))],
        "user": [None, None, *(f"u{row % 700}" for row in range(2, rows))],
    }
    source, config = write(tmp_path / "many.parquet", columns), EvaluationConfig(max_texts=500)
    tracemalloc.start()
    found = read_texts(source, "--real", config)
    blocks = sum(1 for block in text_blocks(source, "--real", config) for _ in block)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found) == 500
    assert found.summary()["texts"] == blocks == rows - 1
    assert found.summary()["users"] == 701
    assert found.left_out == 1
    assert peak < 4 * 2**20, "the texts have 6 MB"
    numbers = [int(text.split()[2]) for text in found.texts]
    assert numbers == sorted(numbers)
    assert abs(np.mean(numbers) / rows - 0.5) < 0.06, "from the whole file"
    assert read_texts(source, "--real", config).texts == found.texts
    monkeypatch.setattr(sources, "_PIECE_LINES", 50_000)
    assert read_texts(source, "--real", config).texts == found.texts, "however it is cut into pieces"
    copies = read_texts(source, "--synthetic", config)
    for other in (copies, read_texts(source, "--real", config.model_copy(update={"seed": 1}))):
        assert len({*other.texts} & {*found.texts}) < 40, "500 of 20,000: twelve are expected in both"
    everything = read_texts(source, "--real", config.model_copy(update={"max_texts": rows}))
    assert len(everything) == everything.summary()["texts"] == rows - 1


def test_columns_can_be_named_and_texts_without_a_user_are_users_of_their_own(tmp_path: Path) -> None:
    columns = {"message": COLUMNS["text"], "author": COLUMNS["user"], "topic": ["tea", None, "", *["x"] * 27]}
    config = EvaluationConfig(text="message", user="author", label="topic")
    found = read_texts(write(tmp_path / "a.parquet", columns), "--real", config)
    assert len(set(found.users)) == 6
    assert (found.labels or [])[:2] == ["tea", None]
    users = ["ann", None, None, "", "ann", *["bob"] * 25]
    found = read_texts(write(tmp_path / "a.parquet", {"text": COLUMNS["text"], "user": users}), "--real", CONFIG)
    assert len(set(found.users[:5])) == 4
    assert found.users[0] == found.users[4]
    source = write(tmp_path / "b.parquet", {"text": COLUMNS["text"]})
    assert not read_texts(source, "--real", CONFIG).authored
    assert not read_texts(source, "--synthetic", EvaluationConfig(user="author")).authored, "it needs no such column"


def test_empty_texts_are_left_out_and_long_ones_cut(tmp_path: Path) -> None:
    columns = {"text": [*COLUMNS["text"], "", "  \n", None, "a long one " * 100_000]}
    found = read_texts(write(tmp_path / "a.jsonl", columns), "--synthetic", CONFIG)
    assert (len(found), found.left_out, found.cut) == (31, 3, 1)
    assert max(map(len, found.texts)) == MAX_CHARS


def test_files_with_different_columns_are_told_apart(tmp_path: Path) -> None:
    other = refused(write(tmp_path / "b.parquet", {"message": COLUMNS["text"]}), "--synthetic")
    assert other.startswith("--text is 'text', which is not a column of --synthetic")
    assert "message" in other
    same = write(tmp_path / "a.parquet", COLUMNS)
    assert "--label is 'topic', which is not a column of --synthetic" in refused(same, "--synthetic", label="topic")
    assert "--user is 'author', which is not a column of --real" in refused(same, "--real", user="author")


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_a_file_of_few_texts_or_none_is_refused(tmp_path: Path, kind: str) -> None:
    few = f"texts that are not empty: give at least {LEAST_TEXTS}."
    path = tmp_path / f"a.{kind}"
    path.touch()
    assert "--real" in refused(str(path))
    none = refused(write(path, {"text": []}))
    assert none == f"--real has 0 {few}" if kind == "parquet" else none.startswith("--real")
    assert refused(write(path, {"text": [SECRET]}), "--holdout") == f"--holdout has 1 {few}"


def test_what_is_not_there_and_what_is_no_corpus_is_refused(tmp_path: Path) -> None:
    for name, encoding in (("a.csv", "latin-1"), ("a.csv", "utf-16"), ("a.jsonl", "latin-1"), ("a.jsonl", "utf-16")):
        write(tmp_path / name, {"text": [f"{SECRET} café {row}" for row in range(30)]})
        body = (tmp_path / name).read_text().replace("\\u00e9", "é")
        (tmp_path / name).write_bytes(body.encode(encoding))
        assert "--real" in refused(str(tmp_path / name))
    assert "does not exist" in refused(str(tmp_path / "none.parquet"))
    (tmp_path / "a.txt").write_text(SECRET)
    assert "no known extension" in refused(str(tmp_path / "a.txt"))
    (tmp_path / "a.jsonl").write_text(f'{{"text": "{SECRET}"\n')
    assert "well-formed" in refused(str(tmp_path / "a.jsonl"))
    assert "type" in refused(write(tmp_path / "a.parquet", {"text": list(range(30))}))
    bad = pa.array([SECRET.encode() + b"\xff\xfe"] * 30, pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": bad}), tmp_path / "b.parquet")
    assert "UTF-8" in refused(str(tmp_path / "b.parquet"))


def test_halves_share_no_user_and_are_about_equal() -> None:
    users = np.repeat(np.arange(100), np.arange(100) % 7 + 1)
    parts: Any = halves(users, 0)
    first, second = parts
    assert not set(users[first]) & set(users[second])
    assert sorted([*first, *second]) == list(range(len(users)))
    assert abs(len(first) - len(second)) <= 7
    again: Any = halves(users, 1)
    assert again[0].tolist() != first.tolist()
    assert halves(np.zeros(100, int), 0) is None, "one user has no halves"
    assert halves(np.array([0] * 100 + [1] * 3), 0) is None
    # A sample is drawn once per seed.
    assert sample(5, 9, 0).tolist() == [0, 1, 2, 3, 4]
    drawn = sample(1000, 50, 3)
    assert len(set(drawn)) == 50
    assert drawn.tolist() == sample(1000, 50, 3).tolist() != sample(1000, 50, 4).tolist()
    # Taking some numbers the users anew, and printing shows none.
    texts: Texts = plain(["a", "b", "c", "d"], ["x", "y", "z", "z"], ["l", None, "m", "n"])
    part = texts.take(np.array([1, 3, 2]))
    assert (part.texts, part.users.tolist(), part.labels) == (["b", "d", "c"], [0, 1, 1], [None, "n", "m"])
    assert "swordfish" not in repr(plain([SECRET] * 3, ["swordfish"] * 3, ["swordfish"] * 3))
