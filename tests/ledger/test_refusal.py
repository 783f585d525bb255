"""A refusal is put into words when nobody waits for the book any more, and always in one sentence."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from dp_accounting import GaussianDpEvent, LaplaceDpEvent, SelfComposedDpEvent
from timeouts import patience
from usual import TERMS, kinds

from rayprivacy.core.errors import BudgetRefusedError
from rayprivacy.ledger.rules import SumRule, Vector
from rayprivacy.ledger.store import Ledger

TOO_MUCH = GaussianDpEvent(0.5)


def test_others_write_while_a_refusal_is_explained(ledger: Ledger, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    other, figure, pool = Ledger.open(url), SumRule.epsilon, ThreadPoolExecutor()
    written = []

    def slow(rule: SumRule, used: Vector) -> float:
        # The explanation goes on until another client has written.
        charge = pool.submit(other.reserve, "chat", f"other-{len(written)}", "d", GaussianDpEvent(50.0))
        written.append(charge.result(timeout=patience(20)))
        return figure(rule, used)

    monkeypatch.setattr(SumRule, "epsilon", slow)
    with pytest.raises(BudgetRefusedError, match=r"asks for epsilon 10\.99\d* and account 'chat' has 3 of 3 left"):
        ledger.reserve("chat", "run", "d", TOO_MUCH)
    assert len(written) == 2  # what is asked, and what is left
    assert ledger.charges_of("chat", "run") == []
    assert ledger.verify().charges == 2
    pool.shutdown()
    other.close()


def test_what_was_refused_leaves_the_client_as_it_was(ledger: Ledger) -> None:
    head = ledger.head()
    for call in (lambda: ledger.reserve("chat", "run", "d", TOO_MUCH), lambda: ledger.check("chat", TOO_MUCH)):
        with pytest.raises(BudgetRefusedError, match=r"lower privacy\.epsilon to that") as caught:
            call()
        assert caught.value.__suppress_context__  # no traceback of how it was decided
    assert ledger.head() == head
    ledger.reserve("chat", "run", "d", GaussianDpEvent(50.0))


def test_more_than_has_a_figure_is_refused_and_not_an_invalid_event(ledger: Ledger) -> None:
    plan = [SelfComposedDpEvent(LaplaceDpEvent(50.0), 3)]
    ledger.create_account("planned", *TERMS, composition="pld", plan=plan)
    with pytest.raises(BudgetRefusedError, match=r"asks for epsilon 0\.\d+ and account 'planned' has 0\.06\d* of 3"):
        ledger.reserve("planned", "run", "d", SelfComposedDpEvent(LaplaceDpEvent(50.0), 30))
    million = SelfComposedDpEvent(LaplaceDpEvent(50.0), 10**6 + 1)
    match = "more than account 'planned' has left of epsilon 3 at delta 1e-06"
    for call in (lambda: ledger.reserve("planned", "run", "d", million), lambda: ledger.check("planned", million)):
        with pytest.raises(BudgetRefusedError, match=match):
            call()
    assert kinds(ledger, "planned") == ["create", "plan"]
