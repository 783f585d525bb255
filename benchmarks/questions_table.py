"""Tables of question answering, after chapters 4 to 7 of Yue's thesis (2023), on data that is to be had.

    python benchmarks/questions_table.py --system qve --data DIR --work WORK --seeds 0 1 2 3 4 --json

`DIR` is that of benchmarks/squad.py. Each system has a module of its own, which says what its rows are; what the rows
show of the orderings of the thesis is under `claims` (questions_claims.py).
"""

import argparse
import json
from importlib import import_module
from pathlib import Path

SYSTEMS = {
    "cmore": "questions_cmore",
    "attribution": "questions_attribution",
    "cliniqg": "questions_asking",
    "qve": "questions_qve",
}


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--system", choices=SYSTEMS, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--json", action="store_true")
    arguments, others = parser.parse_known_args(words)
    system = import_module(SYSTEMS[arguments.system])
    found = system.table(arguments.data, arguments.seeds, others)
    print(json.dumps(found, indent=1, allow_nan=False) if arguments.json else "\n".join(system.shown(found)))


if __name__ == "__main__":
    main()
