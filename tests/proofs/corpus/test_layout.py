"""Adversarial ids: one user one shard, and nobody moves or changes when another user joins."""

from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest
from effort import COSTLY
from hypothesis import example, given
from hypothesis import strategies as st
from plain_shards import bound, finished, string_table

from rayprivacy.core.errors import ConfigError, ShardError
from rayprivacy.core.keys import Key
from rayprivacy.core.names import name_of
from rayprivacy.core.private import digest_json
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.layout import HOLDOUT, Layout, add_digests, content_digest, finish, held_out, prepare
from rayprivacy.corpus.manifest import ShardManifest, read_manifest, write_part
from rayprivacy.corpus.phrases import tidy
from rayprivacy.corpus.settings import WHOLE, CorpusConfig
from rayprivacy.corpus.users import Dropped, clean

KEY = Key.for_tests()
ODD_IDS = ["a", "A", "\u0430", "\uff41", "1", "01", "1.0", "../../etc/passwd", "C:\\x", "s3://b/k"]
ODD_IDS += ["x" * 5000, "\0", "é"]
CHARS = st.characters(exclude_categories=["Cs"])
IDS = st.sampled_from(ODD_IDS) | st.text(CHARS, max_size=20) | st.integers().map(str)
ROWS = st.lists(st.tuples(IDS, st.sampled_from([f"text {n}" for n in range(6)]), st.sampled_from(["x", None])))
LAYOUT = Layout(CorpusConfig(labels=("topic",), max_records_per_user=3, holdout=0.3), shards=7, per_part=2)
BY_RECORD = Layout(LAYOUT.config.model_copy(update={"max_records_per_user": None}), 7, 2, PrivacyUnit.RECORD)


def table_of(rows):
    return clean(string_table(rows), 100)[0]


def sharded(blocks, layout=LAYOUT, key=KEY):
    return finished(pa.concat_tables([prepare(table_of(rows), key, layout)[0] for rows in blocks]), key, layout)


def by_user(parts):
    rows = [row for table in parts.values() for row in table.to_pylist()]
    return {user: [row for row in rows if row["user"] == user] for user in {row["user"] for row in rows}}


@given(ROWS)
def test_one_user_one_shard_within_the_bound(rows):
    parts = sharded([rows])
    seen = {}
    for part, table in parts.items():
        for row in table.to_pylist():
            assert seen.setdefault(row["user"], (part, row["shard"])) == (part, row["shard"])
            assert row["shard"] == LAYOUT.shard_of(KEY, row["user"])
            assert 0 <= row["record"] < 3
    assert set(seen) == set(table_of(rows)["user"].to_pylist())


@given(ROWS, IDS.filter(name_of), st.lists(st.text(CHARS, min_size=1), min_size=1, max_size=9))
@example(rows=[("a", "text 1", "x")], joined="A", texts=["text 1"])
def test_a_user_who_joins_moves_nobody_and_changes_no_choice(rows, joined, texts):
    before = by_user(sharded([rows]))
    after = by_user(sharded([rows + [(joined, text, "x") for text in texts]]))
    name = table_of([(joined, "t", "x")])["user"][0].as_py()
    for user in before.keys() - {name}:
        assert after[user] == before[user]
    assert after.keys() - {name} == before.keys() - {name}


@given(ROWS, st.randoms(use_true_random=False), st.integers(1, 4))
def test_order_and_blocks_do_not_matter(rows, random, blocks):
    mixed = list(rows)
    random.shuffle(mixed)
    expected, got = sharded([rows]), sharded([mixed[start::blocks] for start in range(blocks)])
    assert expected.keys() == got.keys()
    assert all(expected[part].equals(got[part]) for part in expected)


@given(ROWS)
@COSTLY
def test_dropped_records_add_up_over_blocks(rows):
    whole = bound(table_of(rows), KEY, 3)[1]
    halves = [bound(table_of(rows[start::2]), KEY, 3) for start in (0, 1)]
    again = bound(pa.concat_tables([half for half, _ in halves]), KEY, 3)[1]
    total = halves[0][1] + halves[1][1] + again
    assert total.duplicates + total.over_bound == whole.duplicates + whole.over_bound


@given(ROWS, st.integers(1, 9), st.integers(1, 9))
@COSTLY
@pytest.mark.parametrize("layout", [LAYOUT, BY_RECORD], ids=["user", "record"])
def test_content_digest_ignores_shards_and_parts(layout, rows, shards, per_part):
    def digest(layout):
        return add_digests([content_digest(table, KEY, layout.unit) for table in sharded([rows], layout).values()])

    assert digest(replace(layout, shards=shards, per_part=per_part)) == digest(layout)
    more = content_digest(table_of([("z" * 99, "t", "x")]), KEY, layout.unit)
    assert digest(layout) != add_digests([more, digest(layout)])


def test_content_digest_sees_every_column_and_the_key():
    def digest(*rows, key=KEY):
        return add_digests([content_digest(table, key) for table in sharded([list(rows)], key=key).values()])

    base = ("a", "t", "x")
    others = [("b", "t", "x"), ("a", "u", "x"), ("a", "t", None), ("a", "t", "")]
    digests = {digest(base), *map(digest, others), digest(base, (*base[:2], "y")), digest(base, key=Key(b"k" * 32))}
    assert len(digests) == 6, "an empty label is none"


def test_coins_of_holdout_and_shards_are_fair_and_their_own():
    users = [f"user-{n}" for n in range(4000)]
    share = sum(held_out(KEY, user, 0.1) for user in users) / len(users)
    assert 0.08 < share < 0.12
    assert not any(held_out(KEY, user, 0.0) for user in users)
    # A larger share keeps who was held out, and says nothing about the shard.
    assert all(held_out(KEY, user, 0.5) for user in users if held_out(KEY, user, 0.1))
    counts = Counter(Layout(CorpusConfig(holdout=0.5), 2, 1).shard_of(KEY, user) for user in users)
    assert 0.4 < counts[0] / (counts[0] + counts[1]) < 0.6
    even = Counter(Layout(CorpusConfig(holdout=0.0), 10, 3).shard_of(KEY, user) for user in users)
    assert len(even) == 10
    assert sum((count - 400) ** 2 / 400 for count in even.values()) < 30  # chi-square, p = 4e-4


def test_a_stray_user_is_refused_without_a_name():
    prepared, _ = prepare(table_of([("secret-user", "t", "x")]), KEY, LAYOUT)
    wrong = (prepared["file"][0].as_py() + 2) % LAYOUT.parts
    with pytest.raises(ShardError) as caught:
        finish(prepared, wrong, KEY, LAYOUT)
    assert "secret" not in str(caught.value)


WRONG = [({"max_records_per_user": 0}, "max_records"), ({"holdout": 0.95}, "holdout"), ({"sauce": "x"}, "source")]
WRONG += [
    ({"holdout": float("nan")}, "holdout"),
    ({"user": "text"}, "user"),
    ({"text": "x", "labels": ["x"]}, "labels"),
]
WRONG += [({"labels": labels}, "labels") for labels in (["shard"], ["__place"], ["__order"], ["topic", "topic"])]


@pytest.mark.parametrize(("wrong", "field"), WRONG)
def test_wrong_settings_name_the_field(wrong, field):
    with pytest.raises(ConfigError, match=field):
        CorpusConfig.parse(wrong)


@pytest.mark.parametrize(("shards", "per_part"), [(0, 1), (1, 0)])
def test_a_layout_needs_shards_which_its_parts_cover(shards, per_part):
    assert (LAYOUT.parts, LAYOUT.files) == (4, range(HOLDOUT, 4))
    with pytest.raises(ConfigError, match="is 0"):
        Layout(CorpusConfig(), shards, per_part)


def test_rows_by_place_are_not_cut_by_characters_and_hold_no_phrases():
    assert Layout(CorpusConfig(max_chars=WHOLE), 1, 1, by_place=True).schema.names[-1] == "__place"
    with pytest.raises(ConfigError, match=r"corpus\.max_chars is 2000, and a cut by characters would let words decide"):
        Layout(CorpusConfig(), 1, 1, by_place=True)
    phrases = CorpusConfig(max_chars=WHOLE, phrases="-", max_shards_per_phrase=1)
    with pytest.raises(ConfigError, match=r"privacy\.unit is 'phrase', and the claim compares documents word for word"):
        Layout(phrases, 1, 1, PrivacyUnit.PHRASE, by_place=True)


# What unit 'user' is under the test key.
SHARDS = [3, 5, -1, 0, 1, 3, 4, -1, 1, -1, 2, 6, 3, -1, 5, 4, 0, -1, -1, 4, 2, -1, -1, 4]
PARTS = {
    HOLDOUT: (6, "1a74efb7c36e82d7", "f848f3ff18cc19d8"),
    0: (9, "f115ac3043657b28", "008f8822a3f241ee"),
    1: (6, "fa2de2de1418e48d", "048fdad42fde9433"),
    2: (6, "8bd0cc7cf4991a5e", "cb77db1f57b553c8"),
    3: (0, "4f53cda18c2baa0c", "0" * 16),
}


def test_rows_digests_and_manifest_are_what_they_were(tmp_path):
    rows = [(f"user-{n % 9}", f" text {n % 31} ", "ab"[n % 2] if n % 5 else None) for n in range(120)]
    parts = finished(prepare(tidy(string_table(rows), KEY, LAYOUT, None)[0], KEY, LAYOUT)[0], KEY, LAYOUT)
    assert [LAYOUT.shard_of(KEY, f"user-{n}") for n in range(24)] == SHARDS
    assert {
        part: (len(rows), digest_json(rows.to_pylist())[:16], content_digest(rows, KEY)[:16])
        for part, rows in parts.items()
    } == PARTS
    files = {part: write_part(rows, part, KEY, tmp_path) for part, rows in parts.items()}
    manifest = ShardManifest("", 7, 2, 3, 0.3, tuple(files[part] for part in range(4)), files[HOLDOUT], Dropped())
    manifest.write(tmp_path)
    assert read_manifest(tmp_path) == manifest
