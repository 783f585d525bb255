"""The certificate claims the cap, lists every event, and does not move when the run is resumed."""

import json
from pathlib import Path

import jsonschema
import pytest
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent

from rayprivacy.accounting.calibrate import sigma_for
from rayprivacy.core.errors import LedgerError
from rayprivacy.core.units import AccountKind, Budget, NeighbouringRelation, PrivacyUnit, Protection
from rayprivacy.ledger.certificate import Certificate, build_certificate
from rayprivacy.ledger.certificate_text import to_markdown
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
    assert 1.0 < spent["epsilon_zcdp"] <= spent["epsilon_rdp"] * 1.001 < 1.1
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


def test_the_published_schema_is_that_of_the_model_and_fits(ledger: Ledger) -> None:
    published = json.loads((Path(__file__).parents[2] / "docs" / "certificate.schema.json").read_text())
    assert published == Certificate.model_json_schema(), "run: rayprivacy schema --certificate"
    _release(ledger, "run")
    certificate = _certificate(ledger)
    jsonschema.validate(certificate, published)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(certificate | {"epsilon": -1}, published)


def test_it_names_what_else_was_done_with_the_corpus(url: str) -> None:
    ledger = Ledger.open(url)
    cap = Budget(3.0, 1e-6)
    for name in ("chat", "chat-2"):
        ledger.create_account(name, PrivacyUnit.USER, NeighbouringRelation.ADD_OR_REMOVE, cap, corpus="talk")
    ledger.create_account(
        "jft",
        PrivacyUnit.USER,
        NeighbouringRelation.ADD_OR_REMOVE,
        cap,
        kind=AccountKind.SELECTIVE,
        corpus="talk",
        policy="names",
    )
    selective = Protection(kind=AccountKind.SELECTIVE)
    ledger.reserve("jft", "redacted", "d", GaussianDpEvent(9.0), protection=selective)
    _release(ledger, "run")
    certificate = _certificate(ledger)
    assert certificate["exposures"] == [{"account": "jft", "kind": "selective", "release_id": "redacted"}]
    assert {other["account"] for other in certificate["other_accounts"]} == {"chat-2", "jft"}  # type: ignore[attr-defined]
    text = to_markdown(certificate)
    assert "counts as non-private" in text
    assert "`chat-2` (central, user, add-or-remove) may release at epsilon = 3" in text
