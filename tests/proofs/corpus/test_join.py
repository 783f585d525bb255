"""Turns become conversations where all rows of a user have come together, and before anything is bounded."""

import random

import pyarrow as pa
import pytest
from plain_shards import string_table

from rayprivacy.core.errors import ConfigError, CorpusError
from rayprivacy.core.keys import Key
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.layout import Layout, finish, prepare
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.corpus.users import clean

KEY, NAMES = Key.for_tests(), ("user", "text", "domain", "slots", "by", "order")
JOIN = {"by": "talk", "order": "turn", "prefix": "USR: ", "words": ["slots"]}
ROWS = [  # user, text, domain, slots, by, order
    ("ann", "hi", "air", "O", "1", 1), ("ann", "i am raja", "air", "O O name", "1", 2),
    ("ann", "ok", "air", "O", "1", 10), ("ann", "ok", "air", "O", "1", 9),
    ("ann", "other talk", "media", "O O", "2", 1), ("bob", "to rome", "air", "O city", "1", 1),
    ("bob", "three labels here", "air", "O O", "1", 2),
]  # fmt: skip


def _config(**more):
    return CorpusConfig.parse({"user": "who", "labels": ["domain"], "holdout": 0.0, "join": JOIN, **more})


def _table(rows):
    return string_table([[*row[:-1], None if row[-1] is None else str(row[-1])] for row in rows], NAMES)


def _documents(blocks, **more):
    layout = Layout(_config(**more), shards=1, per_part=1)
    ready = [prepare(clean(_table(rows), layout.config.max_chars)[0], KEY, layout)[0] for rows in blocks]
    rows = finish(pa.concat_tables(ready), 0, KEY, layout)[0].to_pylist()
    return {(row["user"], row["domain"]): (row["text"], row["slots"]) for row in rows}, len(rows)


def test_turns_in_any_order_and_blocks_make_one_document():
    expected = {
        ("ann", "air"): ("USR: hi\nUSR: i am raja\nUSR: ok\nUSR: ok", "O O O O O name O O O O"),
        ("ann", "media"): ("USR: other talk", "O O O"),
        ("bob", "air"): ("USR: to rome\nUSR: three labels here", "O O city O ? ? ?"),
    }
    assert _documents([ROWS]) == (expected, 3)
    for seed in range(5):
        rows = random.Random(seed).sample(ROWS, len(ROWS))
        assert _documents([rows[:3], rows[3:]]) == (expected, 3)


def test_the_bound_and_the_cut_see_documents():
    documents, count = _documents([ROWS], max_records_per_user=1, max_chars=9)
    assert count == 2
    assert documents["bob", "air"][0] == "USR: to r"
    assert len([user for user, _ in documents if user == "ann"]) == 1
    documents, _ = _documents([ROWS], max_chars=20)
    assert documents["ann", "air"] == ("USR: hi\nUSR: i am ra", "O O O O O name")  # the labels of what is left


def test_a_user_who_joins_changes_no_other_document():
    """Here with a row without a place, which is a document of its own as it is."""
    before, count = _documents([ROWS])
    joined = [("cat", "hello", "air", "O", "1", 1), ("cat", "my secret", None, None, None, None)]
    after, more = _documents([[*ROWS, *joined]])
    assert {name: document for name, document in after.items() if name[0] != "cat"} == before
    assert (after["cat", None], more) == (("my secret", "? ?"), count + 2)


def test_which_rows_share_a_block_changes_no_document():
    """A block grows and shrinks with what others wrote, and drops the repeats that are in it."""
    assert _documents([ROWS, ROWS]) == _documents([ROWS + ROWS]) == _documents([ROWS])
    layout = Layout(_config(), shards=1, per_part=1)
    ready = [prepare(clean(_table(ROWS), None)[0], KEY, layout)[0] for _ in range(2)]
    assert finish(pa.concat_tables(ready), 0, KEY, layout)[1].duplicates == len(ROWS)


def test_which_of_two_turns_in_one_place_comes_first_depends_on_them_alone():
    """A document has the label of its first turn."""
    turns = [("ann", "hi", domain, "O", "1", 1) for domain in ("air", "media")]
    expected = ({("ann", "air"): ("USR: hi\nUSR: hi", "O O O O")}, 1)
    for each in (turns, turns[::-1]):
        assert _documents([each]) == _documents([[turn] for turn in each]) == expected


@pytest.mark.parametrize(("labels", "expected"), [("O name", "O name"), ("O O name", "? ?"), (None, "? ?")])
@pytest.mark.parametrize("place", [1, None])
def test_labels_that_do_not_fit_their_words_say_nothing_of_any(labels, expected, place):
    documents, _ = _documents([[("cat", "hi raja", "air", labels, "1", place)]])
    text, found = documents["cat", "air"]
    assert found == (expected if place is None else f"O {expected}")
    assert len(text.split()) == len(found.split())


@pytest.mark.parametrize("prefix", ["", "USR: ", "the user: ", " "])
def test_each_word_keeps_its_label_whatever_stands_in_front(prefix):
    documents, _ = _documents([ROWS], join=JOIN | {"prefix": prefix})
    text, labels = documents["ann", "air"]
    assert dict(zip(text.split(), labels.split(), strict=True))["raja"] == "name"
    with pytest.raises(ConfigError, match="end it in a blank"):
        _config(join=JOIN | {"prefix": "USR:"})


@pytest.mark.parametrize("place", ["first", "nan"])
def test_a_place_that_is_no_number_is_refused_without_quoting_it(place):
    with pytest.raises(CorpusError, match=r"corpus.join.order names a column .* numbers") as refused:
        _documents([[("ann", "hi", "air", "O", "1", place)]])
    assert place not in str(refused.value)
    assert refused.value.__context__ is None


@pytest.mark.parametrize("unit", ["record", "phrase"])
def test_units_that_look_at_rows_are_refused(unit):
    with pytest.raises(ConfigError, match=r"corpus.join is set, but privacy.unit is"):
        Layout(_config(max_records_per_user=None if unit == "record" else 1), 4, 1, PrivacyUnit(unit))


def test_settings_that_cannot_be_joined_are_refused():
    for words in (["domain"], ["text"], ["user"], ["by"], ["slots", "slots"]):
        with pytest.raises(ConfigError, match=r"corpus.join.words are distinct"):
            _config(join=JOIN | {"words": words})
    with pytest.raises(ConfigError, match="without line breaks"):
        _config(join=JOIN | {"prefix": "USR:\n"})
    with pytest.raises(ConfigError, match=r"corpus.user is null"):
        Layout(_config(user=None), 4, 1)


def test_columns_are_those_of_the_source():
    assert CorpusConfig(labels=("a",)).columns == ["user", "text", "a"]
    assert _config(user="talk").columns == ["talk", "text", "domain", "slots", "turn"]
