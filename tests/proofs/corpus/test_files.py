"""Listing, readers, shares that together are all of a source, sealing and prompts, without Ray."""

import json
import traceback
from collections import Counter
from itertools import islice

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rayprivacy.core.errors import ConfigError, CorpusError, ShardError
from rayprivacy.corpus import sources
from rayprivacy.corpus.public import first_sentences, load_prompts
from rayprivacy.corpus.settings import CorpusConfig


def read(data, kind):
    return pa.concat_tables(sources.read_pieces(pa.BufferReader(data.encode()), kind, ["user", "text"])).to_pydict()


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
        sources.sealed("reading")(read)(data, kind)
    told = "".join(traceback.format_exception(caught.value))
    assert "reading stopped with" in str(caught.value)
    assert caught.value.__context__ is None
    assert "Expected" not in told
    assert "Unterminated" not in told


def test_unwrap_finds_our_error_or_withholds_the_text():
    assert "secret" not in str(sources.unwrap("step", RuntimeError("secret")))
    trace = "".join(traceback.format_exception(ShardError("ours.")))
    found = sources.unwrap("step", RuntimeError(f"ray::task()\n{trace}\nThe above exception was the cause of secret"))
    assert (type(found), str(found)) == (ShardError, "ours.")


def source(path, **more):
    return CorpusConfig(source=str(path), **more)


def test_locate_takes_files_directories_and_ignores_markers(tmp_path):
    for name in ("b.jsonl", "a.jsonl", "_SUCCESS", ".hidden.csv", "README"):
        (tmp_path / name).write_text('{"user": "u", "text": "t"}\n')
    for folder in ("_old", ".trash", "_day=3"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "c.jsonl").write_text("{}\n")
    whole = sources.locate(source(tmp_path))
    assert [path.rsplit("/", 1)[1] for path in whole.paths] == ["c.jsonl", "a.jsonl", "b.jsonl"], "in _day=3"
    assert sources.locate(source((tmp_path / "a.jsonl").as_uri())).kind == "jsonl"
    (tmp_path / "a.jsonl").write_text("{}\n")
    assert sources.locate(source(tmp_path)).stamp != whole.stamp


@pytest.mark.parametrize(
    ("names", "place", "told"),
    [
        ([], "none.csv", "does not exist"),
        (["u.txt"], "u.txt", "known extension"),
        (["secret.csv", "secret.jsonl"], ".", "mixes csv and jsonl"),
        ([], "ftp9://x/y", "cannot be opened"),
    ],
)
def test_locate_refuses(tmp_path, monkeypatch, names, place, told):
    monkeypatch.chdir(tmp_path)
    for name in names:
        (tmp_path / name).write_text("x\n")
    with pytest.raises(CorpusError, match=told) as caught:
        sources.locate(source(place))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_columns_are_read_from_the_head(tmp_path, kind):
    path = tmp_path / f"c.{kind}"
    path.write_bytes({"csv": b"\xef\xbb\xbfuser,text\n", "jsonl": b'\n{"user": 1, "text": "t"}\n'}.get(kind, b""))
    if kind == "parquet":
        pq.write_table(pa.table({"user": [1], "text": ["t"]}), path)
    assert sources.columns_of(source(path), sources.locate(source(path))) == ["user", "text"]


@pytest.mark.parametrize("data", ["", "\n", "\ufeff", " \n\n"])
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_an_empty_file_has_no_rows_and_alone_no_columns(tmp_path, kind, data):
    assert list(sources.read_pieces(pa.BufferReader(data.encode()), kind, ["user", "text"])) == []
    (tmp_path / f"a.{kind}").touch()
    with pytest.raises(CorpusError, match="no record"):
        sources.columns_of(source(tmp_path), sources.locate(source(tmp_path)))


@pytest.mark.parametrize(
    ("kind", "data", "says"),
    [
        ("csv", "ann@example.org,my test was positive\n", "first line of a CSV file is taken as its header.*2 columns"),
        ("jsonl", '{"ann@example.org": "my test was positive"}\n', "keys of the first line of a JSONL file.*1 columns"),
    ],
)
def test_a_first_line_that_is_no_header_is_not_quoted(tmp_path, kind, data, says):
    (tmp_path / f"chats.{kind}").write_text(data)
    with pytest.raises(CorpusError, match=says) as caught:
        sources.check_source(source(tmp_path / f"chats.{kind}"))
    assert not [word for word in ("ann", "positive") if word in str(caught.value)]


def rows_of(config, shares):
    stamp = sources.check_source(config)
    pieces = [piece for share in range(shares) for piece in sources.read_share(config, share, shares, stamp)]
    assert {tuple(piece.column_names) for piece in pieces} == {("user", "text", *config.labels)}
    return Counter(row for piece in pieces for row in zip(*(each.to_pylist() for each in piece.columns), strict=True))


@pytest.mark.parametrize("files", [1, 3, 11])
def test_shares_are_disjoint_and_complete(tmp_path, files):
    rows = [{"uid": n % 7, "body": f"message {n}", "extra": n} for n in range(60)]
    for number in range(files):
        pq.write_table(pa.Table.from_pylist(rows[number::files]), tmp_path / f"{number}.parquet", row_group_size=5)
    for shares in (1, 4, 16):
        found = rows_of(source(tmp_path, user="uid", text="body"), shares)
        assert found == Counter((row["uid"], row["body"]) for row in rows)


def test_a_source_of_another_moment_is_not_read(tmp_path):
    config = source(tmp_path / "a.csv")
    (tmp_path / "a.csv").write_text("user,text\n1,hello\n")
    stamp = sources.source_stamp(config)
    (tmp_path / "a.csv").write_text("user,text\n1,hello\n2,new\n")
    with pytest.raises(CorpusError, match="changed while it was read"):
        list(sources.read_share(config, 0, 1, stamp))


def test_chitchat_has_two_columns_unless_asked_for_more(monkeypatch):
    """Its topic is a public question or nothing."""
    package = pytest.importorskip("chitchat_dataset")
    some = dict(islice(package.Dataset().items(), 400))
    monkeypatch.setattr(package, "Dataset", lambda: some)
    with pytest.raises(CorpusError, match=r"corpus.labels is 'mood'.*choose of user, text, topic"):
        sources.check_source(CorpusConfig(labels=("mood",)))
    assert next(sources.read_share(CorpusConfig(), 0, 2, "")).column_names == ["user", "text"]
    assert not list(sources.read_share(CorpusConfig(), 1, 2, ""))
    found = rows_of(CorpusConfig(labels=("topic",)), 1)
    assert found == Counter(
        (message["sender"], message["text"], conversation.get("prompt") or None)
        for conversation in some.values()
        for turn in conversation["messages"]
        for message in turn
    )
    topics = {topic for _, _, topic in found}
    assert None in topics
    assert "" not in topics
    assert len(topics) > 9


def test_prompts(tmp_path):
    assert len(set(load_prompts(None))) == len(load_prompts(None)) == 521
    path = tmp_path / "p.txt"
    path.write_text("Hello\u2028there \n\n Où ?\n", "utf-8")
    assert load_prompts(str(path)) == ["Hello\u2028there", "Où ?"]
    for data in (b"", b"\n \n", b"\xff\xfe"):
        path.write_bytes(data)
        with pytest.raises(ConfigError, match=r"p\.txt"):
            load_prompts(str(path))
    with pytest.raises(ConfigError, match="No such file or directory"):
        load_prompts(str(tmp_path / "none.txt"))


ENDS = [  # texts, whose first sentence, as people would see it, ends at the bar
    "It is late.| We go home.", "Is it late?| We go home.", "Stop!!| Now we go.", "It is late.|", "It is late.| \n",
    'He said "no."| Then he left.', 'It is late.| "Go," he said.', "It costs 3.5 euros.| Fine.",
    "We read e.g. books.| Fine.", "Dr. No met Mr. Bond.| Fine.", "We saw U.S. Steel fall.| Fine.",
    "He waits... and waits.| Fine.", "C'est l'\u00e9t\u00e9.| \u00c9ric rit.", "\u4f60\u597d\u3002|\u518d\u89c1",
]  # fmt: skip


@pytest.mark.parametrize("text", [*ENDS, "", " ", "we go on", "we go on, and", "at www.example.org we"])
def test_the_first_sentence(text):
    sentence, found, rest = text.partition("|")
    assert first_sentences(sentence + rest, 1) == (sentence if found else None)


def test_two_sentences():
    assert first_sentences("We came. We saw it. We left.", 2) == "We came. We saw it."
    assert first_sentences("We came. We saw it", 2) is None
