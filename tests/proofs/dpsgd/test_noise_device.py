"""Noise is drawn on the device of the sum. Torch's device `meta`, which holds no numbers, stands for a GPU."""

import pytest
import torch
from changing_noise import changing
from torch.utils._python_dispatch import TorchDispatchMode

from rayprivacy.core.keys import Key
from rayprivacy.dpsgd import chacha
from rayprivacy.dpsgd.engines.noisy_optimizer import NoisyOptimizer, StepNoise
from rayprivacy.dpsgd.engines.state import whole
from rayprivacy.dpsgd.noise import CorrelatedNoise, KeyedNoise
from rayprivacy.dpsgd.optimizer import Schedule
from rayprivacy.dpsgd.settings import OptimizerConfig

KEYED, META = KeyedNoise(Key.for_tests(), "run-1"), torch.device("meta")
STATE = 16  # the words of 32 bits that a stream begins with
MANY = 1 << 20


class Moved(TorchDispatchMode):
    """Notes how many numbers go from one device to another, each time; nothing else may be of two devices."""

    def __init__(self):
        super().__init__()
        self.numbers = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **kwargs or {})
        tensors = [each for each in (*args, result) if isinstance(each, torch.Tensor)]
        if len({tensor.device for tensor in tensors}) > 1:
            assert func._overloadpacket in (torch.ops.aten._to_copy, torch.ops.aten.copy_), func
            self.numbers.append(tensors[0].numel())
        return result


@pytest.mark.parametrize("strategy", [(1.0,), (1.0, 0.5, 0.25)])
def test_another_device_draws_for_itself(strategy):
    with Moved() as moved:
        for count, pieces in ((MANY, 1), (1 << 23, 2)):
            row = CorrelatedNoise(KEYED, strategy).normal(0, "weight", 0, count, META)
            assert (row.device, row.dtype, row.shape) == (META, torch.float32, (count,))
            assert moved.numbers == [STATE] * pieces
            moved.numbers.clear()


def test_the_past_of_correlated_noise_stays_where_it_was_drawn():
    noise = CorrelatedNoise(KEYED, (1.0, 0.5, 0.25))
    with Moved() as moved:
        for step in range(4):
            noise.normal(step, "weight", 0, MANY, META)
    assert moved.numbers == [STATE] * 4
    (past,) = noise._past.values()
    assert {row.device for row in past.values} == {META}


def test_little_noise_of_another_device_has_its_words_from_the_cpu():
    with Moved() as moved:
        assert KEYED.normal(0, "weight", 3, 100, META).device == META
    assert moved.numbers == [128]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("count", [1000, MANY, (1 << 22) + 1000])  # words of OpenSSL, of torch, and of both
def test_a_gpu_draws_what_a_cpu_draws(count):
    device = torch.device("cuda")
    blocks = count // 8
    here, there = (torch.empty(blocks, 8, dtype=torch.int64, device=each) for each in ("cpu", device))
    for first in (5, 2**32 - 100):
        chacha.fill(bytes(range(32)), first, here)
        chacha.fill(bytes(range(32)), first, there)
        assert torch.equal(here, there.cpu())
    ours, theirs = KEYED.normal(0, "weight", 3, count), KEYED.normal(0, "weight", 3, count, device)
    torch.testing.assert_close(ours, theirs.cpu(), rtol=2e-7, atol=1e-12)
    assert (ours != theirs.cpu()).float().mean() < 1e-4
    assert torch.equal(theirs[100:], KEYED.normal(0, "weight", 103, count - 100, device))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_sum_meets_its_noise_on_its_own_device(dtype):
    weight = torch.nn.Parameter(torch.empty(MANY, device=META))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    mechanism = StepNoise(KEYED, changing((2.0,) * 10), 4.0)
    schedule = Schedule(OptimizerConfig(kind="sgd", learning_rate=1.0, schedule="constant"), 10)
    noisy = NoisyOptimizer(optimizer, whole({"weight": weight}), {"weight": MANY}, False, mechanism, schedule)
    with Moved() as moved, noisy.open(0):
        noisy.hand_over(weight, torch.empty(MANY, dtype=dtype, device=META))
        optimizer.step()
    assert moved.numbers == [STATE]
