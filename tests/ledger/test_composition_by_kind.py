"""Of every parameter of every event: does it say WHO is protected? Then two events that differ in it never add up."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from usual import ADD, USER

from rayprivacy.accounting import events
from rayprivacy.accounting.events import from_json
from rayprivacy.core.errors import EventError, LedgerError
from rayprivacy.core.units import AccountKind, Budget, Protection
from rayprivacy.ledger.audit import prices as audited
from rayprivacy.ledger.store import Ledger

HOW_WELL = {
    *("noise_multiplier", "sampling_probability", "standard_deviation", "sensitivities", "sampling_probs"),
    *("epsilon", "diameter", "tokens", "keep_cost", "count", "mean", "shape"),
}
PARTS = {"event", "events"}
WHO = {"sensitive"}
METRIC = {"epsilon": 0.01, "diameter": 1.0, "tokens": 5}
LISTS = st.sampled_from(["", *(digit * 64 for digit in "abc")])


def metric(protected: str) -> dict[str, Any]:
    if not protected:
        return {"kind": "metric-local", **METRIC}
    return {"kind": "metric-local-sensitive", **METRIC, "keep_cost": 0.01, "sensitive": protected}


def test_every_parameter_of_every_event_is_classified() -> None:
    """A new one must be put into one of the lists; one that says who is protected must be compared on admission."""
    for kinds in (events._KEYS, audited._KEYS):
        found = {name for keys in kinds.values() for name in keys}
        assert found == HOW_WELL | PARTS | WHO


def nested(event: dict[str, Any], depth: int) -> dict[str, Any]:
    return event if not depth else {"kind": "self-composed", "count": 2, "event": nested(event, depth - 1)}


@given(lists=st.lists(st.tuples(LISTS, st.integers(0, 3)), min_size=2, max_size=4))
def test_events_that_protect_different_words_are_never_admitted_together(
    lists: list[tuple[str, int]], tmp_path_factory: pytest.TempPathFactory, empty_book: bytes
) -> None:
    path = tmp_path_factory.mktemp("lists") / "ledger.db"
    Path(path).write_bytes(empty_book)
    with Ledger.open(f"sqlite:///{path}") as ledger:
        kind = AccountKind.METRIC_LOCAL
        ledger.create_account("words", USER, ADD, Budget(50.0, 1e-6), "metric", kind=kind)
        admitted: set[str] = set()
        for number, (protected, depth) in enumerate(lists):
            event = from_json(nested(metric(protected), depth))
            if not admitted | {protected} > {protected}:
                admitted.add(protected)
                ledger.reserve("words", f"run-{number}", "d", event, protection=Protection(kind=kind))
            else:
                with pytest.raises(LedgerError, match="the two epsilons do not add"):
                    ledger.reserve("words", f"run-{number}", "d", event, protection=Protection(kind=kind))
        assert len(admitted) == 1
        assert ledger.verify().charges == sum(protected in admitted for protected, _ in lists)


@given(lists=st.lists(LISTS, min_size=1, max_size=4))
def test_one_event_protects_the_words_of_one_list(lists: list[str]) -> None:
    event = from_json({"kind": "composed", "events": [metric(protected) for protected in lists]})
    named = set(lists) - {""}
    if len(named) > 1:
        with pytest.raises(EventError, match="words of two lists"):
            events.protected_by(event)
    else:
        assert events.protected_by(event) == next(iter(named), "")


@pytest.mark.parametrize(
    ("one", "other"),
    [pair for pair in itertools.product(AccountKind, repeat=2) if pair[0] is not pair[1]],
)
def test_events_of_another_kind_of_guarantee_are_refused(one: AccountKind, other: AccountKind, ledger: Ledger) -> None:
    more: dict[str, Any] = {"policy": "p"} if one is AccountKind.SELECTIVE else {}
    composition = "metric" if one is AccountKind.METRIC_LOCAL else "gdp"
    ledger.create_account("one", USER, ADD, Budget(50.0, 1e-6), composition, kind=one, **more)
    local = other is AccountKind.METRIC_LOCAL
    event = from_json(metric("") if local else {"kind": "gaussian", "noise_multiplier": 20.0})
    with pytest.raises((LedgerError, EventError), match="kept for"):
        ledger.reserve("one", "run", "d", event, protection=Protection(kind=other))
