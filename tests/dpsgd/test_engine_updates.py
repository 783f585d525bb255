"""Without noise an update is the exact sum of clipped gradients, whoever computes it and however users are spread."""

from typing import Any

import engine_cases
import numpy as np
import pytest
import torch
from engine_cases import PAD, SGD, Case, before, error, exact, mine, refused, taken, units
from rank_processes import Ranks

from rayprivacy.dpsgd import losses

KINDS = ["gpt2", "llama", "bert", "gpt2_lora", "llama_lora", "bert_lora"]
ENGINES = [(None, False), (0, False), (1, False), (2, False), (3, False), (1, True), (2, True), (3, True)]
NAMED = [f"{'plain' if zero is None else f'zero{zero}'}{'-offload' * offload}" for zero, offload in ENGINES]
EXHAUSTIVE = pytest.mark.exhaustive
# Two kinds for each engine, and every kind with two engines at least; other kinds and engines are exhaustive.
TWO = {(*engine, KINDS[(at + more) % 6]) for at, engine in enumerate(ENGINES) for more in (0, 3)}
SOME = ENGINES[0], ENGINES[2], ENGINES[4]
WITHOUT_USERS = ENGINES[0], ENGINES[1], ENGINES[4]
HALVES = [
    *((None, "gpt2"), (None, "llama_lora"), (3, "gpt2")),
    *(pytest.param(*each, marks=EXHAUSTIVE) for each in ((2, "gpt2"), (3, "llama_lora"))),
]
SPLITS = [(9, 0), (0, 9), (1, 0)]


def norm_of(kind: str) -> float:
    """A clipping norm that half of the users exceed."""
    return float(np.median(exact(kind, 1.0)[1]))


def wrong(kind: str, norm: float, after: dict[str, np.ndarray], users: int = 9) -> float:
    """Relative error of an update against the exact clipped sum."""
    return error(kind, after, exact(kind, norm, users)[0])


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("kind", KINDS)
def test_one_rank_in_plain_pytorch(kind: str) -> None:
    norm = norm_of(kind)
    for tokens in (10_000, 24):
        assert wrong(kind, norm, taken(Case(kind, splits=((9,),), tokens=(tokens,), norm=norm))) < 1e-5


@pytest.mark.parametrize("kinds", ["two", pytest.param("others", marks=EXHAUSTIVE)])
@pytest.mark.parametrize(
    ("zero", "offload"),
    [pytest.param(*each, marks=[] if each in SOME else EXHAUSTIVE) for each in ENGINES],
    ids=NAMED,
)
def test_two_ranks_agree_with_the_exact_sum(pair: Ranks, zero: int | None, offload: bool, kinds: str) -> None:
    for kind in (kind for kind in KINDS if ((zero, offload, kind) in TWO) == (kinds == "two")):
        norm = norm_of(kind)
        first, second = pair.run(taken, Case(kind, zero, offload, tokens=(10_000, 24), norm=norm))
        assert wrong(kind, norm, first) < 1e-5, kind
        assert all(np.array_equal(first[name], second[name]) for name in first), kind


def _taken_with_small_pieces_of_the_head(case: Case) -> dict[str, np.ndarray]:
    """With the loss of real runs, whose frozen head takes a fixed number of tokens at a time, here four."""

    def own(model: Any, batch: Any, half: bool = False) -> torch.Tensor:
        return losses.row_losses(model, batch, half)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(losses, "HEAD_ROWS", 4)
        patch.setattr(engine_cases, "losses", own)
        return taken(case)


@pytest.mark.parametrize("split", [pytest.param((8, 1), marks=EXHAUSTIVE), (0, 9)])
def test_ranks_that_share_parameters_use_a_frozen_head_equally_often(pair: Ranks, split: tuple[int, int]) -> None:
    norm = norm_of("llama_lora")
    case = Case("llama_lora", zero=3, splits=(split,), norm=norm)
    for after in pair.run(_taken_with_small_pieces_of_the_head, case):
        assert wrong("llama_lora", norm, after) < 1e-5


@pytest.mark.parametrize(
    ("zero", "offload", "split"),
    [
        pytest.param(*engine, split, marks=[] if at % 3 == number else EXHAUSTIVE)
        for at, engine in enumerate(ENGINES[:5])
        for number, split in enumerate(SPLITS)
    ],
)
def test_a_rank_may_have_no_users(pair: Ranks, zero: int | None, offload: bool, split: tuple[int, ...]) -> None:
    norm = norm_of("gpt2")
    for after in pair.run(taken, Case("gpt2", zero, offload, (split,), (24, 24), norm)):
        assert wrong("gpt2", norm, after, sum(split)) < 1e-5


@pytest.mark.parametrize(
    ("zero", "offload"),
    [pytest.param(*each, marks=[] if each in WITHOUT_USERS else EXHAUSTIVE) for each in ENGINES],
    ids=NAMED,
)
def test_without_users_and_noise_nothing_moves_and_the_next_step_is_right(
    pair: Ranks, zero: int | None, offload: bool
) -> None:
    norm = norm_of("gpt2")
    for after in pair.run(taken, Case("gpt2", zero, offload, ((0, 0), (5, 4), (0, 0)), (24, 64), norm)):
        assert wrong("gpt2", norm, after) < 1e-5


@EXHAUSTIVE
@pytest.mark.parametrize(
    ("split", "engines"),
    [((9,), ENGINES[1:]), ((4, 3, 2), ENGINES[1:])],
    ids=["one", "three"],
)
def test_other_numbers_of_ranks(split: tuple[int, ...], engines: list[tuple[int | None, bool]]) -> None:
    norm, ranks = norm_of("gpt2"), Ranks(len(split))
    try:
        for zero, offload in engines:
            case = Case("gpt2", zero, offload, (split,), (24, 64, 10_000)[: len(split)], norm, seeds=(0,) * len(split))
            every = ranks.run(taken, case)
            assert wrong("gpt2", norm, every[0]) < 1e-5
            assert all(np.array_equal(every[0][name], after[name]) for after in every for name in after)
    finally:
        ranks.close()


def test_the_cases_are_as_uneven_as_they_are_meant_to_be() -> None:
    norms = exact("gpt2", 1.0)[1]
    assert 0 < sum(norm > norm_of("gpt2") for norm in norms) < len(norms)
    few, many = (len(mine(Case("gpt2", tokens=(tokens,)), (9,))) for tokens in (10_000, 24))
    assert few < many
    assert any(batch.rows_per_unit == 2 for batch in mine(Case("gpt2", tokens=(64,)), (9,)))
    assert PAD not in {int(token) for unit in units() for document in unit for token in document.ids}


@pytest.mark.parametrize("zero", [None, pytest.param(0, marks=EXHAUSTIVE), pytest.param(2, marks=EXHAUSTIVE), 3])
def test_ranks_begin_with_the_weights_of_the_first(pair: Ranks, zero: int | None) -> None:
    for after in pair.run(taken, Case("gpt2", zero, splits=((0, 0),), seeds=(0, 1))):
        assert all(np.array_equal(after[name], start) for name, start in before("gpt2").items())


@pytest.mark.parametrize("zero", [None, pytest.param(0, marks=EXHAUSTIVE), pytest.param(1, marks=EXHAUSTIVE), 2])
def test_gradients_of_opacus_go_the_same_way(pair: Ranks, zero: int | None) -> None:
    norm = norm_of("gpt2_lora")
    case = Case("gpt2_lora", zero, tokens=(10_000, 24), norm=norm, gradients="opacus")
    assert wrong("gpt2_lora", norm, pair.run(taken, case)[0]) < 1e-5


def test_opacus_and_partitioned_parameters_do_not_go_together(pair: Ranks) -> None:
    answers = pair.run(refused, Case("gpt2_lora", 3, gradients="opacus"))
    assert all("resources.gradients is 'opacus' and resources.zero 3" in answer for answer in answers)


@pytest.mark.parametrize(("zero", "kind"), HALVES)
def test_a_model_in_bfloat16_has_weights_and_sums_in_float32(pair: Ranks, zero: int | None, kind: str) -> None:
    norm = norm_of(kind)
    after = pair.run(taken, Case(kind, zero, tokens=(10_000, 24), norm=norm, half=True))[0]
    assert wrong(kind, 0.99 * norm, after) < 0.05  # low precision clips one percent lower
    slow = SGD.model_copy(update={"learning_rate": 1e-4})  # steps that bfloat16 would round away
    after = pair.run(taken, Case(kind, zero, norm=norm, half=True, optimizer=slow))[0]
    assert all(weights.dtype == np.float32 for weights in after.values())
    start = {name: _rounded(weights) for name, weights in before(kind).items()}
    moved = np.concatenate([(after[name] != start[name]).ravel() for name in start])
    assert moved.mean() > 0.5


def _rounded(weights: np.ndarray) -> np.ndarray:
    return torch.from_numpy(weights).bfloat16().float().numpy()
