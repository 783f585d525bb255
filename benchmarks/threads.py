"""What `rayprivacy.core.console.share_cores` gains beside a busy process, and costs on idle cores.

    python benchmarks/threads.py --json

Steps like those of a training, forwards and backwards through a few layers, with a thread for each core. Ours is a
process with the number of spins that the package sets, theirs one with libgomp's default. Both are run in turn, on
idle cores and beside a process that wants one of them. A ratio is the wall time of ours over theirs, the median of the
rounds; the range is of all rounds.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from rayprivacy.core.console import SPINS, cores

SECONDS, ROWS, TOKENS = 3.0, 8, 64
DEFAULT = "300000"  # of libgomp, as OMP_DISPLAY_ENV=verbose shows it
RESULT = Path("benchmarks/results/threads.json")
BUSY = "while True: pass"


def milliseconds(dtype: str) -> float:
    """Wall time of a step, in this process."""
    import torch
    from kernels import FORMATS, _trunk

    torch.set_num_threads(cores())
    step, _ = _trunk(ROWS, TOKENS, FORMATS[dtype], True)
    for _ in range(3):
        step()
    began, steps = time.perf_counter(), 0
    while time.perf_counter() - began < SECONDS:
        step()
        steps += 1
    return 1000 * (time.perf_counter() - began) / steps


def _elsewhere(dtype: str, spins: str, busy: bool) -> float:
    """The same in a process of its own; the package leaves the environment's count of spins alone."""
    env = os.environ | {"GOMP_SPINCOUNT": spins}
    other = subprocess.Popen([sys.executable, "-c", BUSY]) if busy else None
    try:
        command = [sys.executable, __file__, "--step", dtype]
        return float(subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout)
    finally:
        if other:
            other.kill()
            other.wait()


def _compared(dtype: str, busy: bool, rounds: int) -> dict[str, Any]:
    pairs = [(_elsewhere(dtype, SPINS, busy), _elsewhere(dtype, DEFAULT, busy)) for _ in range(rounds)]
    ratios = [ours / theirs for ours, theirs in pairs]
    return {
        "ours_ms": round(median(ours for ours, _ in pairs), 1),
        "default_ms": round(median(theirs for _, theirs in pairs), 1),
        "ratio": round(median(ratios), 2),
        "range": [round(min(ratios), 2), round(max(ratios), 2)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help=f"write {RESULT}, too")
    parser.add_argument("--step", choices=["float32", "bfloat16"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        print(milliseconds(arguments.step))
        return
    figures = {
        f"{dtype}, {'beside a busy process' if busy else 'idle cores'}": _compared(dtype, busy, arguments.rounds)
        for dtype in ("float32", "bfloat16")
        for busy in (False, True)
    }
    figures |= {"spins": SPINS, "cores": cores(), "machine": platform.machine(), "python": platform.python_version()}
    text = json.dumps(figures, indent=1)
    print(text)
    if arguments.json:
        RESULT.write_text(text + "\n")


if __name__ == "__main__":
    main()
