"""Leases on the right to draw noise: a started charge belongs to one process, and a fencing token grows at a takeover.

Two processes may resume the same release. The one that starts the charge gets token 1 and a term; meanwhile others
wait. When the term is over, or when the holder is known to be dead, another takes the charge over with the next token,
and the ledger accepts no output under an older one. Clocks decide how long one waits, never whose output counts.

A holder is a process, named by what tells it from every other one that ever ran: a digest of host and boot, process id
and start time.

The charge of a search among a secret number of trials (`RepeatAndSelectDpEvent`) is drawn for as long as its trials
take, and how long that is must not be read off the ledger. So its term is a day, it is renewed once a day at most, and
all its entries carry the time at which the current day began, counted in days from its start.
"""

import os
import socket
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

from rayprivacy.core.artifacts import digest_json

TERM_SECONDS = 300
DAY_SECONDS = 86_400
_NEARLY_OVER = timedelta(hours=1)


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
        """Whether no process is known to be drawing: the term is over, or the holder has died."""
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

    @property
    def is_nearly_over(self) -> bool:
        """Whether less than an hour of the term is left."""
        return datetime.fromisoformat(self.until) - datetime.now(UTC) < _NEARLY_OVER

    @property
    def day(self) -> tuple[datetime, datetime]:
        """Begin and end of the current day, counted from the start of a charge whose terms are days."""
        day = timedelta(seconds=DAY_SECONDS)
        end = datetime.fromisoformat(self.until)
        while end <= datetime.now(UTC):
            end += day
        return end - day, end

    def granted_for_the_day(self, holder: str) -> "Lease":
        """The next lease of a charge whose terms are days: a day, or until the end of this one when it has started."""
        if not self.until:
            return self.granted(holder, DAY_SECONDS)
        return Lease(self.token + 1, holder, _written(self.day[1]))

    def renewed_for_a_day(self) -> "Lease":
        """The same lease until the end of the next day, or of this one where the term was over."""
        end = self.day[1]
        more = timedelta(seconds=DAY_SECONDS if _written(end) == self.until else 0)
        return Lease(self.token, self.holder, _written(end + more))


def this_process() -> str:
    """The name of this process as a holder."""
    return _name(os.getpid())


@lru_cache(maxsize=1)
def _name(process: int) -> str:
    return f"{_machine()}:{process}:{_started(process)}"


def _has_died(holder: str) -> bool:
    machine, _, process = holder.rpartition(":")[0].rpartition(":")
    if machine != _machine() or not process.isdigit():
        return False  # not known from here
    return f"{machine}:{process}:{_started(int(process))}" != holder


def _machine() -> str:
    """A digest of the machine, since boot: what an auditor gets must not name hosts."""
    parts = [socket.gethostname()]
    for path in (Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")):
        try:
            parts.append(os.readlink(path) if path.is_symlink() else path.read_text().strip())
        except OSError:
            parts.append("unknown")
    return digest_json(parts)[:24]


def _started(process: int) -> str:
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return "gone" if Path("/proc/self").exists() else "unknown"
    fields = text.rpartition(")")[2].split()  # the name in parentheses may hold spaces
    return "gone" if fields[0] in "ZX" else fields[19]


def _now(ahead: float = 0.0) -> str:
    return _written(datetime.now(UTC) + timedelta(seconds=ahead))


def _written(time: datetime) -> str:
    return time.isoformat(timespec="milliseconds")
