"""A pytest plugin that says what each test costs: seconds of CPU, of the test and of every process that it started.

    pytest -p cpu_seconds --cpu-seconds=FILE ...

appends a line of JSON for each test to FILE. Wall time would say how busy the machine was. Ray's daemons belong to no
test process for long, and are reaped by nobody who could be asked; so the table of processes is read again and again,
and whoever was started by one of ours is ours.
"""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

LOOK_SECONDS = 0.2
MARK = "CPU_SECONDS_OF"
TICKS = os.sysconf("SC_CLK_TCK")


class _Processes:
    """What this process and all that it started have used, also those that have ended since they were last seen."""

    def __init__(self) -> None:
        os.environ[MARK] = str(os.getpid())
        self._used: dict[tuple[int, str], float] = {}
        self._parents: dict[int, bool] = {os.getpid(): True}
        self._lock, self._over = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def seconds(self) -> float:
        """Seconds of CPU until now."""
        with self._lock:
            self._look()
            return sum(self._used.values())

    def stop(self) -> None:
        """End the thread that looks."""
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            with self._lock:
                self._look()

    def _look(self) -> None:
        here = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
        for process in here:
            with suppress(OSError):
                fields = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()
                if self._is_ours(process, int(fields[1])):
                    self._used[process, fields[19]] = (int(fields[11]) + int(fields[12])) / TICKS
        self._parents = {process: self._parents[process] for process in here if process in self._parents}

    def _is_ours(self, process: int, parent: int) -> bool:
        if process not in self._parents:
            marked = f"{MARK}={os.getpid()}\0".encode() in Path(f"/proc/{process}/environ").read_bytes()
            self._parents[process] = marked or self._parents.get(parent, False)
        return self._parents[process]


class _Report:
    """One line for each test."""

    def __init__(self, path: Path) -> None:
        self._path, self._processes = path, _Processes()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before = self._processes.seconds()
        found = yield
        line = {"test": item.nodeid, "cpu_s": round(self._processes.seconds() - before, 2)}
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        return found

    def pytest_sessionfinish(self) -> None:
        self._processes.stop()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-seconds", type=Path, help="a file to which each test's seconds of CPU are appended")


def pytest_configure(config: pytest.Config) -> None:
    if path := config.getoption("--cpu-seconds"):
        config.pluginmanager.register(_Report(path.absolute()))
