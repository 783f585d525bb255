"""A unit that joins adds its own contribution to a step, and changes no bit of anybody else's.

The coupled test of privacy.md, section 4, to the bit: D against D and one more unit, on the real path from documents to
sums, for every dtype, adapter, clipping engine and number of threads, with duplicates and with newcomers of any length,
and on a GPU where there is one.
"""

from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from engine_cases import ENGINES, EXHAUSTIVE, PAD, Case, Watched, losses, made, of_batches, some, tiny_model
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from rayprivacy.core.errors import ConfigError
from rayprivacy.dpsgd import collectives
from rayprivacy.dpsgd.batches import Document, physical_batches, rows
from rayprivacy.dpsgd.clipping import BookKeeping, Clipping, OpacusGradients
from rayprivacy.dpsgd.engines.engine import make_engine
from rayprivacy.dpsgd.independence import check_independence
from rayprivacy.dpsgd.losses import row_losses
from rayprivacy.dpsgd.settings import LONGEST_ROW, DpSgdConfig, EngineConfig
from rayprivacy.models.packing import can_be_packed
from rayprivacy.models.settings import AdapterConfig
from rayprivacy.models.trainable import _with_lora, repeatable

NORM, VOCABULARY = 1.0, 512
ON_A_GPU = (("lora", 64), ("lora", 8192), ("full", 64))
Unit = list[Document]


def _unit(random, *lengths, most=VOCABULARY):
    return [Document(random.integers(0, most, length).astype(np.int32), min(2, length - 1)) for length in lengths]


def _company(most=VOCABULARY):
    """Users who all wrote the same, and users of all lengths with one to three texts."""
    random = np.random.default_rng(5)
    same = _unit(random, 7, most=most)
    others = [_unit(random, *random.integers(4, 30, 1 + at % 3), most=most) for at in range(5)]
    return [same] * 4 + others


def _newcomers(most=VOCABULARY):
    random = np.random.default_rng(6)
    lengths = [(3,), (7,), (8,), (9,), (20,), (40,), (7, 7), (3, 12, 30), (5, 5, 5, 5)]
    return [*(_unit(random, *each, most=most) for each in lengths), _company(most)[0]]


@pytest.fixture(params=[1, 2], ids=["1thread", "2threads"])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def _model(adapter, dtype):
    """One layer in the shapes of SmolLM2-135M, whose kernels are not those of tiny matrices."""
    torch.manual_seed(0)
    shape = {"hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9, "num_key_value_heads": 3}
    marks = {"bos_token_id": 0, "eos_token_id": 0, "tie_word_embeddings": True, "initializer_range": 0.05}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, num_hidden_layers=1, **shape, **marks))
    model.config.use_cache = False
    if adapter == "full":
        return model.requires_grad_(True)
    adapted: nn.Module = _with_lora(model.to(dtype).requires_grad_(False), AdapterConfig())
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:  # zero at the start, and the gradients of A with them
            parameter.data.normal_(0, 0.05)
    return adapted


CPU, CUDA = "cpu", "cuda"


@pytest.fixture
def device(request):
    """As a worker has it: else a newcomer moved others on an H200, in bfloat16 with all weights."""
    if request.param == CUDA and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    before = torch.are_deterministic_algorithms_enabled()
    if request.param == CUDA:
        repeatable(torch.device(CUDA))
    yield torch.device(request.param)
    torch.use_deterministic_algorithms(before)


@pytest.mark.parametrize(
    ("adapter", "dtype", "cut", "tokens", "newcomers", "threads", "decay", "device"),
    [
        # By day each two of adapter, number format and cut meet; at night all three do, with every newcomer.
        ("lora", torch.bfloat16, physical_batches, 64, slice(7, 8), 2, 0.0, CPU),
        ("lora", torch.float32, rows, 64, slice(7, 8), 2, 0.0, CPU),
        ("full", torch.bfloat16, rows, 64, slice(5, 6), 1, 0.75, CPU),
        ("full", torch.float32, physical_batches, 64, slice(5, 6), 1, 0.75, CPU),
        *(
            pytest.param(adapter, dtype, cut, tokens, slice(None), threads, decay, CPU, marks=EXHAUSTIVE)
            for adapter in ("lora", "full")
            for dtype in (torch.bfloat16, torch.float32)
            for cut in (physical_batches, rows)
            for tokens, decay in ((64, 0.0), (256, 0.75))
            for threads in (1, 2)
        ),
        *(
            (adapter, dtype, cut, tokens, slice(2, None, 4), 1, 0.0, CUDA)
            for adapter, tokens in ON_A_GPU
            for dtype in (torch.bfloat16, torch.float32)
            for cut in (physical_batches, rows)
        ),
    ],
    indirect=["threads", "device"],
    ids=lambda value: str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else None,
)
def test_a_newcomer_changes_no_bit_of_the_others(threads, device, adapter, dtype, tokens, newcomers, decay, cut):
    _look(device, adapter, dtype, tokens, newcomers, decay, cut)


@pytest.mark.parametrize("threads", [1], indirect=True)
@pytest.mark.parametrize("adapter", ["lora", pytest.param("full", marks=EXHAUSTIVE)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
def test_nor_does_one_in_the_longest_rows(threads, adapter, dtype):
    _look(torch.device(CPU), adapter, dtype, LONGEST_ROW, slice(3, 4), 0.0, rows)


def _look(device, adapter, dtype, tokens, newcomers, decay, cut):
    model, low = _model(adapter, dtype).to(device), dtype == torch.bfloat16
    assert cut is physical_batches or can_be_packed(model, 40)
    gradients, company = BookKeeping(model, Clipping(NORM, low_precision=low)), _company()
    own = partial(row_losses, model, low_precision=low)

    def seen(units):
        with device:  # what notes the contributions names none
            return of_batches(gradients, own, cut(units, tokens, PAD, decay))

    before = seen(company)
    assert before.each.total() == len(company)
    # Sums of LoRA are float64; those of large layers are float32, which is an assumption of the certificate.
    rounding = (1e-13 if adapter == "lora" else 1e-6) * float(before.total.norm())
    for place, newcomer in enumerate(_newcomers()[newcomers]):
        alone, after = seen([newcomer]), seen([*company[: 3 * place], newcomer, *company[3 * place :]])
        assert after.each == before.each + alone.each
        assert (after.total - before.total).norm() <= NORM + rounding
        assert alone.total.norm() <= NORM
        if device.type == CPU:
            assert (after.total - before.total - alone.total).norm() <= rounding


@pytest.mark.parametrize("device", [CUDA], indirect=True)
@pytest.mark.parametrize("low", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "gpt2_lora", "llama_lora"])
def test_on_a_gpu_the_check_before_the_first_step_passes_and_sums_are_those_of_the_cpu(device, kind, low):
    check_independence(tiny_model(kind).to(device), partial(row_losses, low_precision=low), 16, 8192)
    totals, batches = [], physical_batches(_company(PAD), 64, PAD)
    for where in (device, torch.device(CPU)):
        model = tiny_model(kind).to(where)
        with where:
            seen = of_batches(BookKeeping(model, Clipping(NORM)), partial(row_losses, model), batches)
        totals.append(seen.total.cpu())
    assert (totals[0] - totals[1]).norm() <= 1e-4 * totals[1].norm()


WAYS = [(kind, "checkpointing") for kind in ("gpt2", "llama", "gpt2_lora", "llama_lora")]
WAYS += [("llama_lora", "opacus"), ("gpt2_lora", "opacus"), ("gpt2", "rows"), ("llama_lora", "rows")]
DTYPES = ("float32", "bfloat16")
TINY = [(*way, DTYPES[(at + turn) % 2]) for turn in (0, 1) for at, way in enumerate(WAYS)]  # by day one dtype for each


@pytest.mark.parametrize(
    ("threads", "newcomers"),
    [(1, slice(1, None, 5)), *(pytest.param(threads, slice(None), marks=EXHAUSTIVE) for threads in (1, 2))],
    indirect=["threads"],
)
@pytest.mark.parametrize(("kind", "way", "dtype"), some(TINY, *TINY[:8]))
def test_tiny_models_with_opacus_and_checkpointing(threads, kind, way, dtype, newcomers):
    """Opacus has no tied weights; activation checkpointing computes activations again."""
    half = dtype == "bfloat16"
    model = tiny_model(kind).bfloat16() if half else tiny_model(kind)
    if way == "rows":
        assert can_be_packed(model, 40)
    if way != "opacus":
        model.activation_checkpointing_enable({"use_reentrant": False})
    make = OpacusGradients if way == "opacus" else BookKeeping
    gradients, own = make(model, Clipping(NORM, low_precision=half)), partial(losses, model, half=half)

    def seen(units):
        return of_batches(gradients, own, (rows if way == "rows" else physical_batches)(units, 64, PAD)).each

    before = seen(_company(PAD))
    for newcomer in _newcomers(PAD)[newcomers]:
        assert seen([newcomer, *_company(PAD)]) == before + seen([newcomer])


def step_with(case, units):
    """Contributions that this rank saw in one real step; `units` by rank."""
    engine: Any = made(case)
    engine._gradients = Watched(engine._gradients)
    engine.step(0, (rows if case.rows else physical_batches)(units[collectives.rank()], 64, PAD))
    seen: Counter[int] = engine._gradients.seen
    return seen


CELLS = (("gpt2", "float32", False), ("llama_lora", "bfloat16", True), ("gpt2", "bfloat16", True))
MATRIX = [(engine, *cell) for engine in ENGINES for cell in (*CELLS, ("llama_lora", "bfloat16", False))]
BY_DAY = (MATRIX[1], MATRIX[4], MATRIX[12], MATRIX[18])  # plain and zero3 in rows, zero0 and zero2 in batches


@pytest.mark.parametrize("newcomers", [[7], pytest.param([2, 5], marks=EXHAUSTIVE)], ids=["one", "more"])
@pytest.mark.parametrize(("engine", "kind", "dtype", "in_rows"), some(MATRIX, *BY_DAY))
def test_two_ranks_of_every_engine(pair, engine, kind, dtype, in_rows, newcomers):
    company, case = _company(PAD)[2:7], Case(kind, *ENGINES[engine], half=dtype == "bfloat16", rows=in_rows)
    first, second = company[::2], company[1::2]

    def seen(*units):
        return sum(pair.run(step_with, case, units), Counter[int]())

    before = seen(first, second)
    assert before.total() == len(company)
    for newcomer in (_newcomers(PAD)[at] for at in newcomers):
        alone = seen([newcomer], [])
        assert alone.total() == 1
        assert seen([newcomer, *first], second) == before + alone


def _of_everybody(model, batch, half=False):
    """Losses in which every unit feels the others, by a thousandth."""
    own = losses(model, batch, half)
    return own * (1 + 1e-3 * own.detach().sum())


def test_losses_that_mix_users_are_refused_before_the_first_step(monkeypatch):
    model = tiny_model("llama")
    check_independence(model, losses, 16, 256)
    check_independence(model, _of_everybody, 16, 8)  # each unit is alone
    for tokens, at_once in ((16, 256), (64, 64)):  # of the latter the longest are alone, and shorter ones are not
        with pytest.raises(ConfigError, match="depends on the others in the batch"):
            check_independence(model, _of_everybody, tokens, at_once)
    monkeypatch.setattr("engine_cases.losses", _of_everybody)
    with pytest.raises(ConfigError, match="depends on the others in the batch"):
        made(Case("llama"))


def _scattered(model, batch):
    """Losses by way of an operation that torch has no repeatable kernel for, on no device."""
    own = losses(model, batch)
    return own + torch.zeros(2).put_(torch.tensor([0]), torch.ones(1)).sum()


def test_an_operation_without_a_repeatable_kernel_is_refused():
    model = tiny_model("llama")
    check_independence(model, _scattered, 16, 64)
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(ConfigError, match="gives other bits each time on this GPU"):
            check_independence(model, _scattered, 16, 64)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("microbatches", [None, 4])
def test_a_model_that_remembers_the_longest_text_is_refused(microbatches):
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=VOCABULARY, **size, max_position_embeddings=16, rope_parameters=rope)
    training = DpSgdConfig.parse({"microbatches": microbatches})
    with pytest.raises(ConfigError, match="rope_type 'dynamic': it remembers the longest text"):
        make_engine(LlamaForCausalLM(config), training, None, EngineConfig(), row_losses)  # type: ignore[arg-type]
