"""What clipping the mean of micro-batches costs, beside an ordinary step, book-keeping, and a loop over examples.

    python benchmarks/edpsgd.py --json

The models of `dpsgd.py`: a GPT-2 of 6 layers (width 384), all parameters and LoRA, here at batch 128 and length 12, as
SNIPS has it. A step is whatever yields the sum of (clipped) gradients; no noise and no optimizer.

    sgd_s            one backward pass of the whole batch
    bookkeeping_s    every example clipped, by one backward pass (`rayprivacy.dpsgd.clipping`)
    edp_s            8 micro-batches of 16, the mean of each clipped (`rayprivacy.dpsgd.clipping`)
    loop_s           every example clipped, one backward pass each

All take turns in one process with one thread, so that a ratio is of one round: the median over rounds of CPU time.
"""

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from dpsgd import NORM, VOCABULARY, _small_gpt2
from torch import Tensor, nn

from rayprivacy.dpsgd.clipping import BookKeeping, Clipping, MicroBatchGradients

BATCH, LENGTH, MICRO_BATCHES = 128, 12, 8
ARMS = ("sgd", "bookkeeping", "edp", "loop")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = {adapter: figures(times(_small_gpt2(adapter), arguments.rounds)) for adapter in ("full", "lora")}
    print(json.dumps({**found["full"], "lora": found["lora"]}, indent=1) if arguments.json else table(found))


def times(model: nn.Module, rounds: int) -> dict[str, list[float]]:
    """CPU seconds of every step, arms in turns; the first round warms up."""
    steps, ids = arms(model), torch.randint(0, VOCABULARY, (BATCH, LENGTH), generator=torch.Generator().manual_seed(0))
    spent: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for turn in range(rounds + 1):
        for arm in ARMS if turn % 2 else ARMS[::-1]:
            gc.collect()
            start = time.process_time()
            steps[arm](ids)
            if turn:
                spent[arm].append(time.process_time() - start)
    return spent


def arms(model: nn.Module) -> dict[str, Callable[[Tensor], Any]]:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    keeping, means = BookKeeping(model, Clipping(NORM)), MicroBatchGradients(model, Clipping(NORM))

    def losses(ids: Tensor) -> Tensor:
        positions = torch.arange(ids.shape[1]).expand_as(ids).contiguous()
        logits = model(input_ids=ids, position_ids=positions, use_cache=False).logits[:, :-1]
        return F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none").mean(1)

    def sgd(ids: Tensor) -> None:
        torch.autograd.grad(losses(ids).mean(), parameters, allow_unused=True)

    def bookkeeping(ids: Tensor) -> None:
        taken(keeping(partial(losses, ids), 1))

    def clipped(pieces: tuple[Tensor, ...]) -> None:
        for piece in pieces:
            taken(means(lambda piece=piece: iter([losses(piece).mean()]), len(piece)))

    return {
        "sgd": sgd,
        "bookkeeping": bookkeeping,
        "edp": lambda ids: clipped(ids.chunk(MICRO_BATCHES)),
        "loop": lambda ids: clipped(ids.split(1)),
    }


def taken(lazy: Any) -> None:
    """Every clipped sum, one after the other, as an engine asks for them."""
    while lazy:
        lazy.popitem()[1]()


def figures(spent: dict[str, list[float]]) -> dict[str, float]:
    found = {f"{arm}_s": round(statistics.median(own), 3) for arm, own in spent.items()}
    for arm in ARMS[1:]:
        ratios = [mine / base for mine, base in zip(spent[arm], spent["sgd"], strict=True)]
        found[f"{arm}_per_sgd"] = round(statistics.median(ratios), 3)
    return found


def table(found: dict[str, dict[str, float]]) -> str:
    rows = [("", *found), ("---", *["---:"] * len(found))]
    rows += [(name, *(f"{each[name]:g}" for each in found.values())) for name in found["full"]]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    main()
