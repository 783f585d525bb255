"""What the suite promises of itself: a slow machine has more time, and a test that hangs or is killed is named."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from timeouts import MOST, patience

pytestmark = pytest.mark.exhaustive
SUPPORT = Path(__file__).parents[1] / "support"
SLEEPERS = f"""
import os, pathlib, pytest, signal, time

@pytest.mark.timeout(1)
def test_takes_two_seconds():
    time.sleep(2)

@pytest.mark.timeout({2 / MOST})
def test_hangs():
    time.sleep(60)

def test_is_killed():
    pathlib.Path("begun").touch()
    time.sleep(600)

def test_dies():
    os.kill(os.getpid(), signal.SIGKILL)

@pytest.mark.parametrize("number", range(8))
def test_number(number):
    pass
"""


def _begin(folder, *names, options=()):
    (folder / "test_sleepers.py").write_text(SLEEPERS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "timeouts", "-p", "running", "-p", "no:cacheprovider"]
    command += [*options, *(f"test_sleepers.py::test_{name}" for name in names)]
    env = os.environ | {"PYTHONPATH": str(SUPPORT), "RAYPRIVACY_TEST_SLOWNESS": "4"}
    return subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, text=True)


def test_a_slow_machine_has_more_time_and_what_hangs_is_named(tmp_path):
    shown, _ = _begin(tmp_path, "takes_two_seconds", "hangs").communicate()
    assert "1 failed, 1 passed" in shown
    assert "FAILED test_sleepers.py::test_hangs - Failed: Timeout (>" in shown


def test_a_session_that_is_killed_says_what_was_running(tmp_path):
    session, last = _begin(tmp_path, "is_killed"), time.monotonic() + patience(60)
    while not (tmp_path / "begun").exists() and time.monotonic() < last:
        time.sleep(0.1)
    session.send_signal(signal.SIGTERM)
    shown, _ = session.communicate(timeout=patience(60))
    assert "killed while running: test_sleepers.py::test_is_killed (for " in shown
    assert session.returncode == 128 + signal.SIGTERM


def test_a_process_of_tests_that_dies_says_how_and_ends_the_session(tmp_path):
    options = ("-n", "2", "--dist", "loadgroup", "--no-loadscope-reorder", "--max-worker-restart=0")
    shown, _ = _begin(tmp_path, "dies", "number", options=options).communicate(timeout=patience(60))
    assert re.search(r"gw\d, process \d+: exit code -9; \d+ MB of memory are left", shown)
    assert "crashed while running 'test_sleepers.py::test_dies'" in shown
