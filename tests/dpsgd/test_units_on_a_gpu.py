"""On a GPU, too, a unit that joins adds its own contribution to a step, and changes no bit of anybody else's.

These need CUDA, and are left out without it.
"""

from collections.abc import Iterator
from functools import partial

import pytest
import torch
from contributions import of_batches
from engine_cases import PAD, tiny_model
from test_units_are_independent import NORM, _company, _model, _newcomers

from rayprivacy.dpsgd.batches import physical_batches
from rayprivacy.dpsgd.clipping import BookKeeping, Clipping
from rayprivacy.dpsgd.independence import check_independence
from rayprivacy.dpsgd.losses import row_losses
from rayprivacy.models.trainable import repeatable

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(scope="module", autouse=True)
def as_a_worker() -> Iterator[None]:
    """Without it the test of a newcomer failed on an H200, in bfloat16 with all weights."""
    before = torch.are_deterministic_algorithms_enabled()
    repeatable(torch.device("cuda"))
    yield
    torch.use_deterministic_algorithms(before)


@pytest.mark.parametrize(("adapter", "tokens"), [("lora", 64), ("lora", 8192), ("full", 64)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
def test_a_newcomer_changes_no_bit_of_the_others(adapter: str, dtype: torch.dtype, tokens: int) -> None:
    model, low = _model(adapter, dtype).cuda(), dtype == torch.bfloat16
    gradients, company = BookKeeping(model, Clipping(NORM, low_precision=low)), _company()
    losses = partial(row_losses, model, low_precision=low)

    def seen(units: list) -> object:
        with torch.device("cuda"):  # what notes the contributions names no device
            return of_batches(gradients, losses, physical_batches(units, tokens, PAD))

    before = seen(company)
    assert before.each.total() == len(company)
    rounding = (1e-13 if adapter == "lora" else 1e-6) * float(before.total.norm())
    for place, newcomer in enumerate(_newcomers()[2::4]):
        alone = seen([newcomer])
        after = seen([*company[: 3 * place], newcomer, *company[3 * place :]])
        assert after.each == before.each + alone.each
        assert (after.total - before.total).norm() <= NORM + rounding
        assert alone.total.norm() <= NORM


@pytest.mark.parametrize("low", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "llama_lora"])
def test_the_check_before_the_first_step_passes(kind: str, low: bool) -> None:
    model = tiny_model(kind).cuda()
    check_independence(model, partial(row_losses, low_precision=low), 16, 8192)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gpt2_lora", "llama_lora"])
def test_a_clipped_sum_is_that_of_the_cpu(kind: str) -> None:
    batches = physical_batches(_company(PAD), 64, PAD)
    totals = []
    for device in ("cuda", "cpu"):
        model = tiny_model(kind).to(device)
        keeping = BookKeeping(model, Clipping(NORM))
        with torch.device(device):
            totals.append(of_batches(keeping, partial(row_losses, model), batches).total.cpu())
    assert (totals[0] - totals[1]).norm() <= 1e-4 * totals[1].norm()
