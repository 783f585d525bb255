"""Tests that name themselves: those that were running when the session was told to end, and those that took long.

A process of tests that dies says by what, and with how much memory left: what a crash leaves behind is gone with it.
"""

import signal
import subprocess
import time
from types import FrameType
from typing import Any

import psutil
import pytest

LONG_SECONDS = 60.0  # make test is meant to have no such test
ENDING_SECONDS = 10.0  # a process that only closed its connection would be waited for without an end

_begun: dict[str, float] = {}
_long: dict[str, float] = {}


def pytest_sessionstart(session: pytest.Session) -> None:
    """Be told of the end, in the process that sees all tests."""
    if not hasattr(session.config, "workerinput"):
        signal.signal(signal.SIGTERM, _end)


def _end(_signal: int, _frame: FrameType | None) -> None:
    running = [f"{name} (for {time.monotonic() - begun:.0f} s)" for name, begun in _begun.items()]
    pytest.exit(f"killed while running: {', '.join(running) or 'no test'}", 128 + signal.SIGTERM)


def pytest_runtest_logstart(nodeid: str) -> None:
    _begun[nodeid] = time.monotonic()  # in this process or in one of xdist's


def pytest_runtest_logfinish(nodeid: str) -> None:
    took = time.monotonic() - _begun.pop(nodeid, time.monotonic())
    if took > LONG_SECONDS:
        _long[nodeid] = took


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """One of xdist's processes is gone, in order or not."""
    if error:
        popen = node.gateway._io.popen
        try:
            how = f"exit code {popen.wait(ENDING_SECONDS)}"
        except subprocess.TimeoutExpired:
            how = "closed its connection and runs on"
        left = psutil.virtual_memory().available >> 20
        reporter = node.config.pluginmanager.getplugin("terminalreporter")
        reporter.write_line(f"\n{node.gateway.id}, process {popen.pid}: {how}; {left} MB of memory are left")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _long:
        terminalreporter.section(f"longer than {LONG_SECONDS:.0f} s")
    for name, took in sorted(_long.items(), key=lambda each: -each[1]):
        terminalreporter.line(f"{took:6.0f} s  {name}")
