"""The processes of this test's own Ray (others may be at work on the machine), and the peak of this one's memory."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil


def actors_of(kind: str) -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has just ended
            if kind in " ".join(process.cmdline()):
                found.append(process)
    return found


def peak_rise(work: Callable[[], Any]) -> int:
    """By how many bytes this process grew at most while it worked."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    before = psutil.Process().memory_info().rss
    work()
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(peak.split()[1]) * 1024 - before


def log_text(session: Path) -> str:
    """All that lies in the logs of a session."""
    return "".join(path.read_text(errors="replace") for path in (session / "logs").rglob("*") if path.is_file())
