"""Time limits that follow the machine: what may take five minutes on a quick one may take longer on a slow or busy one.

A limit is multiplied by how much longer a fixed piece of work takes here than on the machine the limits were made for,
in CPU time, measured once, and by how many processes want each core, which is read whenever a limit is set.
"""

import os
import time
from functools import cache
from typing import Any

import pytest
import pytest_timeout

REFERENCE_SECONDS = 0.04  # CPU time of the work on a core of the machine that the limits were made for
MOST = 20.0  # a test that hangs must end on any machine
_TOLD = "RAYPRIVACY_TEST_SLOWNESS"


def pytest_configure() -> None:
    """Measure before there are other processes of the session, which inherit the answer."""
    _speed()


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> Any:
    return pytest_timeout.pytest_timeout_set_timer(item, settings._replace(timeout=patience(settings.timeout)))


def patience(seconds: float) -> float:
    waiting = os.getloadavg()[0] / (os.cpu_count() or 1)
    return seconds * min(MOST, _speed() * max(1.0, waiting))


@cache
def _speed() -> float:
    """How many times slower than the reference a core of this machine is; 1 for one that is faster."""
    if _TOLD not in os.environ:
        os.environ[_TOLD] = str(max(1.0, min(_measured() for _ in range(2)) / REFERENCE_SECONDS))
    return float(os.environ[_TOLD])


def _measured() -> float:
    start = time.process_time()
    found: dict[int, str] = {}
    for number in range(300_000):
        found[number * number % 1009] = f"{number}"
    return time.process_time() - start
