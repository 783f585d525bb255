"""A selective claim does not bound membership: attacks are compared with a central account's pair, or with nothing."""

from statistics import NormalDist
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rayprivacy.auditing import directory
from rayprivacy.auditing.bounds import Profile
from rayprivacy.auditing.canaries import CanaryPlan, canaries, canary_figures, least_chance
from rayprivacy.auditing.claim import read_claim
from rayprivacy.auditing.directory import NOTES, RunAudit, audit_run
from rayprivacy.auditing.membership import operating_points
from rayprivacy.core.errors import ConfigError
from rayprivacy.core.files import write_json
from rayprivacy.core.keys import Key
from rayprivacy.core.units import AccountKind, Budget, PrivacyUnit
from rayprivacy.methods.domain_private.plan import plan_run
from rayprivacy.methods.domain_private.recipe import DomainPrivateRecipe
from rayprivacy.models.settings import ModelConfig
from rayprivacy.reporting.figures import roc
from rayprivacy.reporting.inputs import Audit, read_model

NOISY = [{"kind": "gaussian", "sigma_eff": 10.0, "q": None, "count": 25, "sensitivity": ""}]  # mu = 0.5
BODY = {"epsilon": 3.0, "delta": 1e-6, "unit": "user", "events": NOISY}
USERS = {"account": "users", "kind": "central", "unit": "user", "epsilon": 2.5, "delta": 1e-5}
PLAIN = USERS | {"account": "user", "epsilon": 1.0}  # of the same corpus, which paid for something else
CENTRAL = {
    "figures": {"For plain differential privacy": "epsilon 2 for a user: account 'users' pays for all 8 steps"},
    "other_accounts": [PLAIN, USERS],
}
SCORES = np.arange(1000, 2000.0), np.arange(1000.0)  # every member is above every other user


@pytest.fixture
def audit(tmp_path, monkeypatch):
    """Audits a run of a certificate with these keys, whose attacks tell all members from all others."""
    (tmp_path / "model").mkdir()
    unit = SimpleNamespace(rows=[{"text": "hello"}])
    people = SimpleNamespace(check=lambda: None, members=lambda *_: [unit] * 1000, others=lambda *_: [unit] * 1000)
    monkeypatch.setattr(RunAudit, "population", lambda _: people)
    monkeypatch.setattr(directory, "_tuned", lambda *_: [None])
    monkeypatch.setattr(directory, "_scores", lambda *_: {"loss": SCORES})

    def audited(**keys):
        write_json(tmp_path / "certificate.json", BODY | keys)
        return audit_run(RunAudit(tmp_path, ModelConfig(), PrivacyUnit.USER, (), Key.for_tests(), texts=""))

    return audited


def _points(found):
    points = found["membership"]["loss"]["points"]
    return [(point["admitted_by_claim"], point["admitted_by_events"]) for point in points]


# The upper end of the rate of false alarms at each of the three thresholds.
UNPLANTED = {name: note for name, note in NOTES.items() if name != "canaries"}  # none is planted here
MEASURED = [max(point.rate, point.most_false_alarms) for point in operating_points(*SCORES)]


def test_a_selective_claim_is_no_bound_and_flags_nothing(audit, tmp_path):
    found = audit(kind="selective", other_accounts=[PLAIN], figures={"For plain differential privacy": "non-private"})
    assert found["claim"] == {"kind": "selective", "epsilon": 3.0, "delta": 1e-6, "unit": "user"}
    assert found["bound"] is None
    assert _points(found) == [(None, None)] * 3
    assert not found["verdict"]["flagged"]
    assert "does not bound membership, so the figures are measurements" in found["verdict"]["sentence"]
    assert found["verdict"]["sentence"].endswith(found["notes"]["claim"])
    assert "admitted" not in found["notes"]
    assert 'class="best"' not in roc(read_model(tmp_path / "audit.json", Audit))


def test_the_central_account_that_pays_for_all_steps_is_the_bound(audit, tmp_path):
    found = audit(kind="selective", **CENTRAL)
    most = Profile.claimed(2.5, 1e-5)
    assert found["bound"] == {"epsilon": 2.5, "delta": 1e-5, "account": "users"}
    assert _points(found) == [(round(most.most_hits(rate), 4), None) for rate in MEASURED]
    assert found["verdict"]["flagged"]
    assert "what epsilon 2.5 at delta 1e-05 of account 'users' admits" in found["verdict"]["sentence"]
    assert set(found["notes"]) == {*UNPLANTED, "claim"}
    assert all("'users'" in found["notes"][name] for name in ("claim", "admitted"))
    assert 'class="best"' in roc(read_model(tmp_path / "audit.json", Audit))
    generous = audit(kind="selective", **CENTRAL | {"other_accounts": [USERS | {"epsilon": 40.0}]})
    assert not generous["verdict"]["flagged"]
    assert generous["verdict"]["sentence"].startswith("Not flagged")


@pytest.mark.parametrize("keys", [{}, CENTRAL])
def test_a_central_claim_is_compared_as_ever(audit, keys):
    found = audit(kind="central", **keys)
    assert found["claim"]["kind"] == "central"
    assert found["bound"] == {"epsilon": 3.0, "delta": 1e-6, "account": None}
    assert found["verdict"]["flagged"]
    assert "what epsilon 3 at delta 1e-06 admits" in found["verdict"]["sentence"]
    expected = NormalDist().cdf(NormalDist().inv_cdf(MEASURED[2]) + 0.5)
    assert _points(found)[2][1] == pytest.approx(expected, abs=0.03)
    assert found["notes"] == UNPLANTED


@pytest.mark.parametrize(
    "other", [{"unit": "record"}, {"kind": "selective"}, {"account": "others"}, {"account": "user"}]
)
def test_an_account_of_another_kind_or_name_is_no_bound(tmp_path, other):
    named = BODY | CENTRAL | {"kind": "selective", "other_accounts": [USERS | other]}
    write_json(tmp_path / "certificate.json", named)
    claim = read_claim(tmp_path)
    assert (claim.kind, claim.budget) == (AccountKind.SELECTIVE, Budget(3.0, 1e-6))
    assert claim.bound is claim.cap is claim.events is claim.strictest is None
    write_json(tmp_path / "certificate.json", BODY | {"kind": "of no kind"})
    with pytest.raises(ConfigError, match="is no certificate"):
        read_claim(tmp_path)


def test_the_account_is_read_as_domain_private_training_names_it(tmp_path):
    training = {"steps": 200, "sampling_rate": 0.012, "expected_batch": 60, "clipping_norm": 0.1}
    privacy = {"epsilon": 8.0, "delta": 1e-6, "composition": "rdp"}
    redacted = {"central": {"account": "users", "epsilon": 40.0}, "noise_multiplier": 2.0}
    blocks = {"training": training, "privacy": privacy}
    for more, bound in (({"redacted": redacted}, Budget(2.5, 1e-5)), ({}, None)):
        figures = dict(plan_run(DomainPrivateRecipe.parse(blocks | more)).figures)
        named = BODY | {"kind": "selective", "figures": figures, "other_accounts": [PLAIN, USERS]}
        write_json(tmp_path / "certificate.json", named)
        assert read_claim(tmp_path).bound == bound


def test_no_chance_of_a_canary_is_admitted_without_a_bound():
    key, plan = Key.for_tests(), CanaryPlan(kinds=("phone",), repetitions=(1, 2), candidates=50)
    planted = {user for canary in canaries(plan, key) for user in canary.users}
    people: Any = SimpleNamespace(key=key, training_users=lambda users: users & planted)

    def losses(sentences):
        return np.arange(len(sentences), dtype=float)  # the planted ones stand first

    loose, without = (
        canary_figures(losses, plan, people, [], claim, 50) for claim in (Profile.claimed(0.0, 0.0), None)
    )
    assert [each["rank"] for each in without] == [each["rank"] for each in loose]
    assert loose[0]["chance_admitted"] is not None
    assert [each["chance_admitted"] for each in without] == [None, None]
    assert least_chance(without) is None
