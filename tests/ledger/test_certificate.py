"""The certificate claims the cap, lists every event, and does not move when the run is resumed."""

import json
from pathlib import Path

import jsonschema
import pytest
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
from usual import SELECTIVE, TERMS, certificate, refused, reserve, run

from rayprivacy.accounting.calibrate import sigma_for
from rayprivacy.core.units import Budget
from rayprivacy.ledger.certificate import EXPOSED_WARNING, Certificate, to_markdown
from rayprivacy.ledger.store import Ledger

EVENT = SelfComposedDpEvent(GaussianDpEvent(sigma_for(100, Budget(1.0, 1e-6))), 100)


def test_the_claim_is_the_cap_and_the_rest_a_diagnostic(ledger: Ledger) -> None:
    run(ledger, "chat", "run", EVENT)
    found = certificate(ledger)
    assert (found["epsilon"], found["delta"]) == (3.0, 1e-6)
    spent = found["spent_diagnostic"]
    assert spent["label"] == "diagnostic, not the claim"
    assert spent["epsilon"] == pytest.approx(1.0, rel=1e-6)
    assert 1.0 < spent["epsilon_zcdp"] <= spent["epsilon_rdp"] * 1.001 < 1.1
    assert [(row["kind"], row["count"], row["q"]) for row in found["events"]] == [("gaussian", 100, None)]
    assert found["warnings"] == []
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_it_stands_still_while_the_ledger_moves_on(ledger: Ledger) -> None:
    reserve(ledger, "chat", "run", EVENT)
    refused("finish the run", certificate, ledger)
    run(ledger, "chat", "run", EVENT)
    head, before = ledger.head(), certificate(ledger)
    for release in ("later", "run"):
        run(ledger, "chat", release, EVENT)
    assert certificate(ledger) == before
    assert before["ledger_head"] == head != ledger.head()


def test_the_published_schema_is_that_of_the_model_and_fits(ledger: Ledger) -> None:
    published = json.loads((Path(__file__).parents[2] / "docs" / "certificate.schema.json").read_text())
    assert published == Certificate.model_json_schema(), "run: rayprivacy schema --certificate"
    run(ledger, "chat", "run", EVENT)
    found = certificate(ledger)
    jsonschema.validate(found, published)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(found | {"epsilon": -1}, published)
    assert "not private: test key" in to_markdown(certificate(ledger, test_key=True))


def test_it_names_what_else_was_done_with_the_corpus(url: str) -> None:
    ledger = Ledger.open(url)
    for name in ("chat", "chat-2"):
        ledger.create_account(name, *TERMS, corpus="talk")
    ledger.create_account("jft", *TERMS, kind=SELECTIVE, corpus="talk", policy="names")
    run(ledger, "chat", "before", EVENT)
    reserve(ledger, "jft", "redacted", GaussianDpEvent(9.0))
    run(ledger, "chat", "run", EVENT)
    before, found = certificate(ledger, release="before"), certificate(ledger)
    assert (before["exposures"], before["warnings"]) == ([], [])
    assert found["exposures"] == [{"account": "jft", "kind": "selective", "release_id": "redacted"}]
    assert found["warnings"] == [EXPOSED_WARNING]
    assert {other["account"] for other in found["other_accounts"]} == {"chat-2", "jft"}
    text = to_markdown(found)
    assert "counts as non-private" in text
    assert "`chat-2` (central, user, add-or-remove) may release at epsilon = 3" in text
