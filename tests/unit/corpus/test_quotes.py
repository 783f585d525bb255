"""Quotes of CSV files: what programs write is read as it is, and an open quote is refused."""

import csv
import io

import pyarrow as pa
import pytest
import yaml
from commands import command
from hypothesis import given
from hypothesis import strategies as st

from rayprivacy import api
from rayprivacy.cli import runs
from rayprivacy.core.errors import CorpusError
from rayprivacy.corpus import sources
from rayprivacy.corpus.quotes import QuotesRead
from rayprivacy.corpus.settings import CorpusConfig


def rows_of(data):
    pieces = sources.read_pieces(pa.BufferReader(data), "csv", ["user", "text"])
    return [tuple(row.values()) for piece in pieces for row in piece.to_pylist()]


FIELDS = st.text(st.sampled_from("ab,\"\n \u00e9'"), max_size=12)


@given(st.lists(st.tuples(FIELDS, FIELDS), min_size=1), st.sampled_from(["\n", "\r\n"]), st.booleans(), st.booleans())
def test_what_programs_write_is_read(rows, end, everything, mark):
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator=end, quoting=csv.QUOTE_ALL if everything else csv.QUOTE_MINIMAL)
    writer.writerows([("user", "text"), *rows])
    written = file.getvalue()
    if all(line.count(",") == 1 for line in written.split("\n") if line.strip("\r")):
        written = written.replace("user,text", '"user","text"')  # else some file would be one of stray quotes
    data = written.encode("utf-8-sig" if mark else "utf-8")
    assert rows_of(data) == rows
    for size in (1, 2, 5):
        read = QuotesRead(pa.BufferReader(data))
        assert b"".join(iter(lambda: read.read(size), b"")) == data  # noqa: B023


BAD = [
    'ann,"hello\nbob,good day\ncat,bye\n',  # to the end of the file
    'ann,"hello\nbob,good day\ncat,"bye"\n',  # to a quote that was to open another field
    'ann,"hello\n"bob",good day\n',
    'ann,"she said \\"hi\\" twice"\n',  # a backslash doubles no quote
    'ann,"a"b\n',
    'ann,"',
    '"',
    'ann,"""',
    'ann,"\n',
]


@pytest.mark.parametrize("size", [1, 3, 1 << 20])
@pytest.mark.parametrize("data", BAD)
def test_an_open_quote_is_refused(data, size):
    with pytest.raises(CorpusError, match="has a CSV file"):
        rows_of(f"user,text\n{data}".encode())
    read = QuotesRead(pa.BufferReader(f"user,text\n{data}".encode()))
    with pytest.raises(CorpusError) as caught:
        list(iter(lambda: read.read(size), b""))
    assert not [word for word in ("ann", "bob", "hi") if f" {word}" in str(caught.value)]


PLAIN = st.text("ab5 \u00e9'", min_size=1, max_size=8).map(str.strip).filter(bool)


@given(st.data(), st.integers(2, 4), st.sampled_from(["\n", "\r\n"]), st.sampled_from([1, 3, 1 << 20]))
def test_a_stray_quote_that_another_one_closes_is_refused_with_its_line(data, columns, end, size):
    rows = data.draw(st.lists(st.lists(PLAIN, min_size=columns, max_size=columns), min_size=3, max_size=9))
    opens = data.draw(st.integers(0, len(rows) - 3))
    closes = data.draw(st.integers(opens + (2 if columns == 2 else 1), len(rows) - 1))
    place = data.draw(st.integers(0, columns - 1))  # in another column the record would have too many or too few
    rows[opens][place] = f'"{rows[opens][place]}'
    rows[closes][place] += '"'
    names = [["user", "text", "more", "most"][:columns]]
    text = end.join(",".join(row) for row in [*names, *rows]) + data.draw(st.sampled_from(["", end]))
    read = QuotesRead(pa.BufferReader(text.encode()))
    with pytest.raises(CorpusError, match=rf"line {opens + 2} opens .* several records: double the quote"):
        list(iter(lambda: read.read(size), b""))
    with pytest.raises(CorpusError, match=rf"line {opens + 2} opens"):
        rows_of(text.encode())
    assert len(rows_of(text.replace("user", '"user"', 1).encode())) == len(rows) - (closes - opens)


PROSE = [
    'ann,"Hello\nI am well, thanks\nyours, Ann"\n',  # one comma in each line, as people write it
    'ann,"one\ntwo\nthree"\n',
    'ann,"see\nhi,there"\n',
    'ann,"a\nb,c\nd,e"\nbob,"yes, please"\n',
    'ann,"a\nb,c\n\nd,e,f"\n',
]


@pytest.mark.parametrize("data", PROSE)
def test_texts_of_several_lines_are_read(data):
    assert rows_of(f"user,text\n{data}".encode()) == [tuple(row) for row in csv.reader(io.StringIO(data))]


def test_a_file_without_line_feeds_is_not_held_as_one_line():
    reader = QuotesRead(io.BytesIO(b"user,text\r" + b"ann,hello\r" * 500_000))
    while reader.read(1 << 16):
        assert len(reader._lines._rest) <= (1 << 20) + (1 << 16)


def test_a_quote_inside_of_a_bare_field_is_a_character():
    assert rows_of(b'user,text\nann,5" pipe\nbob,""\n') == [("ann", '5" pipe'), ("bob", "")]


def test_files_that_are_left_out_are_counted(tmp_path):
    for name in ("a.csv", ".ipynb_checkpoints/a-checkpoint.csv", "_temporary/0/b.csv", "_SUCCESS", "notes.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("user,text\nann,hi\n")
    found = sources.locate(CorpusConfig(source=str(tmp_path)))
    assert [len(found.paths), found.left_out] == [1, 4]
    assert "4 files of corpus.source left out" in sources.left_out(CorpusConfig(source=str(tmp_path)))
    assert not sources.left_out(CorpusConfig(source=str(tmp_path / "a.csv")))


@pytest.mark.usefixtures("one_thread")
def test_whatever_reads_a_folder_says_how_many_files_it_leaves_out(tmp_path, monkeypatch):
    folder, rows = tmp_path / "chats", "".join(f"u{row % 7},hello {row} seat\n" for row in range(60))
    folder.mkdir()
    for name in ("a.csv", ".hidden.csv", "_SUCCESS"):
        (folder / name).write_text(f"user,text\n{rows}")
    recipe = {"method": "domain_private", "corpus": {"source": "chats"}, "policy": {"kind": "patterns"}}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    said = "2 files of {} left out"
    for words in (["plan", "recipe.yaml"], ["hidden", "recipe.yaml"]):
        assert said.format("corpus.source") in command(words, tmp_path).stdout
    monkeypatch.chdir(tmp_path)
    for other in ("chats/a.csv", "not_here", "s3://a-bucket/chats", "chitchat"):
        assert not runs._left_out(api.load_recipe("recipe.yaml", {"corpus.source": other}))
    found = api.evaluate(str(folder), str(folder), holdout=str(folder / "a.csv"), embeddings=("tfidf",), base=None)
    told = [note for note in found["notes"] if "left out" in note]
    assert [note.partition(":")[0] for note in told] == [said.format(side) for side in ("--real", "--synthetic")]
