"""The noisy optimizer fails closed: no step without noise, twice, in part, or because of what gradients are; and
steps without noise read redacted copies alone.
"""

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from changing_noise import changing
from engine_cases import (
    ADAM,
    BATCH,
    EXHAUSTIVE,
    PAD,
    RATE,
    SGD,
    Case,
    engines,
    losses,
    made,
    mine,
    refused,
    taken,
    tiny_model,
)

from rayprivacy.core.errors import ConfigError, ReleaseError
from rayprivacy.core.keys import Key
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.dpsgd import collectives
from rayprivacy.dpsgd.batches import Batch, Document, dummy_batch, physical_batches
from rayprivacy.dpsgd.engines.engine import StepNoise
from rayprivacy.dpsgd.engines.noisy_optimizer import NoisyOptimizer
from rayprivacy.dpsgd.engines.state import Fragment, Partition, Piece, check_manifest
from rayprivacy.dpsgd.engines.zero import ZeroEngine, find_deepspeed
from rayprivacy.dpsgd.noise import KeyedNoise
from rayprivacy.dpsgd.optimizer import Schedule
from rayprivacy.dpsgd.settings import OptimizerConfig
from rayprivacy.dpsgd.units import Reading, no_context

SCHEDULE = Schedule(OptimizerConfig(kind="sgd", learning_rate=1.0, schedule="constant"), 10)
NOISE = StepNoise(KeyedNoise(Key.for_tests(), "run"), changing((2.0,) * 10), 4.0)
PIECES = (Piece(Fragment("a", 0, 3), 0), Piece(Fragment("b", 0, 2), 4))  # one number of padding between, two behind


class Wrapped:
    """A flat tensor of seven numbers, two parameters and three numbers of padding, behind its noisy optimizer."""

    def __init__(self, sizes=None, scale=1.0):
        self.flat = torch.zeros(7, requires_grad=True)
        self.optimizer = torch.optim.SGD([self.flat], lr=0.0)
        whole = [Partition(self.flat, PIECES)]
        self.noisy = NoisyOptimizer(self.optimizer, whole, sizes or {"a": 3, "b": 2}, False, NOISE, SCHEDULE, scale)

    def step(self, number, change=lambda _: None):
        self.flat.grad = torch.arange(7.0)
        with self.noisy.open(number):
            change(self)
            self.optimizer.step()


def test_noise_goes_to_its_coordinates_and_padding_stays_zero():
    wrapped = Wrapped(scale=3.0)
    wrapped.step(5)
    a, b = (NOISE.noise.normal(5, name, 0, size) for name, size in (("a", 3), ("b", 2)))
    gradient = torch.zeros(7)
    gradient[:3] = 3 * torch.arange(3.0) + 2.0 * a
    gradient[4:6] = 3 * torch.tensor([4.0, 5.0]) + 2.0 * b
    torch.testing.assert_close(wrapped.flat.detach(), -gradient / 4.0)


def _set(wrapped, gradient):
    wrapped.flat.grad = None
    if gradient is not None:
        wrapped.flat.data = torch.zeros_like(gradient)  # as an optimizer does that has changed its partition
    wrapped.flat.grad = gradient


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda wrapped: _set(wrapped, None), "has no gradient for 7 float32"),
        (lambda wrapped: _set(wrapped, torch.ones(5)), "has 5 torch.float32 gradients for 7"),
        (lambda wrapped: _set(wrapped, torch.ones(7, dtype=torch.bfloat16)), "has 7 torch.bfloat16 gradients"),
        (lambda wrapped: wrapped.optimizer.step(), "would update a tensor twice"),
        (lambda wrapped: wrapped.optimizer.add_param_group({"params": [torch.zeros(2)]}), "not in the noise manifest"),
    ],
)
def test_no_step_twice_of_an_unknown_tensor_or_without_whole_gradients(change, said):
    with pytest.raises(ReleaseError, match=said):
        Wrapped().step(0, change)


def test_no_step_outside_and_none_left_out():
    wrapped = Wrapped()
    wrapped.flat.grad = torch.ones(7)
    with pytest.raises(ReleaseError, match="no noisy step is open"):
        wrapped.optimizer.step()
    with pytest.raises(ReleaseError, match="step 0 left 1 of 1 partitions without noise"), wrapped.noisy.open(0):
        pass
    with pytest.raises(ReleaseError, match="no noisy step is open"):
        wrapped.optimizer.step()
    assert not wrapped.flat.any()


def test_a_step_number_is_used_once_even_if_the_step_failed_and_is_one_of_those_charged():
    wrapped = Wrapped()
    with pytest.raises(ZeroDivisionError):
        wrapped.step(3, lambda _: 1 / 0)
    for step in (3, 2, 0):
        with pytest.raises(ReleaseError, match=f"step {step} was opened before: go on with 4"):
            wrapped.step(step)
    wrapped.step(9)
    with pytest.raises(ReleaseError, match="step 10 is not one of the 10 that are charged"):
        wrapped.step(10)


@pytest.mark.parametrize("sizes", [{"a": 3, "b": 3}, {"a": 3}, {"a": 3, "b": 2, "c": 1}])
def test_a_manifest_that_does_not_fit_is_refused(sizes):
    with pytest.raises(ReleaseError):
        Wrapped(sizes)


@pytest.mark.parametrize(("std", "batch"), [(-1.0, 4.0), (float("nan"), 4.0), (float("inf"), 4.0), (1.0, 0.0)])
def test_impossible_noise_is_refused(std, batch):
    with pytest.raises(ReleaseError):
        StepNoise(NOISE.noise, changing((1.0, 1.0, std)), batch)


class Overflowing:
    """Clipped gradients that are infinite: what no optimizer may notice."""

    def __init__(self, model):
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def __call__(self, losses, rows_per_unit, live=True):
        losses()
        shape = {each: getattr(each, "ds_shape", each.shape) for each in self.parameters}
        return {each: lambda each=each: torch.full(shape[each], float("inf")) for each in self.parameters}


def _overflowed(zero, offload):
    """Share of weights that infinite gradients have reached."""
    model, noise = tiny_model("gpt2"), StepNoise(KeyedNoise(Key.for_tests(), "run"), changing((1.0,) * 10), BATCH)
    engine = ZeroEngine(model, Overflowing(model), noise, Schedule(SGD, 10), losses, zero, offload)
    engine.step(0, mine(Case("gpt2"), (5, 4)))
    weights = torch.cat([tensor.flatten() for tensor in engine.state_dict().values()])
    return float((~weights.isfinite()).float().mean())


@pytest.mark.parametrize(("zero", "offload"), [(1, False), (2, False), (3, False), (2, True), (3, True)])
def test_infinite_gradients_do_not_skip_a_step(pair, zero, offload):
    assert pair.run(_overflowed, zero, offload) == [1.0, 1.0]


def _told_to_step(case):
    engine: Any = made(case)
    engine._take(mine(case, case.splits[0]) if case.zero != 3 else [])


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_deepspeed_cannot_step_by_itself(pair, zero):
    for answer in pair.run(refused, Case("gpt2", zero), _told_to_step):
        assert answer.startswith("ReleaseError: the optimizer was told to step while no noisy step is open")


@pytest.mark.parametrize("different", ["key", "last step", "steps", "batch", "nothing"])
def test_ranks_with_other_noise_do_not_begin(pair, different):
    said = "" if different == "nothing" else "ranks differ in the noise"
    assert all(
        said in answer and bool(answer) is bool(said) for answer in pair.run(refused, different, _replicated_with)
    )


def _replicated_with(different):
    flat, other = torch.zeros(5, requires_grad=True), collectives.rank() == 1
    key = Key(bytes([other and different == "key"]) * 32)
    sigmas = (1.0, 1.0, 1.5 if other and different == "last step" else 1.0)
    sigmas = (*sigmas, 1.0) if other and different == "steps" else sigmas
    noise = StepNoise(KeyedNoise(key, "run"), changing(sigmas), 5.0 if other and different == "batch" else 4.0)
    whole = [Partition(flat, (Piece(Fragment("a", 0, 5), 0),))]
    NoisyOptimizer(torch.optim.SGD([flat], lr=0.0), whole, {"a": 5}, True, noise, SCHEDULE)


@pytest.mark.parametrize(
    ("case", "ranks", "said"),
    [
        (Case("gpt2_lora", 3, gradients="opacus"), 2, "resources.gradients is 'opacus' and resources.zero 3"),
        (Case("gpt2", 3, micro=True), 2, "use zero 2, or null"),
        (Case("gpt2", 0, True), 2, "resources.offload needs resources.zero 1, 2 or 3"),
        (Case("gpt2", 2), 1, "resources.zero is 2 without a process group"),
        (Case("gpt2", gradients="opacus", micro=True), 1, "so leave it out"),
    ],
    ids=["opacus-zero3", "micro-zero3", "offload-zero0", "no-group", "opacus-micro"],
)
def test_engines_that_cannot_are_refused(pair, case, ranks, said):
    assert all(said in answer for answer in (pair.run(refused, case) if ranks == 2 else [refused(case)]))


def test_zero_needs_deepspeed(monkeypatch):
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    with pytest.raises(ConfigError, match=r'resources\.zero needs .* pip install "rayprivacy\[deepspeed\]"'):
        find_deepspeed(torch.device("cpu"))


@pytest.mark.usefixtures("one_thread")
def test_a_dummy_batch_and_one_without_finite_losses_add_nothing():
    expected, poisoned = taken(Case("gpt2", splits=((9,),))), made(Case("gpt2"))
    broken = Batch(torch.full((1, 8), 5), torch.full((1, 8), float("nan")), 1)
    poisoned.step(0, [dummy_batch(PAD), broken, *mine(Case("gpt2"), (9,))])
    for name, tensor in poisoned.state_dict().items():
        torch.testing.assert_close(tensor, torch.from_numpy(expected[name]), rtol=1e-5, atol=1e-3)


REDACTED = Case("gpt2", splits=((5, 4), (4, 5), (9, 0)), sigma=1.0, optimizer=ADAM, redacted=(True, False, True, False))


@engines("plain")
def test_full_text_in_a_step_without_noise_is_refused(pair, zero, offload):
    """Both ranks are, where one alone holds units in that step."""
    case = replace(REDACTED, zero=zero, full=(1, 2, 3))
    told = pair.run(refused, case)
    assert all(each.startswith("ReleaseError: step 2 is a redacted one and was given full text") for each in told)
    assert pair.run(refused, replace(case, splits=case.splits[:2])) == ["", ""]


@pytest.mark.usefixtures("one_thread")
def test_one_full_document_among_redacted_ones_is_enough():
    full, hidden = (Document(np.array([0, 5, 6], dtype=np.int32), 1, redacted) for redacted in (False, True))
    for units, redacted in (([[hidden], [hidden]], True), ([[full], [hidden]], False), ([[full, hidden]], False)):
        assert [batch.redacted for batch in physical_batches(units, 64, 0)] == [redacted]
    assert refused(replace(REDACTED, splits=((9,),), full=(0,)))
    assert not refused(replace(REDACTED, splits=((9,),)))
    assert not refused(replace(REDACTED, splits=((0,),), full=(0,)))  # an empty step has read nothing


@pytest.mark.parametrize("half", [False, pytest.param(True, marks=EXHAUSTIVE)])
@engines("plain", "zero3")
def test_a_unit_that_is_absent_from_a_noisy_step_moves_it_by_the_norm(pair, zero, offload, half):
    """Step 0 reads the redacted copies of all nine, and step 1 the full text of nine or of eight."""
    case = replace(REDACTED, zero=zero, optimizer=SGD, half=half)
    with_it, without = (pair.run(taken, replace(case, splits=((5, 4), (5, held))))[0] for held in (4, 3))
    moved = sum(((with_it[name].astype(float) - without[name]) ** 2).sum() for name in with_it)
    assert 0.1 < np.sqrt(moved) * BATCH / RATE <= 1 + 1e-3


READING = Reading(
    PrivacyUnit.USER, (), no_context, 8, versions=2, version_of=[0, 1, 0, 1].__getitem__, redacted=frozenset({0})
)
FULL_TEXT = "step 0 is a redacted one and would read full text"


@pytest.mark.parametrize(
    ("reading", "free", "said"),
    [
        (replace(READING, version_of=lambda _: 1), {0, 2}, FULL_TEXT),
        (replace(READING, redacted=frozenset()), {0, 2}, FULL_TEXT),
        (READING, {0}, "step 2 is charged and reads redacted text"),
        (READING, set(), "step 0 is charged and reads redacted text"),
    ],
)
def test_a_reading_that_does_not_follow_the_charged_schedule_is_refused(reading, free, said):
    READING.check(4, frozenset({0, 2}))
    with pytest.raises(ReleaseError, match=said):
        reading.check(4, frozenset(free))


SIZES = {"weight": 10, "bias": 3}
WHOLE = [Fragment("weight", 0, 10), Fragment("bias", 0, 3)]
PARTS = [
    [Fragment("weight", 4, 6), Fragment("bias", 0, 1)],
    [Fragment("bias", 1, 2)],
    [Fragment("weight", 0, 4), Fragment("bias", 2, 0)],
    [],
]


def test_complete_manifests_pass():
    check_manifest(SIZES, PARTS, replicated=False)
    check_manifest(SIZES, PARTS[::-1], replicated=False)
    check_manifest(SIZES, [WHOLE], replicated=False)
    check_manifest(SIZES, [WHOLE, WHOLE[::-1], PARTS[0] + PARTS[1] + PARTS[2]], replicated=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ([Fragment("weight", 0, 3)], "coordinate 3 of parameter 'weight'"),
        ([Fragment("weight", 1, 3)], "coordinate 0 of parameter 'weight'"),
        ([], "coordinate 0 of parameter 'weight'"),
        ([Fragment("weight", 0, 5)], "coordinate 4 of parameter 'weight' is held twice"),
        ([Fragment("weight", 0, 4), Fragment("weight", 9, 1)], "coordinate 9 of parameter 'weight' is held twice"),
        ([Fragment("weight", 0, 4), Fragment("weight", 0, 4)], "coordinate 0 of parameter 'weight' is held twice"),
        ([Fragment("weight", 0, 4), Fragment("bias", 2, 1)], "coordinate 2 of parameter 'bias' is held twice"),
        ([Fragment("weight", 0, 4), Fragment("bias", 3, 1)], r"\[3, 4\) of parameter 'bias' is outside \[0, 3\)"),
        ([Fragment("weight", -1, 5)], r"\[-1, 4\) of parameter 'weight' is outside"),
        ([Fragment("weight", 0, 4), Fragment("weight", 4, -2)], "is outside"),
        ([Fragment("weight", 0, 4), Fragment("head", 0, 1)], "'head', which is not trainable"),
    ],
)
def test_what_is_missing_doubled_unknown_or_out_of_range_is_refused(change, message):
    with pytest.raises(ReleaseError, match=message):
        check_manifest(SIZES, [*PARTS[:2], change, []], replicated=False)


def test_replicated_ranks_hold_everything_each_and_others_nothing_twice():
    for ranks in (PARTS, [WHOLE, WHOLE[:1]], [WHOLE, WHOLE * 2], [WHOLE, []], [[], []]):
        with pytest.raises(ReleaseError, match="parameter"):
            check_manifest(SIZES, ranks, replicated=True)
    for ranks, replicated, said in (([WHOLE, WHOLE], False, "twice"), ([], True, "0 ranks"), ([], False, "0 ranks")):
        with pytest.raises(ReleaseError, match=said):
            check_manifest(SIZES, ranks, replicated)


def test_the_fragments_of_a_good_manifest_make_up_the_whole_noise():
    noise = KeyedNoise(Key.for_tests(), "run")
    for name, size in SIZES.items():
        vector = torch.zeros(size)
        for held in (held for rank in PARTS for held in rank if held.name == name):
            vector[held.start : held.start + held.count] += noise.normal(0, name, held.start, held.count)
        assert torch.equal(vector, noise.normal(0, name, 0, size))
