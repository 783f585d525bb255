"""Speed and memory of asking questions, as ratios of what runs side by side on this machine.

    OMP_NUM_THREADS=1 ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 \\
        python benchmarks/questions.py --data DIR --work WORK [--parts judge bm25] [--quick] --json

`DIR` is that of benchmarks/squad.py. Parts (questions_parts.py, questions_command.py), each some minutes at most:

- `asking`: questions behind phrases by an actor, against the engine's decoder in this process with the same prompts,
  without what an actor costs once, which is measured too;
- `judge`: 5,000 claims in blocks, against the bare forward of its encoder on the batches that it was seen to make;
- `bm25`: 1,190 questions on 6,124 passages, against `rank_bm25` where it is installed, index included;
- `values`: an iteration of eight selections at once, against eight iterations of one;
- `actors`: two actors against one, for each stage of blocks; on two quiet cores or not at all;
- `passages`: the command on 8,000 passages against 2,000, with clozes;
- `peaks`: memory of the command's processes by stage, with the packaged models: resident, and of their own.

`--asker` names a saved one, of benchmarks/questions_asking.py say; without it one is trained for a few steps. What was
measured lies in WORK, a file for each part, and is not measured again; `--quick` is a first try, and keeps nothing.
"""

import argparse
import json
import os
import platform
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from questions_command import growth, peaks
from questions_parts import Bench, actors, asking, bm25, judging, worth

PARTS: Mapping[str, Callable[[Bench], dict[str, Any]]] = {
    "asking": asking,
    "judge": judging,
    "bm25": bm25,
    "values": worth,
    "actors": actors,
    "passages": growth,
    "peaks": peaks,
}


def measured(name: str, bench: Bench) -> dict[str, Any]:
    """The figures of a part, with how busy the machine was; from its file if it was measured before."""
    path = bench.work / f"{name}.json"
    if bench.quick or not path.exists():
        before = os.getloadavg()[0]
        found = PARTS[name](bench) | {
            "load_before_and_after": [round(each, 1) for each in (before, os.getloadavg()[0])]
        }
        if bench.quick:
            return found
        path.write_text(json.dumps(found, allow_nan=False))
    kept: dict[str, Any] = json.loads(path.read_text())
    return kept


def shown(found: Mapping[str, Any]) -> list[str]:
    """The goals in lines of text."""
    every = [goal for part in found["parts"].values() for goal in part["goals"]]
    return [
        f"{'met' if each['met'] else 'MISSED':<7} {each['what']}: {each['figure']}, {each['goal']}" for each in every
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, help="where parts are kept; a temporary folder")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[*PARTS])
    parser.add_argument("--asker", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        work = (given.work or Path(scratch)).absolute()
        work.mkdir(parents=True, exist_ok=True)
        bench = Bench(given.data.absolute(), work, given.quick, given.asker and given.asker.absolute())
        machine = {"processor": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()}
        settings = {name: os.environ.get(name, "") for name in ("OMP_NUM_THREADS", "ATEN_CPU_CAPABILITY")}
        parts = {name: measured(name, bench) for name in given.parts}
        found = {"quick": given.quick, "machine": machine | settings, "parts": parts}
        print(json.dumps(found, indent=1, allow_nan=False) if given.json else "\n".join(shown(found)))


if __name__ == "__main__":
    main()
