"""Clipped means of micro-batches: noise on twice the clipping norm, and the charge that goes with it."""

from dataclasses import replace

from rayprivacy.accounting.schedule import NoiseSchedule
from rayprivacy.release.step_mechanism import NoisySteps

FALLING = NoiseSchedule("linear", tau=1.0, steps_per_epoch=5)
MEANS = NoisySteps(0.2, 1.5, clipping_norm=0.5, steps=10, schedule=NoiseSchedule(), chunk=5, microbatches=32)


def test_the_noise_is_scaled_to_the_2c_by_which_one_unit_moves_the_sum() -> None:
    assert MEANS.sensitivity == 1.0
    assert {MEANS.noise_std(step) for step in range(10)} == {1.5}
    assert MEANS.event == NoisySteps(0.2, 1.5, 0.5, 10).event
    assert replace(MEANS, microbatches=64).noise_std(0) == MEANS.noise_std(0)  # on the sum, whatever N
    falling = replace(MEANS, schedule=FALLING)
    assert [falling.noise_std(step) for step in (4, 5)] == [1.5, 0.75]
    assert falling.event == NoisySteps(0.2, 1.5, 0.5, 10, schedule=FALLING, chunk=5).event


def test_the_number_of_micro_batches_is_in_the_digest() -> None:
    assert MEANS.parameters != replace(MEANS, microbatches=64).parameters
    assert MEANS.parameters["mechanism"] == "microbatch-gaussian"
