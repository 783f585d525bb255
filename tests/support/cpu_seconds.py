"""A pytest plugin that says what each test costs: `pytest -p cpu_seconds --cpu-seconds=FILE` appends lines of JSON.

They are seconds of CPU, of the test and of every process that it started: wall time would say how busy the machine was.
Ray's daemons belong to no test process for long, and are reaped by nobody who could be asked; so the table of processes
is read again and again, and whoever was started by one of ours is ours.
"""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from rayprivacy.core.console import repeating

LOOK_SECONDS = 0.2
MARK = "CPU_SECONDS_OF"


class _Report:
    """What this process and all that it started have used, also those that have ended since they were last seen."""

    def __init__(self, path: Path) -> None:
        os.environ[MARK] = str(os.getpid())
        self._path, self._lock = path, threading.Lock()
        self._used: dict[psutil.Process, float] = {}
        self._ours: dict[psutil.Process, bool] = {psutil.Process(): True}

    def _seconds(self) -> float:
        with self._lock:
            for process in psutil.process_iter():
                with suppress(psutil.Error):
                    if process not in self._ours:
                        parent = process.parent()
                        marked = process.environ().get(MARK) == str(os.getpid())
                        self._ours[process] = marked or (parent is not None and self._ours.get(parent, False))
                    if self._ours[process]:
                        self._used[process] = sum(process.cpu_times()[:2])
            return sum(self._used.values())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before = self._seconds()
        with repeating(LOOK_SECONDS, self._seconds):
            found = yield
        line = {"test": item.nodeid, "cpu_s": round(self._seconds() - before, 2)}
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        return found


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-seconds", type=Path, help="a file to which each test's seconds of CPU are appended")


def pytest_configure(config: pytest.Config) -> None:
    if path := config.getoption("--cpu-seconds"):
        config.pluginmanager.register(_Report(path.absolute()))
