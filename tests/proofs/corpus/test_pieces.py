"""A corpus in pieces of bounded size: stretches of the source, ranges of a part, and files that follow each other."""

import json
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_shards import bound, finished

from rayprivacy.core.errors import ShardError
from rayprivacy.core.keys import Key
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus import sources
from rayprivacy.corpus.framing import framed, marked
from rayprivacy.corpus.layout import FILE, HOLDOUT, Layout, add_digests, prepare
from rayprivacy.corpus.manifest import ShardManifest, first_holdout, part_tables, read_holdout, read_part, write_part
from rayprivacy.corpus.settings import WHOLE, CorpusConfig
from rayprivacy.corpus.sources import check_source, read_share, shares_of
from rayprivacy.corpus.users import PLACE, Dropped, clean
from rayprivacy.corpus.verify import verify_shards

KEY = Key.for_tests()
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)


@given(st.lists(st.tuples(TEXTS, st.none() | TEXTS), max_size=8), st.integers(0, 3))
def test_framed_rows_are_what_the_keyed_function_reads(rows, ahead):
    users, labels = (pa.chunked_array([column], pa.string()) for column in list(zip(*rows, strict=True)) or [(), ()])
    users, labels = users[ahead:], labels[ahead:]  # a slice begins somewhere in its buffers
    found = [digest.hex() for digest in KEY.digests("use", framed([users, marked(labels)]).rows())]
    expected = [KEY.digest("use", user, "" if label is None else f"={label}") for user, label in rows[ahead:]]
    assert found == expected


def test_rows_of_one_order_are_told_apart_by_their_labels():
    rows = [("a", "t", label) for label in ("y", None, "x", "y", "x")] + [("b", "t", None), ("a", "u", None)]
    users, texts, labels = zip(*rows, strict=True)
    table = pa.table({"user": users, "text": pa.array(texts, pa.large_string()), "topic": labels})
    kept, dropped = bound(table, KEY, 9)
    found = [row["topic"] for row in kept.to_pylist() if (row["user"], row["text"]) == ("a", "t")]
    assert found == ["x", "y", None]
    assert dropped == Dropped(duplicates=2)


@pytest.mark.parametrize("stripes", [1, 2, 3, 7, 40])
@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_stretches_of_a_jsonl_file_are_all_of_it(stripes, start):
    texts = [f"zeile {n} \u2028 ä" * (n % 4) for n in range(30)] + ["", "the last"]
    lines = start + "\n".join(json.dumps({"user": str(n), "text": t}, ensure_ascii=False) for n, t in enumerate(texts))
    read: list[str] = []
    for stripe in range(stripes):
        stream = pa.BufferReader(lines.encode())
        for piece in sources.read_pieces(stream, "jsonl", ["user", "text"], (stripe, stripes)):
            read += piece["text"].to_pylist()
    assert read == texts


def test_one_large_file_feeds_many_shares(tmp_path, monkeypatch):
    table = pa.table({"user": [str(n % 9) for n in range(400)], "text": [f"text {n}" for n in range(400)]})
    pq.write_table(table, tmp_path / "all.parquet", row_group_size=20)
    config = CorpusConfig(source=str(tmp_path / "all.parquet"))
    assert shares_of(config) == 1
    monkeypatch.setattr(sources, "SHARE_BYTES", 1000)
    stamp, shares = check_source(config), shares_of(config)
    read = [list(read_share(config, share, shares, stamp)) for share in range(shares)]
    assert shares > 5
    assert sum(map(len, (row for pieces in read for row in pieces))) == 400
    assert sum(bool(pieces) for pieces in read) > 5


def test_rows_without_users_keep_their_names_whatever_a_share_holds(tmp_path, monkeypatch):
    pq.write_table(pa.table({"text": [f"text {n}" for n in range(90)]}), tmp_path / "all.parquet", row_group_size=10)
    config = CorpusConfig(source=str(tmp_path / "all.parquet"), user=None)

    def named():
        shares = shares_of(config)
        tables = [piece for share in range(shares) for piece in read_share(config, share, shares, check_source(config))]
        return {row["text"]: row["user"] for table in tables for row in table.to_pylist()}

    before = named()
    assert before == {f"text {n}": f"row 0-{n}" for n in range(90)}
    monkeypatch.setattr(sources, "SHARE_BYTES", 100)
    assert named() == before


@pytest.mark.parametrize("users", [True, False], ids=["users", "no users"])
def test_places_are_rows_of_files_however_these_are_cut(tmp_path, monkeypatch, users):
    """Row groups, stretches and pieces are cut by bytes, say, which texts decide; places are not."""
    texts = [f"text {n}" + " long" * (n % 5) for n in range(90)]
    table, every = pa.table({"user": ["ann"] * 90, "text": texts}), {f"0-{n}": texts[n] for n in range(90)}
    pq.write_table(table, tmp_path / "one.parquet", row_group_size=90)
    pq.write_table(table, tmp_path / "many.parquet", row_group_size=7)
    pa.csv.write_csv(table, tmp_path / "rows.csv")
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in table.to_pylist()))
    for share_bytes in (sources.SHARE_BYTES, 100):
        monkeypatch.setattr(sources, "SHARE_BYTES", share_bytes)
        monkeypatch.setattr(sources, "_PIECE_LINES", 90 if share_bytes > 100 else 4)
        for file in ("one.parquet", "many.parquet", "rows.csv", "rows.jsonl"):
            config = CorpusConfig(source=str(tmp_path / file), user="user" if users else None)
            shares, stamp = shares_of(config, by_place=True), check_source(config)
            pieces = [each for share in range(shares) for each in read_share(config, share, shares, stamp, True)]
            rows = [row for piece in pieces for row in piece.to_pylist()]
            assert len(rows) == 90
            assert {row[PLACE]: row["text"] for row in rows} == every, file
            assert {row["user"] for row in rows} == ({"ann"} if users else {f"row 0-{n}" for n in range(90)})


def test_places_name_the_file_too(tmp_path):
    for name in ("b", "a"):
        pq.write_table(
            pa.table({"user": ["ann"] * 2, "text": [f"{name} 0", f"{name} 1"]}), tmp_path / f"{name}.parquet"
        )
    config = CorpusConfig(source=str(tmp_path))
    shares, stamp = shares_of(config, by_place=True), check_source(config)
    tables = [piece for share in range(shares) for piece in read_share(config, share, shares, stamp, True)]
    found = {row[PLACE]: row["text"] for table in tables for row in table.to_pylist()}
    assert found == {"0-0": "a 0", "0-1": "a 1", "1-0": "b 0", "1-1": "b 1"}


LAYOUTS = {
    PrivacyUnit.USER: Layout(CorpusConfig(labels=("topic",), max_records_per_user=4, holdout=0.3), 5, 2),
    PrivacyUnit.RECORD: Layout(
        CorpusConfig(labels=("topic",), max_records_per_user=None, holdout=0.3), 5, 2, PrivacyUnit.RECORD
    ),
}
BY_PLACE = {
    unit: replace(layout, config=layout.config.model_copy(update={"max_chars": WHOLE}), by_place=True)
    for unit, layout in LAYOUTS.items()
}


def blocks(rows, users, count, by_place):
    draw = random.Random(0)
    drawn = [(f"user-{draw.randrange(users)}", f"text {draw.randrange(rows)}", draw.choice("ab")) for _ in range(rows)]
    tables = [list(zip(*drawn[start::count], strict=True)) for start in range(count)]
    made = [clean(pa.table(dict(zip(("user", "text", "topic"), t, strict=True))), 99)[0] for t in tables]
    return [block.append_column(PLACE, [[f"{n}-{r}" for r in range(len(block))]]) if by_place else block
            for n, block in enumerate(made)]  # fmt: skip


def sharded(out, layout, cuts):
    """What `shard_corpus` does, without Ray."""
    layout = replace(layout, cuts=cuts)
    prepared = pa.concat_tables(prepare(block, KEY, layout)[0] for block in blocks(900, 60, 3, layout.by_place))
    entries = []
    for file, rows in finished(prepared, KEY, layout).items():
        part, number = layout.part_of(file)
        entries.append(write_part(rows, part, KEY, out, layout.unit, number))
    first = {entry.part: entry for entry in reversed(entries)}
    parts, config = tuple(first[part] for part in range(layout.parts)), layout.config
    more = tuple(entry for entry in entries if entry is not first[entry.part])
    made_of: dict[str, Any] = {"unit": layout.unit, "more": more}
    found = ShardManifest("", layout.shards, layout.per_part, config.max_records_per_user, config.holdout, parts,
                          first[HOLDOUT], Dropped(), **made_of)  # fmt: skip
    found.write(out)
    return found


def _places(table):
    return set(zip(table["shard"].to_pylist(), table["user"].to_pylist(), strict=True))


@pytest.mark.parametrize("by_place", [False, True], ids=["by content", "by place"])
@pytest.mark.parametrize("unit", LAYOUTS, ids=str)
def test_the_files_of_a_part_are_its_rows_in_their_order(tmp_path, unit, by_place):
    layout, made = (BY_PLACE if by_place else LAYOUTS)[unit], {}
    for name, size in (("whole", 1), ("split", 3)):
        (tmp_path / name).mkdir()
        made[name] = sharded(tmp_path / name, layout, size)
        verify_shards(tmp_path / name, KEY, unit)
    assert not made["whole"].more
    assert len(made["split"].more) > 4
    assert {entry.part for entry in made["split"].more} == {HOLDOUT, 0, 1, 2}
    assert made["split"].corpus_digest(KEY) == made["whole"].corpus_digest(KEY)
    assert made["split"].rows == made["whole"].rows
    assert len(made["split"].parts) == len(made["whole"].parts) == layout.parts
    for part in range(HOLDOUT, layout.parts):
        assert read_part(tmp_path / "split", part).equals(read_part(tmp_path / "whole", part))
        places = [_places(table) for table in part_tables(tmp_path / "split", part)]
        assert sum(map(len, places)) == len(set().union(*places)), "of the users of a shard none is in two files"
    contents = [entry.content for entry in made["split"].training_files]
    assert add_digests(contents) == add_digests([entry.content for entry in made["whole"].parts])


def test_files_that_do_not_follow_each_other_are_refused(tmp_path):
    made = sharded(tmp_path, LAYOUTS[PrivacyUnit.USER], 3)
    one, other = [entry for entry in made.training_files if entry.part == 0][:2]
    last = pq.read_table(tmp_path / one.file)
    user = last["user"][-1].as_py()
    twice = last.filter(pa.compute.equal(last["user"], user))
    rows = pa.concat_tables([twice, pq.read_table(tmp_path / other.file)])
    changed = write_part(rows, 0, KEY, tmp_path, number=1)
    more = tuple(changed if entry is other else entry for entry in made.more)
    ShardManifest(**{**vars(made), "more": more}).write(tmp_path)
    with pytest.raises(
        ShardError, match=r"part-00000-00001\.parquet begins before the file in front of it ends"
    ) as caught:
        verify_shards(tmp_path, KEY)
    assert user not in str(caught.value)


def test_the_first_held_out_users_are_read_and_no_file_behind_them(tmp_path):
    made = sharded(tmp_path, LAYOUTS[PrivacyUnit.USER], 4)
    rows = read_holdout(tmp_path).to_pylist()
    users = list(dict.fromkeys(row["user"] for row in rows))
    files = [entry.file for entry in made.files if entry.part == HOLDOUT]
    assert len(files) > 2
    for most in (1, 2, len(users), 99):
        expected = [row for row in rows if row["user"] in users[:most]]
        assert first_holdout(tmp_path, most).to_pylist() == expected
    (tmp_path / files[-1]).write_bytes(b"not to be read")
    assert first_holdout(tmp_path, 1).num_rows


@pytest.mark.parametrize(("shards", "per_part"), [(1, 1), (7, 3), (40, 40)])
def test_files_are_of_about_one_size_and_cut_no_user(shards, per_part):
    layout = Layout(CorpusConfig(holdout=0.25), shards, per_part, cuts=5)
    rows = pa.table({"user": [f"u{n % 4000}" for n in range(8000)], "text": [f"t{n}" for n in range(8000)]})
    prepared, _ = prepare(rows, KEY, layout)
    users: dict[str, set[int]] = {}
    for user, file in zip(prepared["user"].to_pylist(), prepared[FILE].to_pylist(), strict=True):
        users.setdefault(user, set()).add(file)
    assert {len(files) for files in users.values()} == {1}
    counts = Counter(file for (file,) in users.values())
    assert counts.keys() == set(layout.files)
    for part in range(HOLDOUT, layout.parts):
        own = [counts[part * 5 + number] for number in range(5)]
        assert max(own) < 1.5 * min(own), own
