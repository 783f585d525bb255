"""Two releases of one run with equal settings and inputs are two charges and two draws, if each names its stage."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trainings import open_book, train, training

from rayprivacy.core.errors import ReleaseError
from rayprivacy.core.keys import Key
from rayprivacy.core.private import Private, digest_json
from rayprivacy.core.units import Budget, NeighbouringRelation, PrivacyUnit
from rayprivacy.dpsgd.batches import Document
from rayprivacy.dpsgd.noise import KeyedNoise
from rayprivacy.dpsgd.sampler import PoissonSampler, Unit, unit_tag
from rayprivacy.ledger.store import Ledger
from rayprivacy.release.gate import Asked, Gate, VoteManifest
from rayprivacy.release.histogram import HistogramMechanism
from rayprivacy.release.step_mechanism import NoisySteps
from rayprivacy.release.steps import StepGate, StepRelease
from rayprivacy.release.votes import SCALE, VoteMechanism

KEY = Key.for_tests()
STEPS = NoisySteps(sampling_rate=0.5, noise_multiplier=2.0, clipping_norm=0.5, steps=10)
VOTES = VoteMechanism(queries=4, candidates=3, teachers=5, sigma=10.0)
HISTOGRAM = HistogramMechanism(cells=2, sigma=5.0)
EVERYBODY = VoteManifest(tuple(range(5)))
VOTED = np.full((4, 3), 5 * SCALE // 3, dtype=np.int64)
ASKED = Asked(digest_json("corpus"), digest_json("question"))
COUNTED = np.array([30 * SCALE, 9 * SCALE])


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ledger = open_book(tmp_path, [STEPS.event, STEPS.event], account="steps")
    ledger.ensure_account("sums", PrivacyUnit.USER, NeighbouringRelation.ADD_OR_REMOVE, Budget(8.0, 1e-6))
    return ledger


def _training(ledger: Ledger, stage: str = "", *inputs: str) -> StepRelease:
    return training(ledger, STEPS, *inputs, account="steps", stage=stage)


def test_releases_without_a_stage_have_the_names_they_always_had(ledger: Ledger) -> None:
    """Ledgers and run directories hold these: any other name would charge, and draw, an old release once more."""
    release = replace(_training(ledger), opening="book")
    assert release.inputs == "95a30a5acd9684906deed225dc6b8d6eee30ecbd6d3075a3e1d9071e29915066"
    assert release.stream == "f6cc3231a82067ba5c115400086141284439d0ec1d3703ff624cd2da8698e1f2"
    StepGate(ledger, _training(ledger)).begin(1)
    gate = Gate(ledger, "sums", KEY)
    gate.release_votes("run", VOTES, Private(VOTED), EVERYBODY, asked=ASKED)
    gate.release_histogram("run", HISTOGRAM, Private(COUNTED), asked=ASKED)
    charges = [charge.id for account in ("steps", "sums") for charge in ledger.charges_of(account, "run")]
    assert charges == [
        "d4d55747f6eab649182396196a9698b04a693d17ca427044894bfa36d536c89b",
        "c67d60262cd851f3d61f322a4fa902ea96b56eaa8aaaf08c81f35c720d27aaaf",
        "819b1139391aa2475597139304ed77150cf5dfbdec128442b3d601a646ecd93c",
    ]


def _taking_part(release: StepRelease) -> list[bytes]:
    """The coins of 64 users at step 0, each with a token of its own."""
    documents = [Document(np.array([user, user], dtype=np.int32), 1) for user in range(64)]
    units = [Unit(unit_tag(KEY, "user", user), (document,)) for user, document in enumerate(documents)]
    sampler = PoissonSampler(KEY, release.stream, STEPS.sampling_rate, units, 1)
    return [documents[0].ids.tobytes() for documents in sampler.sample(0)]


def _noise(release: StepRelease) -> np.ndarray[Any, Any]:
    return KeyedNoise(KEY, release.stream).normal(0, "weight", 0, 1000).numpy()


def test_two_trainings_of_one_release_share_neither_coins_nor_noise(ledger: Ledger) -> None:
    first, second = _training(ledger, "parses"), _training(ledger, "texts")
    assert _taking_part(first) != _taking_part(second)
    assert abs(np.corrcoef(_noise(first), _noise(second))[0, 1]) < 0.2
    again = _training(ledger, "parses")
    assert _taking_part(again) == _taking_part(first)
    assert np.array_equal(_noise(again), _noise(first))


def test_two_trainings_of_one_release_are_charged_twice_and_each_resumes_on_its_own(ledger: Ledger) -> None:
    first, second = _training(ledger, "parses"), _training(ledger, "texts")
    train(ledger, first, "parser")
    once = ledger.status("steps").balance.used
    with pytest.raises(ReleaseError, match=r"chunks \[1, 2, 3\] of the training are not committed"):
        StepGate(ledger, second).released("writer", "parser after 3")
    train(ledger, second, "writer", until=2)  # and dies
    assert len(ledger.charges_of("steps", "run")) == 5
    with pytest.raises(ReleaseError, match=r"chunks \[3\] of the training are not committed"):
        StepGate(ledger, second).released("writer", "writer after 3")
    train(ledger, first, "parser")  # what is finished is found again, and costs nothing
    gate = train(ledger, second, "writer")
    assert gate.released("writer", "writer after 3").value == "writer"
    assert StepGate(ledger, first).released("parser", "parser after 3").value == "parser"
    assert len(ledger.charges_of("steps", "run")) == 6
    assert ledger.status("steps").balance.used == tuple(2 * each for each in once)
    with pytest.raises(ReleaseError, match="chunk 1 ended in another model"):
        train(ledger, first, "writer")
    with pytest.raises(ReleaseError, match="not those that were committed"):
        StepGate(ledger, second).released("parser", "parser after 3")
    ledger.verify()


def test_a_stage_is_not_mistaken_for_an_input(ledger: Ledger) -> None:
    named = [("a", "b", "c"), ("", "a", "b", "c"), ("", "b", "a", "c"), ("b", "a", "c"), ("ab",), ()]
    assert len({_training(ledger, *each).inputs for each in named}) == 6


@pytest.mark.parametrize("kind", ["votes", "histogram"])
def test_equal_sums_of_two_stages_are_two_charges_and_two_draws(ledger: Ledger, kind: str) -> None:
    gate, far_above = Gate(ledger, "sums", KEY), np.array([300 * SCALE, 200 * SCALE])

    def released(stage: str) -> bytes:
        if kind == "votes":
            found = gate.release_votes("run", VOTES, Private(VOTED), EVERYBODY, asked=ASKED, stage=stage)
        else:
            found = gate.release_histogram("run", HISTOGRAM, Private(far_above), asked=ASKED, stage=stage)
        return found.value.tobytes()

    drawn = [released(stage) for stage in ("", "first", "second")]
    assert len(set(drawn)) == len(ledger.charges_of("sums", "run")) == 3
    assert [released(stage) for stage in ("", "first", "second")] == drawn
    assert len(ledger.charges_of("sums", "run")) == 3
