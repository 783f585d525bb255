"""Who may draw: a started charge is leased to one process, with a fencing token that grows when another takes over.

Two processes may resume the same release. The one that starts the charge gets token 1 and a term; meanwhile others
wait. When the term is over, or when the holder is known to be dead, another takes the charge over with the next token,
and the book accepts no output under an older one. Clocks decide how long one waits, never whose output counts.

A holder is a process, named by what tells it from every other one that ever ran: host, boot, process id and start time.
"""

import os
import socket
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

TERM_SECONDS = 300


@dataclass(frozen=True)
class Lease:
    """The right to draw one charge.

    Attributes:
        token: grows by one with each take-over; 0 before the start.
        holder: the process that has it.
        until: UTC time, ISO 8601, after which another may take it over.
    """

    token: int = 0
    holder: str = ""
    until: str = ""

    @property
    def is_free(self) -> bool:
        """Whether nobody is known to be drawing: the term is over, or the holder has died."""
        return self.until <= _now() or _has_died(self.holder)

    @property
    def detail(self) -> dict[str, Any]:
        """The lease as JSON values."""
        return {"token": self.token, "holder": self.holder, "until": self.until}

    def granted(self, holder: str, seconds: float) -> "Lease":
        """The next lease of the charge."""
        return Lease(self.token + 1, holder, _now(seconds))

    def renewed(self, seconds: float) -> "Lease":
        """The same lease with a new term."""
        return Lease(self.token, self.holder, _now(seconds))


def this_process() -> str:
    """The name of this process as a holder."""
    return _name(os.getpid())


@lru_cache(maxsize=1)
def _name(process: int) -> str:
    return f"{_machine()}:{process}:{_started(process)}"


def _has_died(holder: str) -> bool:
    machine, _, process = holder.rpartition(":")[0].rpartition(":")
    if machine != _machine() or not process.isdigit():
        return False  # nobody knows from here
    return f"{machine}:{process}:{_started(int(process))}" != holder


def _machine() -> str:
    parts = [socket.gethostname().replace(":", "-")]
    for path in (Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")):
        try:
            parts.append(os.readlink(path) if path.is_symlink() else path.read_text().strip())
        except OSError:
            parts.append("unknown")
    return "/".join(parts).replace(":", "-")


def _started(process: int) -> str:
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return "gone" if Path("/proc/self").exists() else "unknown"
    fields = text.rpartition(")")[2].split()  # the name in parentheses may hold spaces
    return "gone" if fields[0] in "ZX" else fields[19]


def _now(ahead: float = 0.0) -> str:
    return (datetime.now(UTC) + timedelta(seconds=ahead)).isoformat(timespec="milliseconds")
