"""The update of a tagger by an engine, without noise, against a plain loop over rows; on one rank and on two."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rank_processes import Ranks
from tagger_cases import GROUPS, RATE, Case, before, by_hand, taken

from rayprivacy.core.errors import ConfigError

FEW = pytest.mark.usefixtures("one_thread")


def _wrong(case: Case, after: dict[str, np.ndarray]) -> float:
    start, truth = before(case), by_hand(case)
    wrong = [(start[name].astype(float) - after[name]) * len(GROUPS) / RATE - truth[name] for name in truth]
    return float(np.sqrt(sum((e**2).sum() for e in wrong) / sum((t**2).sum() for t in truth.values())))


def _clipping(case: Case) -> Case:
    """The case with a clipping norm that some gradients exceed."""
    whole = by_hand(replace(case, norm=1e9))
    return replace(case, norm=float(np.sqrt(sum((each**2).sum() for each in whole.values()))) / len(GROUPS))


@FEW
@pytest.mark.parametrize("micro", [True, False], ids=["micro-batches", "users"])
@pytest.mark.parametrize("kind", ["bert", "bert-crf", "llama-lora-crf"])
def test_an_update_is_that_of_a_plain_loop(tiny_bert: Path, tiny_base: Path, kind: str, micro: bool) -> None:
    base, lora = (tiny_base, True) if kind.startswith("llama") else (tiny_bert, False)
    case = _clipping(Case(str(base), lora, crf=kind.endswith("crf"), micro=micro))
    assert _wrong(case, taken(case)) < 1e-6


@FEW
def test_an_update_of_the_lstm_is_that_of_a_plain_loop() -> None:
    case = _clipping(Case("bilstm"))
    assert _wrong(case, taken(case)) < 1e-6
    with pytest.raises(ConfigError, match="modules of kind Conv1d, LSTM own trainable parameters and have no rule"):
        taken(replace(case, micro=False))


@FEW
@pytest.mark.exhaustive
def test_an_update_of_the_real_encoder_is_that_of_a_plain_loop() -> None:
    """Four layers of float32 round by about as much as one part in a million."""
    case = _clipping(Case("minilm-l6", layers=4))
    assert _wrong(case, taken(case)) < 2e-6


@pytest.mark.parametrize(
    "zero", [pytest.param(None, marks=pytest.mark.exhaustive), 2, pytest.param(3, marks=pytest.mark.exhaustive)]
)
def test_two_ranks_agree_with_one(pair: Ranks, tiny_bert: Path, tiny_base: Path, zero: int | None) -> None:
    cases = [Case(str(tiny_bert), split=(1, 2)), Case(str(tiny_base), lora=True, split=(3, 0))]
    if zero != 3:
        cases.append(Case("bilstm", split=(2, 1)))
    for case in cases:
        case = _clipping(replace(case, zero=zero, micro=zero != 3))
        first, second = pair.run(taken, case)
        assert _wrong(case, first) < 1e-6
        assert all(np.array_equal(first[name], second[name]) for name in first)
