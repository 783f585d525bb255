"""Listing, readers, sealing and prompts, without Ray."""

import io
import json
import traceback

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rayprivacy.core.errors import ConfigError, CorpusError, ShardError
from rayprivacy.corpus.public import first_sentences, load_prompts
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.corpus.sources import check_columns, check_source, columns_of, locate, read_pieces, sealed, unwrap


def read(data: str, kind: str):
    return pa.concat_tables(read_pieces(pa.BufferReader(data.encode()), kind, ["user", "text"])).to_pydict()


def test_csv_keeps_ids_as_written():
    got = read('text,extra,user\nhi,1,007\n"two\nlines",2,NA\nx,3,2020-01-01\n', "csv")
    assert got == {"user": ["007", "NA", "2020-01-01"], "text": ["hi", "two\nlines", "x"]}


def test_jsonl_keeps_ids_as_written():
    records = [{"user": "007", "text": "a\u2028b"}, {"user": 7, "text": None}, {"user": 7.0}, {"user": "2020-01-01"}]
    lines = "\n".join(json.dumps(record, ensure_ascii=False) for record in records)
    got = read(f'\ufeff{lines}\n\n{{"user": "\\ud800", "text": "x"}}', "jsonl")
    assert got == {"user": ["007", "7", "7", "2020-01-01", "?"], "text": ["a\u2028b", None, None, None, "x"]}


@pytest.mark.parametrize("line", ['["secret"]', '{"user": ["secret"]}', '{"user": {"secret": 1}}'])
def test_jsonl_refuses_other_shapes(line):
    with pytest.raises(CorpusError) as caught:
        read(line, "jsonl")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(("kind", "data"), [("csv", "user,text\na,b\nsecret"), ("jsonl", '{"user": "secret')])
def test_sealed_says_the_type_and_nothing_else(kind, data):
    with pytest.raises(CorpusError) as caught:
        sealed("reading")(read)(data, kind)
    told = "".join(traceback.format_exception(caught.value))
    assert "reading stopped with" in str(caught.value)
    assert caught.value.__context__ is None
    assert "Expected" not in told
    assert "Unterminated" not in told


def test_unwrap_finds_our_error_or_withholds_the_text():
    assert "secret" not in str(unwrap("step", RuntimeError("secret")))
    trace = "".join(traceback.format_exception(ShardError("ours.")))
    found = unwrap("step", RuntimeError(f"ray::task()\n{trace}\nThe above exception was the cause of secret"))
    assert (type(found), str(found)) == (ShardError, "ours.")


def test_locate_takes_files_directories_and_ignores_markers(tmp_path):
    for name in ("b.jsonl", "a.jsonl", "_SUCCESS", ".hidden.csv", "README"):
        (tmp_path / name).write_text('{"user": "u", "text": "t"}\n')
    whole = locate(CorpusConfig(source=str(tmp_path)))
    assert [path.rsplit("/", 1)[1] for path in whole.paths] == ["a.jsonl", "b.jsonl"]
    assert locate(CorpusConfig(source=(tmp_path / "a.jsonl").as_uri())).kind == "jsonl"
    (tmp_path / "a.jsonl").write_text("{}\n")
    assert locate(CorpusConfig(source=str(tmp_path))).stamp != whole.stamp


@pytest.mark.parametrize(
    ("names", "source", "told"),
    [
        ([], "none.csv", "does not exist"),
        (["u.txt"], "u.txt", "known extension"),
        (["secret.csv", "secret.jsonl"], ".", "mixes csv and jsonl"),
        ([], "ftp9://x/y", "cannot be opened"),
    ],
)
def test_locate_refuses(tmp_path, monkeypatch, names, source, told):
    monkeypatch.chdir(tmp_path)
    for name in names:
        (tmp_path / name).write_text("x\n")
    with pytest.raises(CorpusError, match=told) as caught:
        locate(CorpusConfig(source=source))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_columns_are_read_from_the_head(tmp_path, kind):
    path = tmp_path / f"c.{kind}"
    data = {"csv": b"\xef\xbb\xbfuser,text\n", "jsonl": b'\n{"user": 1, "text": "t"}\n'}
    sink = io.BytesIO()
    pq.write_table(pa.table({"user": [1], "text": ["t"]}), sink)
    path.write_bytes(data.get(kind, sink.getvalue()))
    config = CorpusConfig(source=str(path))
    assert columns_of(config, locate(config)) == ["user", "text"]


def test_empty_files_hold_no_record(tmp_path):
    (tmp_path / "a.csv").touch()
    config = CorpusConfig(source=str(tmp_path))
    with pytest.raises(CorpusError, match="no record"):
        columns_of(config, locate(config))


@pytest.mark.parametrize("data", ["", "\n", "\ufeff", " \n\n"])
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_an_empty_file_beside_others_has_no_rows(kind, data):
    assert list(read_pieces(pa.BufferReader(data.encode()), kind, ["user", "text"])) == []


def test_a_missing_column_names_those_of_a_schema():
    with pytest.raises(CorpusError, match=r"corpus.labels is 'topic'.*choose of user, text"):
        check_columns(CorpusConfig(labels=("topic",)), ["user", "text"], "parquet")


@pytest.mark.parametrize(
    ("kind", "data", "says"),
    [
        ("csv", "ann@example.org,my test was positive\n", "first line of a CSV file is taken as its header.*2 columns"),
        ("jsonl", '{"ann@example.org": "my test was positive"}\n', "keys of the first line of a JSONL file.*1 columns"),
    ],
)
def test_a_first_line_that_is_no_header_is_not_quoted(tmp_path, kind, data, says):
    (tmp_path / f"chats.{kind}").write_text(data)
    config = CorpusConfig(source=str(tmp_path / f"chats.{kind}"))
    with pytest.raises(CorpusError, match=says) as caught:
        check_source(config)
    assert "ann" not in str(caught.value)
    assert "positive" not in str(caught.value)


def test_prompts(tmp_path):
    assert len(set(load_prompts(None))) == len(load_prompts(None)) == 521
    path = tmp_path / "p.txt"
    path.write_text("Hello\u2028there \n\n Où ?\n", "utf-8")
    assert load_prompts(str(path)) == ["Hello\u2028there", "Où ?"]


@pytest.mark.parametrize("data", [b"", b"\n \n", b"\xff\xfe"])
def test_prompts_refuse_unusable_files(tmp_path, data):
    (tmp_path / "p.txt").write_bytes(data)
    with pytest.raises(ConfigError, match=r"p\.txt"):
        load_prompts(str(tmp_path / "p.txt"))
    with pytest.raises(ConfigError, match="FileNotFoundError"):
        load_prompts(str(tmp_path / "none.txt"))


ENDS = {  # the first sentences of texts, as people would see them, or None
    "It is late. We go home.": "It is late.",
    "Is it late? We go home.": "Is it late?",
    "Stop!! Now we go.": "Stop!!",
    "It is late.": "It is late.",
    "It is late. \n": "It is late.",
    'He said "no." Then he left.': 'He said "no."',
    'It is late. "Go," he said.': "It is late.",
    "It costs 3.5 euros. Fine.": "It costs 3.5 euros.",
    "We read e.g. books. Fine.": "We read e.g. books.",
    "Dr. No met Mr. Bond. Fine.": "Dr. No met Mr. Bond.",
    "We saw U.S. Steel fall. Fine.": "We saw U.S. Steel fall.",
    "He waits... and waits. Fine.": "He waits... and waits.",
    "C'est l'\u00e9t\u00e9. \u00c9ric rit.": "C'est l'\u00e9t\u00e9.",
    "\u4f60\u597d\u3002\u518d\u89c1": "\u4f60\u597d\u3002",
} | dict.fromkeys(["", " ", "we go on", "we go on, and", "at www.example.org we"])


@pytest.mark.parametrize("text", ENDS)
def test_the_first_sentence(text):
    assert first_sentences(text, 1) == ENDS[text]


def test_two_sentences():
    assert first_sentences("We came. We saw it. We left.", 2) == "We came. We saw it."
    assert first_sentences("We came. We saw it", 2) is None
