"""Runs tests on copies of the package: imports what is slow once, and forks for each copy.

    python mutant_server.py        reads lines {"package": FOLDER, "arguments": [...], "log": FILE}, answers exit codes

The package itself is imported after the fork, from FOLDER, which processes that the tests start inherit. It is imported
once before as well, and forgotten, for the sake of all that it imports from elsewhere.
"""

import gc
import importlib
import json
import os
import sys

import pytest

ELSEWHERE = ("deepspeed", "hypothesis", "opendp.prelude", "pyarrow.parquet", "ray", "scipy.stats", "transformers")
PACKAGE = (
    "dpsgd.engines.zero",
    "ledger.store",
    "models.trainable",
    "release.gate",
    "teachers.group",
    "tuning.selection",
)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries say when they are imported is no answer
    _warm_up()
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            _run(**order)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)


def _warm_up() -> None:
    for name in (*ELSEWHERE, *(f"rayprivacy.{each}" for each in PACKAGE)):
        importlib.import_module(name)
    for name in [name for name in sys.modules if name.partition(".")[0] == "rayprivacy"]:
        del sys.modules[name]
    gc.collect()
    gc.freeze()  # pytest collects garbage when it ends, and would walk through all of this


def _run(package: str, arguments: list[str], log: str) -> None:
    code = 70
    try:
        sys.path.insert(0, package)
        os.environ["PYTHONPATH"] = package
        os.chdir(package)  # Ray's workers look in the folder of their driver first
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        code = int(pytest.main(arguments))
    finally:
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
