"""Coupled sensitivity of a redaction schedule, from shards to weights: what a hidden text can change, and what not.

Two corpora have the same redacted copies. In one of them a unit's full text is another one, or takes no part in noisy
steps. Coins and noise are the same, so whatever differs is the unit's doing.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "dpsgd"))

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


def _nothing(row: Any) -> str:
    return ""


READING = redacting(PrivacyUnit.USER, (), _nothing, 40, Redacting(POLICY, 2000), LISTED)


@pytest.fixture
def weights(tmp_path: Path, tiny_backbone: Any) -> Callable[..., list[torch.Tensor]]:
    """The weights, as one vector, after each of some steps; Ann may be absent from noisy ones, or from all."""

    def run(text: str, steps: list[int], absent: Any = frozenset(), low: bool = False, light: float = 0.0) -> Any:
        folder = tmp_path / str(abs(hash(text)))
        folder.mkdir(exist_ok=True)
        rows = sorted([("ann", f"my code is {text} ok"), *OTHERS])
        write_part(_table(rows), 0, KEY, folder)
        units = read_units(folder, [0], tiny_backbone, KEY, READING)
        listed = {"redacted": LISTED, "policy": POLICY.digest, "light": light}
        mechanism = NoisySteps(0.9, 0.3, NORM, len(LISTED), **listed)
        READING.check(mechanism.steps, mechanism.redacted_steps)
        return _trained(tiny_backbone, units, mechanism, steps, absent, low)

    return run


def _table(rows: list[tuple[str, str]]) -> pa.Table:
    return pa.table(
        {
            "shard": pa.array([0] * len(rows), pa.int32()),
            "user": [user for user, _ in rows],
            "record": pa.array([0] * len(rows), pa.int32()),
            "text": pa.array([text for _, text in rows], pa.large_string()),
        }
    )


def _trained(
    backbone: Any, units: Any, mechanism: NoisySteps, steps: list[int], absent: Any, low: bool
) -> list[torch.Tensor]:
    sgd = OptimizerConfig(kind="sgd", learning_rate=1.0, schedule="constant")
    training = DpSgdConfig(steps=len(LISTED), max_tokens=40, clipping_norm=NORM, optimizer=sgd)
    noise = StepNoise(KeyedNoise(KEY, "run"), mechanism, 1.0)
    model, losses = trainable(backbone, AdapterConfig(kind="full")), partial(row_losses, low_precision=low)
    engine = make_engine(model, training, noise, EngineConfig(), losses, low_precision=low)
    ann, found = unit_tag(KEY, "user", "ann"), []
    for step in steps:
        present = [unit for unit in units if not (step in absent and unit.tag == ann)]
        sampler = PoissonSampler(KEY, "run", mechanism.sampling_rate, present, 1, READING.version_of)
        engine.step(step, physical_batches(sampler.sample(step), 128, backbone.end))
        found.append(torch.cat([tensor.flatten() for tensor in engine.state_dict().values()]).double())
    return found


@pytest.mark.parametrize("low", [False, True], ids=["float32", "bfloat16"])
def test_a_unit_moves_a_noisy_step_by_the_norm_and_a_redacted_one_by_nothing(weights: Any, low: bool) -> None:
    """Zero-out: with and without the unit's full text. Each noisy step by itself, from the same weights."""
    moves = []
    for text in SECRETS[: 2 if low else None]:
        for step in NOISY:
            (present,), (absent,) = (weights(text, [step], each, low) for each in ((), NOISY))
            moves.append(float((present - absent).norm()))
    assert max(moves) <= NORM * (1 + ROUNDING)
    assert max(moves) >= 0.9 * NORM, "the bound is the right one, not a wide one"


@pytest.mark.parametrize("light", [0.0, 0.05], ids=["free", "paid"])
def test_a_user_moves_a_redacted_step_by_the_norm_too(weights: Any, light: float) -> None:
    """What a central account pays for: the user as a whole, copy and full text, with noise that is the same."""
    every, moves = range(len(LISTED)), []
    for text in SECRETS[:2]:
        for step in every:
            (present,), (absent,) = (weights(text, [step], each, light=light) for each in ((), every))
            moves.append(float((present - absent).norm()))
    assert max(moves) <= NORM * (1 + ROUNDING)
    assert max(moves) >= 0.9 * NORM


@pytest.mark.parametrize("low", [False, True], ids=["float32", "bfloat16"])
def test_weights_are_equal_bit_by_bit_until_a_noisy_step_has_read_what_differs(weights: Any, low: bool) -> None:
    for other in SECRETS[1 : 2 if low else None]:
        one, two = (weights(text, [0, 1, 2], low=low) for text in (SECRETS[0], other))
        assert torch.equal(one[0], two[0])
        assert torch.equal(one[1], two[1])
        assert 0 < float((one[2] - two[2]).norm()) <= 2 * NORM * (1 + ROUNDING)
        # A redacted step after it is a function of the weights and of the copies, which are equal.
        assert not torch.equal(one[1], weights(SECRETS[0], [0])[0])


def test_redacted_batches_are_those_of_any_hidden_words(tmp_path: Path, tiny_backbone: Any) -> None:
    read = []
    for number, text in enumerate(SECRETS):
        folder = tmp_path / str(number)
        folder.mkdir()
        write_part(_table(sorted([("ann", f"my code is {text} ok"), *OTHERS])), 0, KEY, folder)
        units = read_units(folder, [0], tiny_backbone, KEY, READING)
        sampler = PoissonSampler(KEY, "run", 1.0, units, 1, READING.version_of)
        batches = [physical_batches(sampler.sample(step), 128, tiny_backbone.end) for step in (0, 3)]
        assert all(batch.redacted for step in batches for batch in step)
        assert not any(batch.redacted for batch in physical_batches(sampler.sample(2), 128, tiny_backbone.end))
        read.append([(batch.ids.tolist(), batch.weights.tolist()) for step in batches for batch in step])
    assert all(each == read[0] for each in read)
