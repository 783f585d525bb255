"""What the trial on public tokens before the first step costs, on the quickstart's model.

    OMP_NUM_THREADS=2 python benchmarks/trial_steps.py --json

SmolLM2-135M, texts of 32 tokens, batches of 256 tokens, as in jobs/generator/chat.yaml: LoRA in the last ten layers,
and all weights. `ours` is the trial of `dpsgd.independence`; `earlier` is what was tried before: six whole batches, in
which random rows were compared with random rows. Both are run in turn in one process. `more` is how many seconds the
trial takes longer, the median of the rounds, and the ratio that of ours over the earlier one.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from rayprivacy.dpsgd.clipping import BookKeeping, Clipping
from rayprivacy.dpsgd.independence import _batch, _PublicRows, check_independence
from rayprivacy.dpsgd.losses import row_losses
from rayprivacy.models.backbone import load_backbone
from rayprivacy.models.settings import AdapterConfig, ModelConfig
from rayprivacy.models.trainable import trainable

TOKENS, BATCH_TOKENS = 32, 256
KINDS = {"lora, ten layers": AdapterConfig(layers=10), "all weights": AdapterConfig(kind="full")}
RESULT = Path("benchmarks/results/trial_steps.json")


def _seconds(act: Callable[[], Any]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def _earlier(model: Any, clipping: Clipping) -> None:
    """Six whole batches, of two shapes."""
    gradients, draw = BookKeeping(model, clipping), _PublicRows(model)
    for length in (8, TOKENS):
        batch = _batch(draw.batch_of(length, BATCH_TOKENS), BATCH_TOKENS)
        for _ in range(3):
            gradients.squared_norms(lambda batch=batch: row_losses(model, batch), 1)


def _compared(adapter: AdapterConfig, rounds: int) -> dict[str, Any]:
    model, clipping = trainable(load_backbone(ModelConfig()), adapter), Clipping(1.0)
    pairs = [
        (
            _seconds(lambda: check_independence(model, row_losses, TOKENS, BATCH_TOKENS, clipping=clipping)),
            _seconds(lambda: _earlier(model, clipping)),
        )
        for _ in range(rounds)
    ]
    return {
        "ours_seconds": round(median(ours for ours, _ in pairs), 2),
        "earlier_seconds": round(median(theirs for _, theirs in pairs), 2),
        "more_seconds": round(median(ours - theirs for ours, theirs in pairs), 2),
        "ratio": round(median(ours / theirs for ours, theirs in pairs), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--json", action="store_true", help=f"write {RESULT}, too")
    arguments = parser.parse_args()
    figures = {
        "machine": {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "threads": torch.get_num_threads(),
        "isa": os.environ.get("ONEDNN_MAX_CPU_ISA", "native"),
        "kinds": {name: _compared(KINDS[name], arguments.rounds) for name in arguments.kinds},
    }
    text = json.dumps(figures, indent=2)
    print(text)
    if arguments.json:
        RESULT.write_text(text + "\n")


if __name__ == "__main__":
    main()
