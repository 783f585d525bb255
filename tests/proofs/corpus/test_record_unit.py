"""Unit 'record': one record more or less changes one shard, and no other record moves."""

from collections import Counter
from contextlib import nullcontext
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from plain_shards import finished, string_table

from rayprivacy.core.errors import ConfigError, CorpusError, ShardError
from rayprivacy.core.keys import Key
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.layout import HOLDOUT, Layout, finish, prepare
from rayprivacy.corpus.manifest import ShardManifest, write_part
from rayprivacy.corpus.phrases import tidy
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.corpus.shards import check_size
from rayprivacy.corpus.users import Dropped
from rayprivacy.corpus.verify import verify_shards

KEY, RECORD = Key.for_tests(), PrivacyUnit.RECORD
CONFIG = CorpusConfig(labels=("topic",), max_records_per_user=None, max_chars=12, holdout=0.3)
LAYOUT = Layout(CONFIG, shards=7, per_part=2, unit=RECORD)
TEXTS = st.sampled_from([f"text {n}" for n in range(9)] + ["a longer text, part one", "a longer text, part two"])
ROW = st.tuples(st.sampled_from(["a", "b", " b", "c", "7"]), TEXTS, st.sampled_from(["x", "", None]))
ROWS = st.lists(ROW, max_size=30)


def parts_of(blocks, layout=LAYOUT):
    tidied = [tidy(string_table(rows), KEY, layout, None)[0] for rows in blocks]
    return finished(pa.concat_tables([prepare(block, KEY, layout)[0] for block in tidied]), KEY, layout)


def shards_of(*blocks):
    rows = [row for table in parts_of(blocks).values() for row in table.to_pylist()]
    return {shard: [row for row in rows if row["shard"] == shard] for shard in range(HOLDOUT, LAYOUT.shards)}


def content(rows):
    return {(row["user"], row["text"], row["topic"]) for row in rows}


@given(ROWS, ROW, st.integers(1, 3))
@example(rows=[("a", f"text {n}", "x") for n in range(9)], joined=("a", "text 9", "x"), blocks=1)
@example(rows=[("a", "text 1", "x")], joined=("a", "text 1", None), blocks=1)
def test_a_record_more_changes_one_shard_by_itself(rows, joined, blocks):
    before, after = shards_of(rows), shards_of(*([*rows, joined][start::blocks] for start in range(blocks)))
    changed = [shard for shard in before if before[shard] != after[shard]]
    assert len(changed) <= 1
    for shard in changed:
        assert content(before[shard]) < content(after[shard])
        assert len(after[shard]) == len(before[shard]) + 1


def test_one_users_records_are_spread_evenly_and_all_kept():
    layout = Layout(CorpusConfig(max_records_per_user=None, holdout=0.0), 10, 10, RECORD)
    rows = pa.table({"user": ["a"] * 2000, "text": [f"text {n}" for n in range(2000)]})
    counts = Counter(finish(prepare(rows, KEY, layout)[0], 0, KEY, layout)[0]["shard"].to_pylist())
    assert (sum(counts.values()), len(counts)) == (2000, 10)
    assert sum((count - 200) ** 2 / 200 for count in counts.values()) < 30  # chi-square, p = 4e-4


def test_a_user_is_held_out_with_all_records():
    shards = shards_of([(f"user-{n % 40}", f"text {n}", None) for n in range(400)])
    held = {row["user"] for row in shards[HOLDOUT]}
    assert 0 < len(held) < 40
    assert held.isdisjoint(row["user"] for shard in range(LAYOUT.shards) for row in shards[shard])


PHRASE = {"phrases": "p"}
BREAKING = [
    ({}, "record", r"max_records_per_user is 100, .* set it to null\.$"),
    ({"max_records_per_user": None}, "user", "max_records_per_user is null"),
    ({"max_records_per_user": None}, "phrase", "max_records_per_user is null"),
    ({"max_records_per_user": None, **PHRASE}, "record", "corpus.phrases is set, but"),
    ({"max_shards_per_phrase": 1}, "user", "corpus.max_shards_per_phrase is set, but"),
    ({"max_shards_per_phrase": 1}, "phrase", "corpus.phrases is not set"),
    (PHRASE, "phrase", "corpus.max_shards_per_phrase is not set"),
    ({"max_shards_per_phrase": 8, **PHRASE}, "phrase", "is 8, and there are 7 shards"),
]


@pytest.mark.parametrize(("config", "unit", "says"), BREAKING)
def test_settings_that_break_the_unit_are_refused(config, unit, says):
    with pytest.raises(ConfigError, match=says):
        Layout(CorpusConfig(**config), 7, 2, PrivacyUnit(unit))


def written(out, rows, change=list, dropped=Dropped()):  # noqa: B008 - frozen
    """A shard directory whose digests are right, with a change of part 1 made before they were taken."""
    parts = parts_of([rows])
    parts[1] = pa.Table.from_pylist(list(change(parts[1].to_pylist())), schema=parts[1].schema)
    files = {part: write_part(table, part, KEY, out, RECORD) for part, table in parts.items()}
    entries = tuple(files[part] for part in range(4))
    manifest = ShardManifest("", 7, 2, None, 0.3, entries, files[HOLDOUT], dropped, unit=RECORD)
    manifest.write(out)
    return manifest


SIXTY = [(f"u{n % 6}", f"text {n}", "xy"[n % 2]) for n in range(60)]


def moved(rows):
    """The first record goes to the other shard of its part."""
    first = rows[0] | {"shard": 5 - rows[0]["shard"], "record": 99}
    ranks = {}
    for row in sorted([first, *rows[1:]], key=lambda row: (row["shard"], row["user"], row["record"])):
        place = (row["shard"], row["user"])
        ranks[place] = ranks.get(place, -1) + 1
        yield row | {"record": ranks[place]}


def doubled(rows):
    return [*rows, rows[-1] | {"record": rows[-1]["record"] + 1}]


def relabelled(rows):
    return [row | {"topic": "z"} for row in rows]


@pytest.mark.parametrize(
    ("change", "says"), [(moved, "puts elsewhere"), (doubled, "a record twice"), (relabelled, "puts elsewhere")]
)
def test_verify_finds_records_out_of_place(tmp_path, change, says):
    written(tmp_path, SIXTY, change)
    with pytest.raises(ShardError, match=says) as caught:
        verify_shards(tmp_path, KEY, RECORD)
    assert "text" not in str(caught.value)


def test_verify_accepts_what_was_made_of_its_own_unit_and_share(tmp_path):
    manifest = written(tmp_path, SIXTY)
    assert manifest.rows == 60
    verify_shards(tmp_path, KEY, RECORD)
    for unit in (PrivacyUnit.USER, PrivacyUnit.PHRASE):
        with pytest.raises(ShardError, match="of unit 'record', not"):
            verify_shards(tmp_path, KEY, unit)
    replace(manifest, holdout_share=0.9).write(tmp_path)  # shards would hold records of users that are held out
    with pytest.raises(ShardError, match="puts elsewhere"):
        verify_shards(tmp_path, KEY, RECORD)


TWO = [("a", "x", None), ("a", "y", None)]


@pytest.mark.parametrize(
    ("rows", "missing", "by_place", "says"),
    [
        ([], 0, False, "no usable text"),
        ([("a", "x", None), ("a", "x ", None)], 0, False, "one record"),
        (TWO, 2, True, "no usable text"),
        (TWO, 1, True, None),
        (TWO, 2, False, None),
    ],
)
def test_a_corpus_of_nothing_or_one_record_is_refused(tmp_path, rows, missing, by_place, says):
    """And one all of whose texts are missing, where they are kept."""
    manifest = written(tmp_path, rows, dropped=Dropped(empty_text=missing))
    with pytest.raises(CorpusError, match=says) if says else nullcontext():
        check_size(manifest, tmp_path, by_place)
    assert bool(list(tmp_path.glob("*"))) == (says is None)
