"""Throw nonsense at the ledger, its codec and its commands, and say what was neither answered nor refused.

    python benchmarks/fuzz_ledger.py --seconds 600 --seed 7 --json
    python benchmarks/fuzz_ledger.py --cases 100

A failure is an error without a sentence, an input that is accepted and makes no sense, or a figure that cannot be one.
Its `case` is the number of the case under this seed. A case that takes longer than `--patience` seconds is stopped and
listed under `slow`.
"""

import argparse
import contextlib
import json
import random
import signal
import tempfile
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

from fuzz_cases import Fuzz

from rayprivacy.core.errors import RayPrivacyError


class Slow(BaseException):
    """The case takes too long."""


def fuzz(seconds: float, most: float, seed: int, patience: float, folder: Path) -> dict[str, Any]:
    """Run cases until the time is over, or so many were run."""
    chance = random.Random(seed)
    cases, begun = Fuzz(folder, chance), time.monotonic()
    counts = {"accepted": 0, "refused": 0}
    failures: list[dict[str, Any]] = []
    slow: list[dict[str, Any]] = []
    signal.signal(signal.SIGALRM, _stop)
    number = 0
    while number < most and time.monotonic() - begun < seconds:
        number += 1
        case = chance.choice(cases.cases)
        where = {"case": number, "kind": case.__name__}
        signal.setitimer(signal.ITIMER_REAL, patience)
        try:
            counts["accepted" if case() else "refused"] += 1
        except RayPrivacyError:
            counts["refused"] += 1
        except Slow:
            slow.append(where)
        except Exception as error:  # noqa: BLE001  # this is what is looked for
            failures.append(where | {"error": repr(error)[:500], "at": _place(error)})
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    spent = round(time.monotonic() - begun, 1)
    return {"seconds": spent, "seed": seed, "cases": number, **counts, "slow": slow, "failures": failures}


def _stop(_signal: int, _frame: FrameType | None) -> None:
    raise Slow


def _place(error: Exception) -> list[str]:
    frames = traceback.extract_tb(error.__traceback__)
    return [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames[-4:]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, help="60, if no number of cases is given")
    parser.add_argument("--cases", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--patience", type=float, default=20.0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    endless = float("inf")
    seconds = arguments.seconds or (endless if arguments.cases else 60.0)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):  # commands write where they are told to
        found = fuzz(seconds, arguments.cases or endless, arguments.seed, arguments.patience, Path(folder))
    if arguments.json:
        print(json.dumps(found))
        return
    print(f"{found['cases']} cases in {found['seconds']} s: {found['accepted']} accepted, {found['refused']} refused")
    for failure in found["slow"] + found["failures"]:
        print(failure)


if __name__ == "__main__":
    main()
