"""Coupled sensitivity of a redaction schedule, from shards to weights: what a hidden text can change, and what not."""

from functools import cache, partial

import pyarrow as pa
import pytest
import torch

from rayprivacy.core.keys import Key
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.manifest import write_part
from rayprivacy.dpsgd.batches import physical_batches
from rayprivacy.dpsgd.engines.engine import StepNoise, make_engine
from rayprivacy.dpsgd.losses import row_losses
from rayprivacy.dpsgd.noise import KeyedNoise
from rayprivacy.dpsgd.sampler import PoissonSampler, unit_tag
from rayprivacy.dpsgd.settings import DpSgdConfig, EngineConfig, OptimizerConfig
from rayprivacy.dpsgd.units import read_units
from rayprivacy.methods.domain_private.reading import Redacting, redacting
from rayprivacy.models.settings import AdapterConfig
from rayprivacy.models.trainable import trainable
from rayprivacy.policies.words import PatternPolicy
from rayprivacy.release.step_mechanism import NoisySteps
from rayprivacy.sanitize.settings import KINDS

KEY, NORM = Key.for_tests(), 0.5
LISTED = (True, True, False, True, False)
NOISY = [step for step, redacted in enumerate(LISTED) if not redacted]
POLICY = PatternPolicy(KINDS)
OTHERS = [("bob", "we meet at the station tomorrow"), ("cat", "hello how are you"), ("dan", "call 555 123 4567 today")]
SECRETS = ["12345", "99999 88888 77777", "555-12-3456", "a1b2c3 " * 9 + "77777", "call@me.org"]
ROUNDING = 1e-3

pytestmark = pytest.mark.usefixtures("one_thread")


READING = redacting(PrivacyUnit.USER, (), lambda row: "", 40, Redacting(POLICY, 2000), LISTED)


@pytest.fixture
def units(tmp_path, tiny_backbone):
    """The units of a corpus in which Ann's hidden words are these."""

    @cache
    def read(text):
        folder = tmp_path / str(abs(hash(text)))
        folder.mkdir()
        rows = sorted([("ann", f"my code is {text} ok"), *OTHERS])
        table = pa.table(
            {
                "shard": pa.array([0] * len(rows), pa.int32()),
                "user": [user for user, _ in rows],
                "record": pa.array([0] * len(rows), pa.int32()),
                "text": pa.array([text for _, text in rows], pa.large_string()),
            }
        )
        write_part(table, 0, KEY, folder)
        return read_units(folder, [0], tiny_backbone, KEY, READING)

    return read


@pytest.fixture
def weights(units, tiny_backbone):
    """The weights, as one vector, after each of some steps; Ann may be absent from noisy ones, or from all."""

    def run(text, steps, absent=(), low=False, light=0.0):
        listed = {"redacted": LISTED, "policy": POLICY.digest, "light": light}
        mechanism = NoisySteps(0.9, 0.3, NORM, len(LISTED), **listed)
        READING.check(mechanism.steps, mechanism.redacted_steps)
        sgd = OptimizerConfig(kind="sgd", learning_rate=1.0, schedule="constant")
        training = DpSgdConfig(steps=len(LISTED), max_tokens=40, clipping_norm=NORM, optimizer=sgd)
        noise = StepNoise(KeyedNoise(KEY, "run"), mechanism, 1.0)
        model, losses = trainable(tiny_backbone, AdapterConfig(kind="full")), partial(row_losses, low_precision=low)
        engine = make_engine(model, training, noise, EngineConfig(), losses, low_precision=low)
        ann, found = unit_tag(KEY, "user", "ann"), []
        for step in steps:
            present = [unit for unit in units(text) if not (step in absent and unit.tag == ann)]
            sampler = PoissonSampler(KEY, "run", mechanism.sampling_rate, present, 1, READING.version_of)
            engine.step(step, physical_batches(sampler.sample(step), 128, tiny_backbone.end))
            found.append(torch.cat([tensor.flatten() for tensor in engine.state_dict().values()]).double())
        return found

    return run


def _moves(weights, texts, steps, **more):
    """By how much Ann moves each step by itself, from the same weights; without her, her text is nowhere."""
    moves = []
    for step in steps:
        (absent,) = weights(texts[0], [step], [step], **more)
        moves += [float((weights(text, [step], **more)[0] - absent).norm()) for text in texts]
    return moves


@pytest.mark.parametrize("low", [False, True], ids=["float32", "bfloat16"])
def test_a_unit_moves_a_noisy_step_by_the_norm(weights, low):
    """Zero-out: with and without the unit's full text."""
    moves = _moves(weights, SECRETS[: 1 if low else None], NOISY, low=low)
    assert 0.9 * NORM <= max(moves) <= NORM * (1 + ROUNDING)


@pytest.mark.parametrize("light", [0.0, 0.05], ids=["free", "paid"])
def test_a_user_moves_a_redacted_step_by_the_norm_too(weights, light):
    """What a central account pays for: the user as a whole, copy and full text, with noise that is the same."""
    moves = _moves(weights, SECRETS[:1], [step for step, redacted in enumerate(LISTED) if redacted], light=light)
    assert 0.9 * NORM <= max(moves) <= NORM * (1 + ROUNDING)


@pytest.mark.parametrize("low", [False, True], ids=["float32", "bfloat16"])
def test_weights_are_equal_bit_by_bit_until_a_noisy_step_has_read_what_differs(weights, low):
    one, *others = (weights(text, [0, 1, 2], low=low) for text in SECRETS[: 2 if low else None])
    assert not torch.equal(one[1], one[0])
    for two in others:
        assert torch.equal(one[0], two[0])
        assert torch.equal(one[1], two[1])
        # A redacted step after it is a function of the weights and of the copies, which are equal.
        assert 0 < float((one[2] - two[2]).norm()) <= 2 * NORM * (1 + ROUNDING)


def test_redacted_batches_are_those_of_any_hidden_words(units, tiny_backbone):
    read = []
    for text in SECRETS:
        sampler = PoissonSampler(KEY, "run", 1.0, units(text), 1, READING.version_of)
        batches = [physical_batches(sampler.sample(step), 128, tiny_backbone.end) for step in (0, 3)]
        assert all(batch.redacted for step in batches for batch in step)
        assert not any(batch.redacted for batch in physical_batches(sampler.sample(2), 128, tiny_backbone.end))
        read.append([(batch.ids.tolist(), batch.weights.tolist()) for step in batches for batch in step])
    assert all(each == read[0] for each in read)
