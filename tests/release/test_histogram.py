"""A label histogram through the gate: one charge, one stored output, served again, beside the votes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting.dp_event import GaussianDpEvent, SelfComposedDpEvent

from rayprivacy.core.errors import BudgetRefusedError, RayPrivacyError, ReleaseError
from rayprivacy.core.keys import Key
from rayprivacy.core.private import RELEASE_SEAL, Private, Released, digest_json
from rayprivacy.core.units import Budget, NeighbouringRelation, PrivacyUnit
from rayprivacy.ledger.charges import ChargeState
from rayprivacy.ledger.store import Ledger
from rayprivacy.release.gate import Asked, Gate, VoteManifest
from rayprivacy.release.histogram import HistogramMechanism
from rayprivacy.release.votes import VoteMechanism

MECHANISM = HistogramMechanism(cells=3, sigma=5.0)
COUNTS = np.array([[4, 0, 0], [1, 1, 0], [0, 0, 0], [0, 0, 9]])
SUMS = MECHANISM.contribution(COUNTS) * 100
ASKED = Asked(digest_json("corpus"), digest_json("question"))


def _gate(path: Path, unit: PrivacyUnit = PrivacyUnit.USER, epsilon: float = 3.0) -> Gate:
    ledger = Ledger.open(f"sqlite:///{path}/ledger.db")
    ledger.ensure_account("chat", unit, NeighbouringRelation.ADD_OR_REMOVE, Budget(epsilon, 1e-6))
    return Gate(ledger, "chat", Key.for_tests())


def _release(
    gate: Gate, sums: Any = SUMS, release_id: str = "codes", rung: int = 0, asked: Asked = ASKED
) -> Released[Any]:
    return gate.release_histogram(release_id, MECHANISM, Private(sums), rung, asked=asked)


def test_asking_again_is_served_from_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = _release(_gate(tmp_path))
    assert (first.release_id, first.seal) == ("codes", RELEASE_SEAL)
    assert first.value.shape == (3,)
    assert first.value.dtype == np.float64
    assert np.isclose(first.value.sum(), 1)
    monkeypatch.setattr(HistogramMechanism, "draw", lambda *_: pytest.fail("drew twice"))
    again = _release(_gate(tmp_path))
    assert first.value.tobytes() == again.value.tobytes()
    (charge,) = _gate(tmp_path).ledger.charges_of("chat", "codes")
    assert charge.event == SelfComposedDpEvent(GaussianDpEvent(5.0), 1)
    assert charge.state is ChargeState.COMMITTED
    report = _gate(tmp_path).ledger.verify()
    assert (report.charges, report.outputs) == (1, 1)


def test_a_release_that_died_while_drawing_is_resumed_under_its_charge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    gate = _gate(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(HistogramMechanism, "draw", die)
        with pytest.raises(KeyboardInterrupt):
            _release(gate)
    assert [charge.state for charge in gate.ledger.charges_of("chat", "codes")] == [ChargeState.STARTED]
    assert _release(gate).value.tobytes() == _release(gate).value.tobytes()
    assert gate.ledger.verify().charges == 1


def test_another_question_sigma_or_rung_is_another_charge(tmp_path: Path) -> None:
    gate = _gate(tmp_path, epsilon=30.0)
    first = _release(gate)
    _release(gate, asked=replace(ASKED, question=digest_json("another")))
    _release(gate, rung=1)
    gate.release_histogram("codes", replace(MECHANISM, sigma=6.0), Private(SUMS), asked=ASKED)
    assert np.array_equal(first.value, _release(gate, SUMS + 1).value)
    charges = gate.ledger.charges_of("chat", "codes")
    assert [charge.rung for charge in charges] == [0, 0, 1, 0]
    assert len({charge.input_digest for charge in charges}) == 3


def test_votes_and_a_histogram_share_a_release_id_without_mixing(tmp_path: Path) -> None:
    gate = _gate(tmp_path, epsilon=30.0)
    votes = VoteMechanism(queries=1, candidates=3, teachers=5, sigma=5.0)
    means = gate.release_votes(
        "run", votes, Private(np.zeros((1, 3), dtype=np.int64)), VoteManifest(tuple(range(5))), asked=ASKED
    )
    assert _release(gate, release_id="run").value.shape == (3,)
    assert means.value.shape == (1, 3)
    assert len(gate.ledger.charges_of("chat", "run")) == 2


def test_budget_is_refused_before_noise_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = _gate(tmp_path, epsilon=0.1)
    monkeypatch.setattr(HistogramMechanism, "draw", lambda *_: pytest.fail("drew without a charge"))
    with pytest.raises(BudgetRefusedError):
        _release(gate)
    assert gate.ledger.charges_of("chat", "codes") == []


@pytest.mark.parametrize(
    "sums", [SUMS.astype(np.float64), SUMS.astype(np.int32), SUMS[:2], SUMS[None], SUMS - 2**40, SUMS + 2**51]
)
def test_sums_that_no_units_add_up_to_are_refused_before_any_charge(tmp_path: Path, sums: Any) -> None:
    gate = _gate(tmp_path)
    with pytest.raises(ReleaseError, match="sum"):
        _release(gate, sums)
    assert gate.ledger.charges_of("chat", "codes") == []


def test_a_histogram_of_records_is_not_charged_to_an_account_of_users(tmp_path: Path) -> None:
    gate = _gate(tmp_path)
    with pytest.raises(RayPrivacyError, match="record"):
        gate.release_histogram("codes", replace(MECHANISM, unit=PrivacyUnit.RECORD), Private(SUMS), asked=ASKED)
    assert gate.ledger.charges_of("chat", "codes") == []


def test_an_account_of_records_takes_a_histogram_of_records(tmp_path: Path) -> None:
    gate = _gate(tmp_path, PrivacyUnit.RECORD)
    shares = gate.release_histogram("codes", replace(MECHANISM, unit=PrivacyUnit.RECORD), Private(SUMS), asked=ASKED)
    assert shares.value[0] > shares.value[1]


def test_every_parameter_names_the_release() -> None:
    others = [replace(MECHANISM, cells=4), replace(MECHANISM, sigma=5.5), replace(MECHANISM, unit=PrivacyUnit.RECORD)]
    assert all(other.parameters != MECHANISM.parameters for other in others)
