"""Users of any type become one string each; what is set aside of a table is counted."""

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayprivacy.core.errors import CorpusError
from rayprivacy.corpus.users import Dropped, canonical_users, clean, whole

AS_THEY_ARE = ["9007199254740993", "007", "12e5", "1.0.0", "1e+5x", "+7.0", ".0", "v7.0", "\u0667.0"]


def users_of(values, kind=None):
    return canonical_users(pa.chunked_array([pa.array(values, kind)])).to_pylist()


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([7, None, 8], pa.int64(), ["7", None, "8"]),
        ([7.0, float("nan"), 2.5, -0.0, 1e15], pa.float64(), ["7", None, "2.5", "0", "1000000000000000"]),
        ([7.0, 2.0**24 - 1, 2.0**24, 2.5], pa.float32(), ["7", "16777215", None, "2.5"]),
        (np.array([7.0, 2047.0, 2048.0, np.nan], np.float16), pa.float16(), ["7", "2047", None, None]),
        ([2.0**53 - 1, 2.0**53, -1e18, float("inf")], pa.float64(), ["9007199254740991", None, None, "inf"]),
        ([2**53 + 1, -(2**63)], pa.int64(), ["9007199254740993", "-9223372036854775808"]),
        ([Decimal("7.00"), Decimal("7.50")], pa.decimal128(5, 2), ["7", "7.50"]),
        (["7", "7.0", "7.", "-3.00", "7.5", "-0.0"], pa.string(), ["7", "7", "7", "-3", "7.5", "0"]),
        (["1e+15", "1E+05"], pa.string(), ["1000000000000000", "100000"]),
        (["1.2345678E7", "-1.0E15", "1.23E4", "1.2E16"], pa.string(), ["12345678", "-1000000000000000", "12300", None]),
        (["1E7", "1.5e7", "12.5E7", "1.2345678E-7"], pa.string(), ["1E7", "1.5e7", "12.5E7", "1.2345678E-7"]),
        (["1.2345678901234568e+16", "9007199254740992.0", "1e+22", "1e+999"], pa.string(), [None] * 4),
        (AS_THEY_ARE, pa.string(), AS_THEY_ARE),
        (["7", " 7\t", "", "  ", None], pa.string(), ["7", "7", None, None, None]),
        (["cafe\u0301", "caf\u00e9"], pa.large_string(), ["caf\u00e9", "caf\u00e9"]),
        (["a", "A", "\u0430"], pa.string_view(), ["a", "A", "\u0430"]),
        ([None, None], pa.null(), [None, None]),
        ([b"u1"], pa.binary(), ["u1"]),
        ([True], pa.bool_(), ["true"]),
        (["a", "b", "a", None], pa.dictionary(pa.int8(), pa.string()), ["a", "b", "a", None]),
    ],
)
def test_canonical_users(values, kind, expected):
    assert users_of(values, kind) == expected


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_canonical_users_is_idempotent(values):
    once = users_of(values, pa.string())
    assert users_of(once, pa.string()) == once
    assert all(user is None or user == user.strip() != "" for user in once)


ROWS = {"user": [1, 1, None, 2, 2, None], "text": [" hi \x1c", "  ", "lost", "abcd efgh", None, None]}
ROWS["topic"] = [1.0, 2.0, 3.0, float("nan"), 5.0, 6.0]
TYPES = [pa.string(), pa.large_string(), pa.string()]


def test_clean_counts_every_reason():
    for table in (pa.table(ROWS), pa.concat_tables([pa.table(ROWS)[:2], pa.table(ROWS)[2:]])):
        rows, dropped = clean(table, max_chars=5)
        assert rows.to_pydict() == {"user": ["1", "2"], "text": ["hi", "abcd"], "topic": ["1", None]}
        assert dropped == Dropped(null_user=2, empty_text=2, cut_text=1)
        assert rows.schema.types == TYPES
    rows, dropped = clean(pa.table({"user": pa.array([], pa.int64()), "text": pa.array([], pa.string())}), 10)
    assert (len(rows), dropped) == (0, Dropped())


def test_whole_rows_lose_nothing_but_those_without_a_user():
    rows, dropped = whole(pa.table(ROWS))
    assert rows["text"].to_pylist() == [" hi \x1c", "  ", "abcd efgh", ""]
    assert rows["topic"].to_pylist() == ["1", "2", None, "5"]
    assert rows.schema.types == TYPES
    assert dropped == Dropped(null_user=2, empty_text=1)


def test_users_are_values_and_texts_are_strings():
    with pytest.raises(CorpusError, match="list"):
        users_of([["secret"]])
    with pytest.raises(CorpusError, match="int64"):
        clean(pa.table({"user": ["a"], "text": [1]}), 10)
