"""The certificate claims the cap, lists every event, and does not move when the run is resumed."""

import json

import pytest
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent

from rayprivacy.accounting.calibrate import sigma_for
from rayprivacy.core.errors import LedgerError
from rayprivacy.core.units import Budget
from rayprivacy.ledger.certificate import build_certificate, to_markdown
from rayprivacy.ledger.store import Ledger

REQUEST = Budget(1.0, 1e-6)


def _release(ledger: Ledger, release_id: str) -> None:
    event = SelfComposedDpEvent(GaussianDpEvent(sigma_for(100, REQUEST)), 100)
    charge = ledger.start(ledger.reserve("chat", release_id, "d", event))
    ledger.commit_output(charge, b"noisy")


def _certificate(ledger: Ledger, test_key: bool = False) -> dict[str, object]:
    return build_certificate(
        ledger,
        "chat",
        "run",
        corpus_digest="c0ffee",
        run_request=REQUEST,
        assumptions=["A user sits in one shard."],
        test_key=test_key,
        versions={"rayprivacy": "0"},
        stages=[{"name": "vote"}],
    )


def test_the_claim_is_the_cap_and_the_rest_a_diagnostic(ledger: Ledger) -> None:
    _release(ledger, "run")
    certificate = _certificate(ledger)
    assert (certificate["epsilon"], certificate["delta"]) == (3.0, 1e-6)
    spent = certificate["spent_diagnostic"]
    assert isinstance(spent, dict)
    assert spent["label"] == "diagnostic, not the claim"
    assert spent["epsilon"] == pytest.approx(1.0, rel=1e-6)
    assert 1.0 < spent["epsilon_rdp"] < spent["epsilon_zcdp"] < 1.5
    assert [(row["kind"], row["count"], row["q"]) for row in certificate["events"]] == [("gaussian", 100, None)]  # type: ignore[attr-defined]
    assert certificate["warnings"] == []
    assert json.loads(json.dumps(certificate, allow_nan=False)) == certificate


def test_it_stands_still_while_the_ledger_moves_on(ledger: Ledger) -> None:
    _release(ledger, "run")
    head, before = ledger.head(), _certificate(ledger)
    _release(ledger, "later")
    _release(ledger, "run")
    assert _certificate(ledger) == before
    assert before["ledger_head"] == head != ledger.head()


def test_an_unfinished_release_has_none(ledger: Ledger) -> None:
    ledger.reserve("chat", "run", "d", GaussianDpEvent(9.0))
    with pytest.raises(LedgerError, match="finish the run"):
        _certificate(ledger)


def test_people_can_read_it(ledger: Ledger) -> None:
    _release(ledger, "run")
    text = to_markdown(_certificate(ledger, test_key=True))
    for part in ("not private: test key", "epsilon = 3 at delta = 1e-06", "Protected unit: user", "A user sits in one"):
        assert part in text
