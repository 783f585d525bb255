"""Whatever stands in a cell, the auditor answers with a report or with one sentence."""

import contextlib
from typing import Any

from handmade import Handmade, chain, copy, every_kind, gaussian, laplace, refuse, replay, sampled, times
from hypothesis import given
from hypothesis import strategies as st

from rayprivacy.core.errors import LedgerError
from rayprivacy.core.keys import Key
from rayprivacy.ledger.audit.rows import Rows

KEY = Key.for_tests()
BOOK = every_kind(KEY).rows
CELLS = [(t, n, c) for t in ("accounts", "entries", "outputs") for n, row in enumerate(getattr(BOOK, t)) for c in row]

GARBAGE: list[Any] = [
    *(None, True, -1, 0, 10**30, 10**5000, 1.5, float("nan"), float("inf"), b"x", [], {}, "\udc80", "\x00", ""),
    *("NaN", "[NaN]", "1e999", "[1e999]", "null", "{}", "[]", "[" * 5000, "9" * 5000, f"[{'9' * 5000}]"),
    *('{"a":1,"a":1}', '{"kind":[]}', '{"kind":"gaussian","noise_multiplier":NaN}', '{"kind":"renyi"}'),
    *('{"kind":"gaussian","noise_multiplier":1e-101}', '{"kind":"gaussian","noise_multiplier":"1"}'),
    *('{"kind":"gaussian","noise_multiplier":true}', f'{{"kind":"gaussian","noise_multiplier":{"9" * 400}}}'),
    *('{"kind":"self-composed","count":1e3,"event":{"kind":"gaussian","noise_multiplier":9}}', '{"kind":"composed"}'),
    *('{"kind":"composed","events":[]}', '{"kind":"poisson-sampled-gaussian","sampling_probability":2}'),
    *('{"reserved":[1.0],"started":[0],"committed":[0]}', '{"reserved":[true],"started":[0],"committed":[0]}'),
    *('{"token":-1,"holder":"","until":""}', '{"token":1,"holder":1,"until":"x"}', '{"output_digest":1,"token":1}'),
    '{"unit":"user","relation":"replace","epsilon":1e308,"delta":1e-320,"composition":"gdp"}',
    '{"unit":"user","relation":"replace","epsilon":1e-300,"delta":0.5,"composition":"zcdp"}',
    '{"unit":"user","relation":"replace","epsilon":0,"delta":0.5,"composition":"rdp","parameters":{"order":1}}',
    '{"unit":[],"relation":{},"epsilon":3,"delta":0.5,"composition":"rdp","parameters":{"order":[[2]]}}',
]


def survives(rows: Rows) -> None:
    try:
        replay(rows, KEY)
    except LedgerError as error:
        assert "\n" not in str(error)  # noqa: PT017
        assert str(error).endswith((".", "copy of it."))  # noqa: PT017


@given(st.sampled_from(CELLS), st.sampled_from(GARBAGE), st.booleans())
def test_garbage_in_any_cell_ends_in_one_sentence(cell: tuple[str, int, str], value: Any, relink: bool) -> None:
    table, number, column = cell
    rows = copy(BOOK)
    getattr(rows, table)[number][column] = value
    if relink:
        with contextlib.suppress(TypeError, ValueError):  # what JSON cannot hold has no hash either
            rows = Rows(rows.accounts, chain(rows.entries, KEY), rows.outputs)
    survives(rows)


EVENTS = st.recursive(
    st.one_of(
        st.floats(1e-3, 1e3).map(gaussian),
        st.floats(0.01, 1e3).map(laplace),
        st.builds(sampled, st.floats(1e-9, 1.0), st.floats(0.3, 100.0)),
    ),
    lambda inner: st.one_of(
        st.builds(times, st.integers(1, 10**6), inner),
        st.lists(inner, min_size=1, max_size=3).map(lambda events: {"kind": "composed", "events": events}),
    ),
    max_leaves=4,
)


@given(EVENTS, st.sampled_from(["gdp", "zcdp", "rdp"]), st.integers(0, 2**81))
def test_any_event_at_any_cost_is_judged(event: dict[str, Any], composition: str, cost: int) -> None:
    book = Handmade().open("a", composition, parameters={"order": 6.0} if composition == "rdp" else None)
    book.reserve("a", "run", event, [cost])
    survives(book.rows)


def test_extra_and_missing_columns_are_found() -> None:
    for table in ("accounts", "entries", "outputs"):
        for change in ({"more": 1}, None):
            rows = copy(BOOK)
            row = getattr(rows, table)[0]
            if change:
                row.update(change)
            else:
                row.popitem()
            refuse(rows, "columns")
