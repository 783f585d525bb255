"""Without noise an update is the exact sum of clipped gradients, whoever computes it and however users are spread."""

from dataclasses import replace
from typing import Any

import engine_cases
import numpy as np
import pytest
import torch
from engine_cases import (
    ENGINES,
    EXHAUSTIVE,
    KINDS,
    OFFLOADED,
    PAD,
    SGD,
    Case,
    before,
    biting,
    engines,
    equal,
    mine,
    scales,
    some,
    taken,
    units,
    wrong,
)
from rank_processes import Ranks

from rayprivacy.dpsgd import losses

EVERY = ENGINES | OFFLOADED
UNEVEN = {"tokens": (128, 24)}  # of the physical batches of two ranks
FEW: dict[str, dict[str, Any]] = {  # what may differ between two ranks, apart from the model
    "both": UNEVEN,
    "first": {"splits": ((9, 0),), "tokens": (24, 24)},
    "second": {"splits": ((0, 9),), "tokens": (24, 24)},
    "one-user": {"splits": ((1, 0),), "tokens": (24, 24)},
    "empty-steps": {"splits": ((0, 0), (5, 4), (0, 0)), "tokens": (24, 64)},  # the steps before and behind move nothing
    "opacus": UNEVEN | {"gradients": "opacus"},
    "bfloat16": UNEVEN | {"half": True},
    "rows": {"rows": True},
    "rows-first": {"splits": ((9, 0),), "rows": True},
    "rows-bfloat16": {"half": True, "rows": True},
    "micro": {"splits": ((2, 2),), "tokens": (128, 16), "micro": True},
    "micro-uneven": {"splits": ((1, 3),), "tokens": (128, 16), "micro": True},
    "micro-first": {"splits": ((4, 0),), "tokens": (128, 16), "micro": True},
}
SPREAD = ("first", "second", "one-user", "empty-steps")
IN_ROWS = ("gpt2", "llama", "gpt2_lora", "llama_lora")
MATRIX = [
    *((engine, kind, "both") for engine in EVERY for kind in KINDS),
    *((engine, "gpt2", way) for engine in ENGINES for way in SPREAD),
    *((engine, "gpt2", "empty-steps") for engine in OFFLOADED),
    *((engine, "gpt2_lora", "opacus") for engine in ENGINES if engine != "zero3"),
    *((engine, kind, "bfloat16") for engine in ("plain", "zero2", "zero3") for kind in ("gpt2", "llama_lora")),
    *((engine, "gpt2", way) for engine in ENGINES if engine != "zero3" for way in ("micro", "micro-first")),
    *((engine, "llama_lora", "micro-uneven") for engine in ENGINES if engine != "zero3"),
    *((engine, kind, way) for engine in EVERY for kind in IN_ROWS for way in ("rows", "rows-first", "rows-bfloat16")),
]
BY_DAY = [
    *(("plain", "gpt2_lora", "both"), ("zero1", "bert", "both"), ("zero3", "llama", "both")),
    *(("zero3", "llama_lora", "both"), ("plain", "gpt2", "first"), ("zero0", "gpt2", "second")),
    *(("zero1", "gpt2", "one-user"), ("zero2", "gpt2", "first"), ("zero3", "gpt2", "empty-steps")),
    ("plain", "gpt2", "empty-steps"),
    *(("plain", "gpt2_lora", "opacus"), ("zero2", "gpt2_lora", "opacus")),
    *(("plain", "llama_lora", "bfloat16"), ("zero3", "gpt2", "bfloat16")),
    *(("plain", "gpt2", "rows"), ("zero2", "llama_lora", "rows-first"), ("zero3", "llama", "rows")),
    ("zero1", "gpt2_lora", "rows-bfloat16"),
    *(("plain", "llama_lora", "micro-uneven"), ("zero1", "gpt2", "micro"), ("zero2", "gpt2", "micro-first")),
]
ALONE = [*((kind, False) for kind in KINDS), *((kind, True) for kind in ("gpt2", "llama_lora", "bert"))]


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("kind", "micro"), ALONE)
def test_one_rank_in_plain_pytorch(kind, micro):
    for tokens in (128, 16 if micro else 24):
        case = biting(Case(kind, splits=((4 if micro else 9,),), tokens=(tokens,), micro=micro))
        assert wrong(case, taken(case)) < 1e-5


@pytest.mark.usefixtures("one_thread")
def test_one_rank_with_a_scale_for_each_layer():
    case = biting(Case("gpt2", splits=((9,),), scales=scales()))
    assert wrong(case, taken(case)) < 1e-5
    assert wrong(replace(case, scales=()), taken(case)) > 1e-2


@pytest.mark.parametrize(("engine", "kind", "way"), some(MATRIX, *BY_DAY))
def test_two_ranks_agree_with_the_exact_sum(pair, engine, kind, way):
    case = biting(Case(kind, *EVERY[engine], **FEW[way]))
    first, second = pair.run(taken, case)
    assert wrong(case, first) < (0.05 if case.half else 1e-5)
    assert equal(first, second)


@EXHAUSTIVE
@pytest.mark.parametrize("split", [(9,), (4, 3, 2)], ids=["one", "three"])
def test_other_numbers_of_ranks(split):
    ranks, count = Ranks(len(split)), len(split)
    try:
        for engine in list(EVERY.values())[1:]:
            case = biting(Case("gpt2", *engine, (split,), (24, 64, 128)[:count], seeds=(0,) * count))
            every = ranks.run(taken, case)
            assert wrong(case, every[0]) < 1e-5
            assert all(equal(every[0], after) for after in every)
    finally:
        ranks.close()


def _taken_with_small_pieces_of_the_head(case):
    """With the loss of real runs, whose frozen head takes a fixed number of tokens at a time, here four."""

    def own(model, batch, half=False):
        return losses.row_losses(model, batch, half)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(losses, "HEAD_ROWS", 4)
        patch.setattr(engine_cases, "losses", own)
        return taken(case)


@pytest.mark.parametrize("first", some([8, 0], 0))
def test_ranks_that_share_parameters_use_a_frozen_head_equally_often(pair, first):
    case = biting(Case("llama_lora", zero=3, splits=((first, 9 - first),)))
    for after in pair.run(_taken_with_small_pieces_of_the_head, case):
        assert wrong(case, after) < 1e-5


def test_the_cases_are_as_uneven_as_they_are_meant_to_be():
    case = biting(Case("gpt2"))
    assert wrong(replace(case, norm=1.2 * case.norm), taken(case)) > 1e-2
    few, many = (len(mine(Case("gpt2", tokens=(tokens,)), (9,))) for tokens in (128, 24))
    assert few < many
    assert any(batch.rows_per_unit == 2 for batch in mine(Case("gpt2", tokens=(64,)), (9,)))
    assert PAD not in {int(token) for unit in units() for document in unit for token in document.ids}


@engines("plain", "zero3")
def test_ranks_begin_with_the_weights_of_the_first(pair, zero, offload):
    for after in pair.run(taken, Case("gpt2", zero, splits=((0, 0),), seeds=(0, 1))):
        assert equal(after, before("gpt2"))


@pytest.mark.parametrize("zero", some((None, 3, 2), None, 3))
def test_a_model_in_bfloat16_has_weights_in_float32(pair, zero):
    slow = SGD.model_copy(update={"learning_rate": 1e-4})  # steps that bfloat16 would round away
    after = pair.run(taken, Case("gpt2", zero, norm=0.5, half=True, optimizer=slow))[0]
    assert all(weights.dtype == np.float32 for weights in after.values())
    start = {name: torch.from_numpy(each).bfloat16().float().numpy() for name, each in before("gpt2").items()}
    assert np.concatenate([(after[name] != start[name]).ravel() for name in start]).mean() > 0.5
