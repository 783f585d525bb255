"""A unit that joins adds its own contribution to a step, and changes no bit of anybody else's.

The coupled test of privacy.md, section 4, to the bit: D against D and one more unit, on the real path from documents to
sums, for every dtype, adapter, clipping engine and number of threads, with duplicates and with newcomers of any length.
"""

from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from contributions import Seen, Watched, of_batches
from engine_cases import PAD, SGD, Case, losses, made, tiny_model
from rank_processes import Ranks
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from rayprivacy.core.errors import ConfigError
from rayprivacy.dpsgd.batches import Batch, Document, physical_batches
from rayprivacy.dpsgd.clipping import BookKeeping, Clipping, OpacusGradients
from rayprivacy.dpsgd.engines.engine import make_engine
from rayprivacy.dpsgd.independence import check_independence
from rayprivacy.dpsgd.losses import row_losses
from rayprivacy.dpsgd.settings import DpSgdConfig, EngineConfig
from rayprivacy.models.settings import AdapterConfig
from rayprivacy.models.trainable import _with_lora

NORM, VOCABULARY = 1.0, 512
ROPE = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
Unit = list[Document]


def _unit(random: np.random.Generator, *lengths: int, most: int = VOCABULARY) -> Unit:
    return [Document(random.integers(0, most, length).astype(np.int32), min(2, length - 1)) for length in lengths]


def _company(most: int = VOCABULARY) -> list[Unit]:
    """Users who all wrote the same, and users of all lengths with one to three texts."""
    random = np.random.default_rng(5)
    same = _unit(random, 7, most=most)
    others = [_unit(random, *random.integers(4, 30, 1 + at % 3), most=most) for at in range(5)]
    return [same] * 4 + others


def _newcomers(most: int = VOCABULARY) -> list[Unit]:
    random = np.random.default_rng(6)
    lengths = [(3,), (7,), (8,), (9,), (20,), (40,), (7, 7), (3, 12, 30), (5, 5, 5, 5)]
    return [*(_unit(random, *each, most=most) for each in lengths), _company(most)[0]]


@pytest.fixture(params=[1, 2], ids=["1thread", "2threads"])
def threads(request: pytest.FixtureRequest) -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def _model(adapter: str, dtype: torch.dtype) -> nn.Module:
    """One layer in the shapes of SmolLM2-135M, whose kernels are not those of tiny matrices."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=1,
        num_attention_heads=9,
        num_key_value_heads=3,
        initializer_range=0.05,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = LlamaForCausalLM(config)
    model.config.use_cache = False
    if adapter == "full":
        return model.requires_grad_(True)
    adapted: nn.Module = _with_lora(model.to(dtype).requires_grad_(False), AdapterConfig())
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:  # zero at the start, and the gradients of A with them
            parameter.data.normal_(0, 0.05)
    return adapted


def _seen(gradients: Any, model: nn.Module, low: bool, units: list[Unit], tokens: int, decay: float) -> Seen:
    batches = physical_batches(units, tokens, PAD, decay)
    return of_batches(gradients, lambda batch: row_losses(model, batch, low), batches)


@pytest.mark.parametrize(
    ("adapter", "tokens", "newcomers", "threads", "decay"),
    [
        ("lora", 64, slice(7, 8), 2, 0.0),
        ("full", 64, slice(5, 6), 1, 0.75),
        *(
            pytest.param(adapter, tokens, slice(None), threads, decay, marks=pytest.mark.exhaustive)
            for adapter in ("lora", "full")
            for tokens, decay in ((64, 0.0), (256, 0.75))
            for threads in (1, 2)
        ),
    ],
    indirect=["threads"],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
def test_a_newcomer_changes_no_bit_of_the_others(
    threads: None, adapter: str, dtype: torch.dtype, tokens: int, newcomers: slice, decay: float
) -> None:
    model, low = _model(adapter, dtype), dtype == torch.bfloat16
    gradients, company = BookKeeping(model, Clipping(NORM, low_precision=low)), _company()
    seen = partial(_seen, gradients, model, low, tokens=tokens, decay=decay)
    before = seen(company)
    assert before.each.total() == len(company)
    # Sums of LoRA are float64; those of large layers are float32, which is an assumption of the certificate.
    rounding = (1e-13 if adapter == "lora" else 1e-6) * float(before.total.norm())
    for place, newcomer in enumerate(_newcomers()[newcomers]):
        alone = seen([newcomer])
        after = seen([*company[: 3 * place], newcomer, *company[3 * place :]])
        assert after.each == before.each + alone.each
        assert (after.total - before.total - alone.total).norm() <= rounding
        assert (after.total - before.total).norm() <= NORM + rounding


KINDS = ("gpt2", "llama", "gpt2_lora", "llama_lora")


@pytest.mark.parametrize(
    ("threads", "newcomers"),
    [
        (1, slice(1, None, 3)),
        *(pytest.param(threads, slice(None), marks=pytest.mark.exhaustive) for threads in (1, 2)),
    ],
    indirect=["threads"],
)
@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_tiny_models_with_opacus_and_checkpointing(threads: None, kind: str, half: bool, newcomers: slice) -> None:
    """Opacus has no tied weights; activation checkpointing computes activations again."""
    for way in ("opacus", "checkpointing"):
        model = _tiny(kind, half)
        if way == "opacus" and not kind.endswith("_lora"):
            continue
        if way == "checkpointing":
            model.activation_checkpointing_enable({"use_reentrant": False})
        make = OpacusGradients if way == "opacus" else BookKeeping
        gradients, own = make(model, Clipping(NORM, low_precision=half)), partial(losses, model, half=half)
        company = _company(PAD)
        before = of_batches(gradients, own, physical_batches(company, 64, PAD))
        for newcomer in _newcomers(PAD)[newcomers]:
            alone = of_batches(gradients, own, physical_batches([newcomer], 64, PAD))
            after = of_batches(gradients, own, physical_batches([newcomer, *company], 64, PAD))
            assert after.each == before.each + alone.each


def _tiny(kind: str, half: bool) -> Any:
    model = tiny_model(kind)
    return model.bfloat16() if half else model


def step_with(case: Case, units: list[list[Unit]]) -> Counter[int]:
    """Contributions that this rank saw in one real step; `units` by rank."""
    from rayprivacy.dpsgd import collectives

    engine: Any = made(case)
    engine._gradients = Watched(engine._gradients)
    engine.step(0, physical_batches(units[collectives.rank()], case.tokens[collectives.rank()], PAD))
    seen: Counter[int] = engine._gradients.seen
    return seen


@pytest.mark.parametrize("newcomers", [[7], pytest.param([2, 5], marks=pytest.mark.exhaustive)], ids=["one", "more"])
@pytest.mark.parametrize(
    ("zero", "kind", "half"),
    [
        pytest.param(zero, kind, half, id=f"{engine}-{name}", marks=[] if now else pytest.mark.exhaustive)
        for zero, engine in ((None, "plain"), (0, "zero0"), (1, "zero1"), (2, "zero2"), (3, "zero3"))
        for kind, half, name, now in (
            ("gpt2", False, "full", zero in (0, 2)),
            ("llama_lora", True, "lora-bfloat16", zero in (None, 3)),
        )
    ],
)
def test_two_ranks_of_every_engine(pair: Ranks, zero: int | None, kind: str, half: bool, newcomers: list[int]) -> None:
    company, case = _company(PAD), Case(kind, zero, tokens=(64, 64), optimizer=SGD, half=half)
    spread = [company[::2], company[1::2]]
    before = sum(pair.run(step_with, case, spread), Counter[int]())
    assert before.total() == len(company)
    for newcomer in (_newcomers(PAD)[at] for at in newcomers):
        alone = sum(pair.run(step_with, case, [[newcomer], []]), Counter())
        after = sum(pair.run(step_with, case, [[newcomer, *spread[0]], spread[1]]), Counter())
        assert alone.total() == 1
        assert after == before + alone


def _of_everybody(model: nn.Module, batch: Batch, half: bool = False) -> torch.Tensor:
    """Losses in which every unit feels the others, by a thousandth."""
    own = losses(model, batch, half)
    return own * (1 + 1e-3 * own.detach().sum())


def test_losses_that_mix_users_are_refused_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama")
    check_independence(model, losses, 16, 256)
    check_independence(model, _of_everybody, 16, 8)  # each unit is alone
    with pytest.raises(ConfigError, match="depends on the others in the batch"):
        check_independence(model, _of_everybody, 16, 256)
    with pytest.raises(ConfigError, match="depends on the others in the batch"):
        check_independence(model, _of_everybody, 64, 64)  # the longest are alone, and shorter ones are not
    monkeypatch.setattr("engine_cases.losses", _of_everybody)
    with pytest.raises(ConfigError, match="depends on the others in the batch"):
        made(Case("llama"))


def _scattered(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Losses by way of an operation that torch has no repeatable kernel for, on no device."""
    own = losses(model, batch)
    return own + torch.zeros(2).put_(torch.tensor([0]), torch.ones(1)).sum()


def test_an_operation_without_a_repeatable_kernel_is_refused() -> None:
    model = tiny_model("llama")
    check_independence(model, _scattered, 16, 64)
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(ConfigError, match="gives other bits each time on this GPU"):
            check_independence(model, _scattered, 16, 64)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("microbatches", [None, 4])
def test_a_model_that_remembers_the_longest_text_is_refused(microbatches: int | None) -> None:
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=16, rope_parameters=ROPE,
    )  # fmt: skip
    training = DpSgdConfig.parse({"microbatches": microbatches})
    with pytest.raises(ConfigError, match="rope_type 'dynamic': it remembers the longest text"):
        make_engine(LlamaForCausalLM(config), training, None, EngineConfig(), row_losses)  # type: ignore[arg-type]
