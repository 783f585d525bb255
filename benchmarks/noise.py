"""What the noise of a step of DP-SGD costs: nanoseconds a coordinate, of this checkout and of an older one, in turns.

    git worktree add ../older 1c6c837
    python benchmarks/noise.py --older ../older --json

Every turn is a process of its own, of one checkout, number of threads, and set of instructions. It draws what the
optimizer asks for at a time of a large parameter, and of one of LoRA, and gives the quickest of its draws: by the wall,
and in processor time of all threads. A ratio is this checkout's over the older one's, the median of paired rounds.
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

RESULT = Path(__file__).parent / "results" / "noise.json"
SIZES = {"large": 1 << 22, "lora": 9216}
INSTRUCTIONS = {"native": {}, "avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}}
THREADS = (1, 2)
Cost = dict[str, dict[str, float]]


def drawn(threads: int, seconds: float) -> Cost:
    """Nanoseconds a coordinate, by size, of the package that this process imports."""
    import torch

    from rayprivacy.core.keys import Key
    from rayprivacy.dpsgd.noise import KeyedNoise

    torch.set_num_threads(threads)
    noise, found = KeyedNoise(Key.for_tests(), "cost"), {}
    for size, count in SIZES.items():
        wall, used, until, step = [], [], time.perf_counter() + seconds, 0
        while step < 2 or time.perf_counter() < until:
            began, busy = time.perf_counter_ns(), time.process_time_ns()
            noise.normal(step, "weight", 0, count)
            wall.append((time.perf_counter_ns() - began) / count)
            used.append((time.process_time_ns() - busy) / count)
            step += 1
        found[size] = {"wall": min(wall), "cpu": min(used)}
    return found


def _turn(checkout: Path, threads: int, instructions: str, seconds: float) -> Cost:
    own = {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": str(threads), **INSTRUCTIONS[instructions]}
    command = [sys.executable, __file__, "--turn", str(threads), "--seconds", str(seconds)]
    said = subprocess.run(command, env=os.environ | own, capture_output=True, text=True, check=True).stdout
    cost: Cost = json.loads(said)
    return cost


def compared(older: Path, threads: int, instructions: str, rounds: int, seconds: float) -> dict[str, Any]:
    """Medians of both checkouts, and of their ratios, by size and clock."""
    here = Path(__file__).parents[1]
    turns = [[_turn(each, threads, instructions, seconds) for each in (here, older)] for _ in range(rounds)]
    found: dict[str, Any] = {}
    for size in SIZES:
        for clock in ("wall", "cpu"):
            pairs = [(ours[size][clock], theirs[size][clock]) for ours, theirs in turns]
            ratios = [ours / theirs for ours, theirs in pairs]
            found[f"{size}, {clock}"] = {
                "ours_ns": round(median(ours for ours, _ in pairs), 1),
                "older_ns": round(median(theirs for _, theirs in pairs), 1),
                "ratio": round(median(ratios), 2),
                "range": [round(min(ratios), 2), round(max(ratios), 2)],
            }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--older", type=Path, help="a checkout of an earlier commit")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each size in each turn")
    parser.add_argument("--json", action="store_true", help=f"write {RESULT.name}, too")
    parser.add_argument("--turn", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.turn:
        print(json.dumps(drawn(arguments.turn, arguments.seconds)))
        return
    if arguments.older is None:
        parser.error("--older is missing: name a checkout of the commit to compare with.")
    figures: dict[str, Any] = {
        f"{instructions}, {threads} threads": compared(
            arguments.older.resolve(), threads, instructions, arguments.rounds, arguments.seconds
        )
        for instructions in INSTRUCTIONS
        for threads in THREADS
    }
    text = json.dumps(figures | {"machine": platform.machine(), "python": platform.python_version()}, indent=1)
    print(text)
    if arguments.json:
        RESULT.write_text(text + "\n")


if __name__ == "__main__":
    main()
