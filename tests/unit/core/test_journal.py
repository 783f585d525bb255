"""A journal says what is finished on all nodes, once, whatever killed writers and deleted files leave behind."""

import multiprocessing
import stat

import pytest

from rayprivacy.core.files import TABLE, Journal


def add(folder, file, node="one", **facts):
    (folder / file).touch()
    Journal(folder, node).add(file, facts)


def tables(folder):
    return [path for path in folder.iterdir() if TABLE.fullmatch(path.name)]


def told(journal):
    void, lines = journal.news()
    return void, [line["file"] for line in lines]


def test_a_reader_is_told_of_every_node_once(tmp_path):
    reader = Journal(tmp_path, "reader")
    assert told(reader) == (False, [])
    add(tmp_path, "a", width=3)
    add(tmp_path, "b", node="two")
    void, lines = reader.news()
    assert not void
    assert sorted(lines, key=lambda line: line["file"]) == [{"file": "a", "width": 3}, {"file": "b"}]
    assert told(reader) == (False, [])
    add(tmp_path, "c")
    assert told(reader) == (False, ["c"])
    assert reader.files == {"a", "b", "c"}
    assert len(tables(tmp_path)) == 2


def test_a_line_without_its_end_counts_when_the_end_is_there(tmp_path):
    reader = Journal(tmp_path, "reader")
    add(tmp_path, "a", node="host-of-the-hospital")
    (table,) = tables(tmp_path)
    assert stat.S_IMODE(table.stat().st_mode) == 0o600
    assert "hospital" not in table.name + table.read_text(), "tables name no host"
    whole = table.read_bytes()
    for end in range(len(whole) + 1):
        table.write_bytes(whole[:end])
        assert told(reader) == (False, ["a"] * (end == len(whole)))


@pytest.mark.parametrize("torn", [b'{"file": "x', b"[1]\n", b"\xff\xfe\n", b'{"file": 7}\n', b"\n\n"])
def test_what_a_killed_writer_left_is_skipped(tmp_path, torn):
    add(tmp_path, "a")
    (table,) = tables(tmp_path)
    table.write_bytes(table.read_bytes() + torn)
    add(tmp_path, "b")
    assert told(Journal(tmp_path)) == (False, ["a", "b"])


def test_a_file_that_is_gone_voids_what_was_known(tmp_path):
    reader = Journal(tmp_path, "reader")
    for name in "abc":
        add(tmp_path, name)
    told(reader)
    (tmp_path / "b").unlink()
    assert told(reader) == (True, ["a", "c"])
    assert told(reader) == (False, [])
    add(tmp_path, "b")
    assert told(reader) == (False, ["b"])
    for path in tmp_path.iterdir():
        path.unlink()
    assert told(reader) == (True, [])
    add(tmp_path, "d")
    assert told(reader) == (False, ["d"])
    assert told(Journal(tmp_path / "nowhere")) == (False, [])


def test_writers_of_one_node_do_not_tear_each_others_lines(tmp_path):
    def many(first):
        for number in range(100):
            add(tmp_path, f"{first}{number}", filler=10**300)

    writers = [multiprocessing.get_context("fork").Process(target=many, args=(name,)) for name in "abc"]
    for writer in writers:
        writer.start()
    reader, seen = Journal(tmp_path, "reader"), []
    while any(writer.is_alive() for writer in writers):
        seen += told(reader)[1]
    seen += told(reader)[1]
    assert len(seen) == len(set(seen)) == 300
