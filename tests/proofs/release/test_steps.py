"""Steps of DP-SGD at the gate: chunks are charged before they run, once, and each stage of a release has one model."""

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from changing_noise import changing
from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from trainings import open_book, train, training

from rayprivacy.accounting.events import leaves
from rayprivacy.core.errors import BudgetRefusedError, LedgerError, ReleaseError
from rayprivacy.core.keys import Key
from rayprivacy.core.private import Private, digest_json
from rayprivacy.core.units import Budget, NeighbouringRelation, PrivacyUnit
from rayprivacy.dpsgd.batches import Document
from rayprivacy.dpsgd.noise import KeyedNoise
from rayprivacy.dpsgd.sampler import PoissonSampler, Unit, unit_tag
from rayprivacy.ledger.charges import ChargeState
from rayprivacy.release.gate import Asked, Gate, VoteManifest
from rayprivacy.release.histogram import HistogramMechanism
from rayprivacy.release.step_mechanism import NoisySteps
from rayprivacy.release.steps import StepGate, StepRelease
from rayprivacy.release.votes import SCALE, VoteMechanism

MECHANISM = NoisySteps(sampling_rate=0.1, noise_multiplier=2.0, clipping_norm=0.5, steps=10)


@pytest.fixture
def ledger(tmp_path):
    return open_book(tmp_path, [MECHANISM.event])


def _release(ledger, *inputs, chunk=4, mechanism=MECHANISM):
    return training(ledger, mechanism, *inputs, chunk=chunk)


@pytest.fixture
def release(ledger):
    return _release(ledger)


def test_noise_event_and_sensitivity_are_of_one_piece():
    assert {MECHANISM.noise_std(step) for step in range(10)} == {1.0}  # sigma times C
    assert replace(MECHANISM, clipping_norm=4.0).noise_std(0) == 8.0
    assert MECHANISM.event == SelfComposedDpEvent(PoissonSampledDpEvent(0.1, GaussianDpEvent(2.0)), 10)
    assert replace(MECHANISM, clipping_norm=4.0).event == MECHANISM.event  # normalised by the sensitivity
    assert replace(MECHANISM, unit=PrivacyUnit.RECORD).protection.unit is PrivacyUnit.RECORD


def test_chunks_cover_every_step_once():
    for chunk in (1, 3, 4, 10, 99):
        release = StepRelease("chat", "run", "book", "inputs", MECHANISM, chunk)
        assert [step for rung in range(1, release.rungs + 1) for step in release.steps(rung)] == list(range(10))


def test_a_training_charges_its_steps_in_chunks(ledger, tmp_path):
    train(ledger, _release(ledger))
    charges = ledger.charges_of("chat", "run")
    assert [(charge.rung, charge.event.count) for charge in charges] == [(1, 4), (2, 4), (3, 2)]
    assert {charge.state for charge in charges} == {ChargeState.COMMITTED}
    assert ledger.status("chat").balance.used[0] == pytest.approx(_whole(tmp_path)[0], rel=1e-12)
    ledger.verify()


def test_a_chunk_is_charged_the_event_of_its_own_steps(ledger, tmp_path):
    """Noise that changes by step is charged where it is drawn, and all chunks together cost what all steps cost."""
    mechanism = changing((2.0, 2.5, 3.0, 3.5, 4.0))
    train(ledger, _release(ledger, chunk=2, mechanism=mechanism))
    charges = ledger.charges_of("chat", "run")
    sigmas = [[leaf.event.noise_multiplier for leaf, _ in leaves(charge.event)] for charge in charges]
    assert sigmas == [[2.0, 2.5], [3.0, 3.5], [4.0]]
    assert [mechanism.noise_std(step) for step in range(5)] == [sigma for chunk in sigmas for sigma in chunk]
    assert ledger.status("chat").balance.used[0] == pytest.approx(_whole(tmp_path, mechanism)[0], rel=1e-12)


def _whole(tmp_path, mechanism=MECHANISM):
    ledger = open_book(tmp_path / "whole", [MECHANISM.event])
    ledger.reserve("chat", "run", "d", mechanism.event)
    return ledger.status("chat").balance.used


def test_a_chunk_is_charged_before_it_runs_and_stopping_early_charges_no_more(ledger):
    gate = StepGate(ledger, _release(ledger))
    gate.begin(1)
    assert [charge.state for charge in ledger.charges_of("chat", "run")] == [ChargeState.STARTED]
    gate.end(1, "m1 after 1")
    assert [charge.event.count for charge in ledger.charges_of("chat", "run")] == [4]
    with pytest.raises(ReleaseError, match=r"chunks \[2, 3\] of the training are not committed"):
        gate.released("model", "m1 after 3")


def test_a_refused_chunk_costs_nothing_and_what_ran_stays_charged(ledger, release):
    gate = train(ledger, release, until=1)
    with suppress(BudgetRefusedError):  # other releases of the account take what is left
        for number in range(1000):
            ledger.reserve("chat", f"other-{number}", "d", MECHANISM.event_of(range(5)))
    before = ledger.status("chat").balance.used
    with pytest.raises(BudgetRefusedError):
        gate.begin(2)
    assert ledger.status("chat").balance.used == before
    assert [charge.rung for charge in ledger.charges_of("chat", "run")] == [1]


def test_repeating_a_chunk_takes_the_charge_it_has(ledger, release):
    StepGate(ledger, release).begin(1)  # and dies
    train(ledger, release)
    train(ledger, release)  # a whole repetition that ends in the same model
    assert len(ledger.charges_of("chat", "run")) == 3
    assert train(ledger, release).released("model", "m1 after 3").value == "model"


def test_one_release_has_one_model(ledger, release):
    train(ledger, release, "m1")
    with pytest.raises(ReleaseError, match="was made before, and chunk 1 ended in another model"):
        train(ledger, release, "m2")
    with pytest.raises(ReleaseError, match="not those that were committed"):
        StepGate(ledger, release).released("model", "m2 after 3")


def test_a_model_on_the_way_is_bound_like_the_whole_one(ledger, release):
    """A search looks at the model after some chunks: no second one under the same noise may leave, nor follow it."""
    assert train(ledger, release, "m1", until=2).released("model", "m1 after 2", 2).value == "model"
    for other in ("m2 after 2", "m1 after 1"):
        with pytest.raises(ReleaseError, match="not those that were committed"):
            StepGate(ledger, release).released("model", other, 2)
    with pytest.raises(ReleaseError, match="chunk 1 ended in another model"):
        train(ledger, release, "m2")
    with pytest.raises(ReleaseError, match=r"chunks \[3\] of the training are not committed"):
        StepGate(ledger, release).released("model", "m1 after 3")
    gate = StepGate(ledger, release)
    gate.begin(3)
    with pytest.raises(ReleaseError, match="without the digest of its model"):
        gate.end(3, "")


def test_a_release_of_version_0_1_is_served_and_its_open_chunks_are_not_repeated(ledger, release):
    """Only its last chunk bound a model; what was left half-way could have ended in two."""
    for rung in (1, 2, 3):
        gate = StepGate(ledger, release)
        gate.begin(rung)
        (held,) = gate._held
        ledger.commit_output(held, digest_json({"rung": rung, "model": "m1" if rung == 3 else ""}).encode())
    assert StepGate(ledger, release).released("model", "m1").value == "model"
    for model, *rung in (("m2",), ("", 2)):
        with pytest.raises(ReleaseError, match="not those that were committed"):
            StepGate(ledger, release).released("model", model, *rung)
    with pytest.raises(ReleaseError, match="chunk 1 ended in another model"):
        train(ledger, release)


def test_streams_differ_between_books_releases_and_inputs(tmp_path, ledger):
    release = _release(ledger)
    streams = {
        release.stream,
        _release(ledger, "another corpus", "base").stream,
        _release(ledger, "corpus", "another base").stream,
        _release(ledger, mechanism=replace(MECHANISM, noise_multiplier=2.5)).stream,
        *(_release(ledger, mechanism=changing((2.0, last))).stream for last in (2.0, 2.1)),
        replace(release, release_id="run-2").stream,
        _release(open_book(tmp_path / "other", [MECHANISM.event], epsilon=8.5)).stream,
    }
    assert len(streams) == 8
    assert _release(ledger, chunk=5).stream == release.stream  # how it is charged changes no noise


def test_another_chunk_size_and_an_account_of_another_unit_are_refused(ledger):
    with pytest.raises(LedgerError, match="protects central record"):
        StepGate(ledger, _release(ledger, mechanism=replace(MECHANISM, unit=PrivacyUnit.RECORD))).begin(1)
    assert ledger.charges_of("chat", "run") == []
    StepGate(ledger, _release(ledger, chunk=4)).begin(1)
    with pytest.raises(LedgerError, match="is charged for"):
        StepGate(ledger, _release(ledger, chunk=5)).begin(1)


KEY = Key.for_tests()
STEPS = NoisySteps(sampling_rate=0.5, noise_multiplier=2.0, clipping_norm=0.5, steps=10)
VOTES = VoteMechanism(queries=4, candidates=3, teachers=5, sigma=10.0)
HISTOGRAM = HistogramMechanism(cells=2, sigma=5.0)
EVERYBODY = VoteManifest(tuple(range(5)))
VOTED = np.full((4, 3), 5 * SCALE // 3, dtype=np.int64)
ASKED = Asked(digest_json("corpus"), digest_json("question"))
COUNTED = np.array([30 * SCALE, 9 * SCALE])


@pytest.fixture
def book(tmp_path):
    book = open_book(tmp_path, [STEPS.event, STEPS.event], account="steps")
    book.ensure_account("sums", PrivacyUnit.USER, NeighbouringRelation.ADD_OR_REMOVE, Budget(8.0, 1e-6))
    return book


def _training(book, stage="", *inputs):
    return training(book, STEPS, *inputs, account="steps", stage=stage)


def test_releases_without_a_stage_have_the_names_they_always_had(book):
    """Ledgers and run directories hold these: any other name would charge, and draw, an old release once more."""
    release = replace(_training(book), opening="book")
    assert release.inputs == "95a30a5acd9684906deed225dc6b8d6eee30ecbd6d3075a3e1d9071e29915066"
    assert release.stream == "f6cc3231a82067ba5c115400086141284439d0ec1d3703ff624cd2da8698e1f2"
    StepGate(book, _training(book)).begin(1)
    gate = Gate(book, "sums", KEY)
    gate.release_votes("run", VOTES, Private(VOTED), EVERYBODY, asked=ASKED)
    gate.release_histogram("run", HISTOGRAM, Private(COUNTED), asked=ASKED)
    charges = [charge.id for account in ("steps", "sums") for charge in book.charges_of(account, "run")]
    assert charges == [
        "d4d55747f6eab649182396196a9698b04a693d17ca427044894bfa36d536c89b",
        "c67d60262cd851f3d61f322a4fa902ea96b56eaa8aaaf08c81f35c720d27aaaf",
        "819b1139391aa2475597139304ed77150cf5dfbdec128442b3d601a646ecd93c",
    ]


def _taking_part(release):
    """The coins of 64 users at step 0, each with a token of its own."""
    documents = [Document(np.array([user, user], dtype=np.int32), 1) for user in range(64)]
    units = [Unit(unit_tag(KEY, "user", user), (document,)) for user, document in enumerate(documents)]
    sampler = PoissonSampler(KEY, release.stream, STEPS.sampling_rate, units, 1)
    return [documents[0].ids.tobytes() for documents in sampler.sample(0)]


def _noise(release):
    return KeyedNoise(KEY, release.stream).normal(0, "weight", 0, 1000).numpy()


def test_two_trainings_of_one_release_share_neither_coins_nor_noise(book):
    first, second = _training(book, "parses"), _training(book, "texts")
    assert _taking_part(first) != _taking_part(second)
    assert abs(np.corrcoef(_noise(first), _noise(second))[0, 1]) < 0.2
    again = _training(book, "parses")
    assert _taking_part(again) == _taking_part(first)
    assert np.array_equal(_noise(again), _noise(first))


def test_two_trainings_of_one_release_are_charged_twice_and_each_resumes_on_its_own(book):
    first, second = _training(book, "parses"), _training(book, "texts")
    train(book, first, "parser")
    once = book.status("steps").balance.used
    with pytest.raises(ReleaseError, match=r"chunks \[1, 2, 3\] of the training are not committed"):
        StepGate(book, second).released("writer", "parser after 3")
    train(book, second, "writer", until=2)  # and dies
    assert len(book.charges_of("steps", "run")) == 5
    with pytest.raises(ReleaseError, match=r"chunks \[3\] of the training are not committed"):
        StepGate(book, second).released("writer", "writer after 3")
    train(book, first, "parser")  # what is finished is found again, and costs nothing
    gate = train(book, second, "writer")
    assert gate.released("writer", "writer after 3").value == "writer"
    assert StepGate(book, first).released("parser", "parser after 3").value == "parser"
    assert len(book.charges_of("steps", "run")) == 6
    assert book.status("steps").balance.used == tuple(2 * each for each in once)
    with pytest.raises(ReleaseError, match="chunk 1 ended in another model"):
        train(book, first, "writer")
    with pytest.raises(ReleaseError, match="not those that were committed"):
        StepGate(book, second).released("parser", "parser after 3")
    book.verify()


def test_a_stage_is_not_mistaken_for_an_input(book):
    named = [("a", "b", "c"), ("", "a", "b", "c"), ("", "b", "a", "c"), ("b", "a", "c"), ("ab",), ()]
    assert len({_training(book, *each).inputs for each in named}) == 6


@pytest.mark.parametrize("kind", ["votes", "histogram"])
def test_equal_sums_of_two_stages_are_two_charges_and_two_draws(book, kind):
    gate, far_above = Gate(book, "sums", KEY), np.array([300 * SCALE, 200 * SCALE])

    def released(stage):
        if kind == "votes":
            found = gate.release_votes("run", VOTES, Private(VOTED), EVERYBODY, asked=ASKED, stage=stage)
        else:
            found = gate.release_histogram("run", HISTOGRAM, Private(far_above), asked=ASKED, stage=stage)
        return found.value.tobytes()

    drawn = [released(stage) for stage in ("", "first", "second")]
    assert len(set(drawn)) == len(book.charges_of("sums", "run")) == 3
    assert [released(stage) for stage in ("", "first", "second")] == drawn
    assert len(book.charges_of("sums", "run")) == 3
