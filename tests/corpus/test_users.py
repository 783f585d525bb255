import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayprivacy.core.errors import CorpusError
from rayprivacy.corpus.counts import Dropped
from rayprivacy.corpus.users import canonical_users, clean


def users_of(values, kind=None):
    return canonical_users(pa.chunked_array([pa.array(values, kind)])).to_pylist()


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([7, None, 8], pa.int64(), ["7", None, "8"]),
        ([7.0, float("nan"), 1e18, 2.5], pa.float64(), ["7", None, "1000000000000000000", "2.5"]),
        (["7", " 7\t", "", "  ", None], pa.string(), ["7", "7", None, None, None]),
        (["cafe\u0301", "caf\u00e9"], pa.large_string(), ["caf\u00e9", "caf\u00e9"]),
        (["a", "A", "\u0430"], pa.string_view(), ["a", "A", "\u0430"]),
        ([None, None], pa.null(), [None, None]),
        ([b"u1"], pa.binary(), ["u1"]),
        ([True], pa.bool_(), ["true"]),
    ],
)
def test_canonical_users(values, kind, expected):
    assert users_of(values, kind) == expected


def test_dictionary_users_are_decoded():
    column = pa.chunked_array(
        [pa.array(["a", "b", "a", None]).dictionary_encode(), pa.array(["c"]).dictionary_encode()]
    )
    assert canonical_users(column).to_pylist() == ["a", "b", "a", None, "c"]


def test_a_list_is_no_user():
    with pytest.raises(CorpusError, match="list"):
        users_of([["secret"]])


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_canonical_users_is_idempotent(values):
    once = users_of(values, pa.string())
    assert users_of(once, pa.string()) == once
    assert all(user is None or user == user.strip() != "" for user in once)


def test_clean_counts_every_reason():
    table = pa.table(
        {
            "user": [1, 1, None, 2, 2, None],
            "text": [" hi ", "  ", "lost", "abcd efgh", None, None],
            "topic": [1.0, 2.0, 3.0, float("nan"), 5.0, 6.0],
        }
    )
    rows, dropped = clean(table, max_chars=5)
    assert rows.to_pydict() == {"user": ["1", "2"], "text": ["hi", "abcd"], "topic": ["1", None]}
    assert dropped == Dropped(null_user=2, empty_text=2, cut_text=1)
    assert rows.schema.types == [pa.string(), pa.large_string(), pa.string()]


def test_clean_takes_an_empty_table_and_chunks():
    rows, dropped = clean(pa.table({"user": pa.array([], pa.int64()), "text": pa.array([], pa.string())}), 10)
    assert (len(rows), dropped) == (0, Dropped())
    chunked = pa.concat_tables([pa.table({"user": ["a"], "text": ["x"]})] * 3)
    assert clean(chunked, 10)[0]["user"].to_pylist() == ["a"] * 3


def test_text_must_be_strings():
    with pytest.raises(CorpusError, match="int64"):
        clean(pa.table({"user": ["a"], "text": [1]}), 10)


def test_counts_add_up():
    total = sum((Dropped(*row) for row in np.eye(5, dtype=int).tolist()), Dropped())
    assert total == Dropped(1, 1, 1, 1, 1)
