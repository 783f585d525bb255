"""Runs tests on copies of the package: imports what is slow once, and forks for each copy.

    python mutant_server.py        reads lines {"package": FOLDER, "arguments": [...], "log": FILE}, answers exit codes

The package itself is imported after the fork, from FOLDER, which processes that the tests start inherit.
"""

import json
import os
import sys

import dp_accounting  # noqa: F401
import hypothesis  # noqa: F401
import numpy  # noqa: F401
import opendp.prelude  # noqa: F401
import pyarrow.parquet  # noqa: F401
import pydantic  # noqa: F401
import pytest
import ray  # noqa: F401
import scipy.stats  # noqa: F401
import sqlalchemy  # noqa: F401
import torch  # noqa: F401
import transformers  # noqa: F401


def main() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            _run(**order)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


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
