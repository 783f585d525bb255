"""The noisy optimizer fails closed: no step without noise, twice, in part, or because of what gradients are."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from changing_noise import changing
from engine_cases import PAD, Case, made, mine, overflowed, refused, taken, told_to_step
from rank_processes import Ranks

from rayprivacy.core.errors import ConfigError, ReleaseError
from rayprivacy.core.keys import Key
from rayprivacy.dpsgd.batches import Batch, dummy_batch
from rayprivacy.dpsgd.engines.engine import StepNoise
from rayprivacy.dpsgd.engines.noisy_optimizer import NoisyOptimizer
from rayprivacy.dpsgd.engines.state import Fragment, Partition, Piece
from rayprivacy.dpsgd.noise import KeyedNoise
from rayprivacy.dpsgd.optimizer import Schedule
from rayprivacy.dpsgd.settings import OptimizerConfig

SCHEDULE = Schedule(OptimizerConfig(kind="sgd", learning_rate=1.0, schedule="constant"), 10)
NOISE = StepNoise(KeyedNoise(Key.for_tests(), "run"), changing((2.0,) * 10), 4.0)
PIECES = (Piece(Fragment("a", 0, 3), 0), Piece(Fragment("b", 0, 2), 4))  # one number of padding between, two behind


class Wrapped:
    """A flat tensor of seven numbers, two parameters and three numbers of padding, behind its noisy optimizer."""

    def __init__(self, sizes: dict[str, int] | None = None, noise: StepNoise = NOISE, scale: float = 1.0) -> None:
        self.flat = torch.zeros(7, requires_grad=True)
        self.optimizer = torch.optim.SGD([self.flat], lr=0.0)
        partitions = [Partition(self.flat, PIECES)]
        self.noisy = NoisyOptimizer(
            self.optimizer, partitions, sizes or {"a": 3, "b": 2}, False, noise, SCHEDULE, scale
        )


def test_noise_goes_to_its_coordinates_and_padding_stays_zero() -> None:
    wrapped = Wrapped(scale=3.0)
    with wrapped.noisy.open(5):
        wrapped.flat.grad = torch.arange(7.0)
        wrapped.optimizer.step()
    a, b = (NOISE.noise.normal(5, name, 0, size) for name, size in (("a", 3), ("b", 2)))
    gradient = torch.zeros(7)
    gradient[:3] = 3 * torch.arange(3.0) + 2.0 * a
    gradient[4:6] = 3 * torch.tensor([4.0, 5.0]) + 2.0 * b
    torch.testing.assert_close(wrapped.flat.detach(), -gradient / 4.0)


def _stepping(change: Callable[[Wrapped], Any]) -> str:
    wrapped = Wrapped()
    wrapped.flat.grad = torch.ones(7)
    try:
        with wrapped.noisy.open(0):
            change(wrapped)
            wrapped.optimizer.step()
    except ReleaseError as error:
        return str(error)
    return ""


def _set(wrapped: Wrapped, gradient: torch.Tensor | None) -> None:
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
def test_no_step_twice_of_an_unknown_tensor_or_without_every_gradient_whole_and_in_float32(
    change: Callable[[Wrapped], Any], said: str
) -> None:
    assert said in _stepping(change)


def test_no_step_outside_and_none_left_out() -> None:
    wrapped = Wrapped()
    wrapped.flat.grad = torch.ones(7)
    with pytest.raises(ReleaseError, match="no noisy step is open"):
        wrapped.optimizer.step()
    with pytest.raises(ReleaseError, match="step 0 left 1 of 1 partitions without noise"), wrapped.noisy.open(0):
        pass
    with pytest.raises(ReleaseError, match="no noisy step is open"):
        wrapped.optimizer.step()
    assert not wrapped.flat.any()


def test_a_step_number_is_used_once_even_if_the_step_failed() -> None:
    wrapped = Wrapped()
    with pytest.raises(ZeroDivisionError), wrapped.noisy.open(3):
        raise ZeroDivisionError
    for step in (3, 2, 0):
        with (
            pytest.raises(ReleaseError, match=f"step {step} was opened before: go on with 4"),
            wrapped.noisy.open(step),
        ):
            pass


@pytest.mark.parametrize("sizes", [{"a": 3, "b": 3}, {"a": 3}, {"a": 3, "b": 2, "c": 1}])
def test_a_manifest_that_does_not_fit_is_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(ReleaseError):
        Wrapped(sizes)


@pytest.mark.parametrize(("std", "batch"), [(-1.0, 4.0), (float("nan"), 4.0), (float("inf"), 4.0), (1.0, 0.0)])
def test_impossible_noise_is_refused(std: float, batch: float) -> None:
    with pytest.raises(ReleaseError):
        StepNoise(NOISE.noise, changing((1.0, 1.0, std)), batch)


def test_a_step_that_the_mechanism_does_not_have_is_refused() -> None:
    wrapped = Wrapped()
    with wrapped.noisy.open(9):
        wrapped.flat.grad = torch.ones(7)
        wrapped.optimizer.step()
    with pytest.raises(ReleaseError, match="step 10 is not one of the 10 that are charged"), wrapped.noisy.open(10):
        pass


@pytest.mark.parametrize(("zero", "offload"), [(1, False), (2, False), (3, False), (2, True), (3, True)])
def test_infinite_gradients_do_not_skip_a_step(pair: Ranks, zero: int, offload: bool) -> None:
    assert pair.run(overflowed, zero, offload) == [1.0, 1.0]


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_deepspeed_cannot_step_by_itself(pair: Ranks, zero: int) -> None:
    for answer in pair.run(told_to_step, Case("gpt2", zero)):
        assert answer.startswith("ReleaseError: the optimizer was told to step while no noisy step is open")


@pytest.mark.parametrize("different", ["key", "last step", "steps", "batch"])
def test_ranks_with_other_noise_do_not_begin(pair: Ranks, different: str) -> None:
    assert all("ranks differ in the noise" in answer for answer in pair.run(_replicated_with_other, different))
    assert pair.run(_replicated_with_other, "nothing") == ["", ""]


def _replicated_with_other(different: str) -> str:
    from rayprivacy.dpsgd import collectives

    flat, other = torch.zeros(5, requires_grad=True), collectives.rank() == 1
    key = Key(bytes([other and different == "key"]) * 32)
    sigmas = (1.0, 1.0, 1.5 if other and different == "last step" else 1.0)
    sigmas = (*sigmas, 1.0) if other and different == "steps" else sigmas
    batch = 5.0 if other and different == "batch" else 4.0
    noise = StepNoise(KeyedNoise(key, "run"), changing(sigmas), batch)
    whole = [Partition(flat, (Piece(Fragment("a", 0, 5), 0),))]
    try:
        NoisyOptimizer(torch.optim.SGD([flat], lr=0.0), whole, {"a": 5}, True, noise, SCHEDULE)
    except ReleaseError as error:
        return str(error)
    return ""


def test_zero_needs_a_group_a_stage_and_deepspeed(pair: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "resources.zero is 2 without a process group" in refused(Case("gpt2", 2))
    assert all(
        "resources.offload needs resources.zero 1, 2 or 3" in each for each in pair.run(refused, Case("gpt2", 0, True))
    )
    from rayprivacy.dpsgd.engines.zero import find_deepspeed

    monkeypatch.setitem(sys.modules, "deepspeed", None)
    with pytest.raises(ConfigError, match=r'resources\.zero needs .* pip install "rayprivacy\[deepspeed\]"'):
        find_deepspeed(torch.device("cpu"))


@pytest.mark.usefixtures("one_thread")
def test_a_dummy_batch_and_one_without_finite_losses_add_nothing() -> None:
    case = Case("gpt2", splits=())
    expected, poisoned = taken(Case("gpt2", splits=((9,),))), made(case)
    broken = Batch(torch.full((1, 8), 5), torch.full((1, 8), float("nan")), 1)
    poisoned.step(0, [dummy_batch(PAD), broken, *mine(Case("gpt2", tokens=(64,)), (9,))])
    for name, tensor in poisoned.state_dict().items():
        torch.testing.assert_close(tensor, torch.from_numpy(expected[name]), rtol=1e-5, atol=1e-3)
