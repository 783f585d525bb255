"""A cluster of one node that asks for a token, as an operator would start it."""

import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from ray.job_submission import JobSubmissionClient
from zygote import Forked, fork

from rayprivacy.cluster.submit import connect

TOKEN = "0123456789abcdef" * 4
METRICS = {"RAY_metrics_report_interval_ms": "1000"}  # not ten seconds, in which a small run comes and goes


@dataclass(frozen=True)
class Head:
    folder: Path  # in which Ray keeps its session
    address: str  # URL of the dashboard, where jobs are submitted
    gcs: str  # where drivers join
    token: Path  # file with the token that it asks for

    def client(self) -> JobSubmissionClient:
        return connect(self.address, self.token)


def wait_for(what: Callable[[], Any], seconds: float = 240) -> Any:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with suppress(Exception):
            if found := what():
                return found
        time.sleep(0.3)
    raise AssertionError("it did not happen in time")


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(each.getsockname()[1]) for each in sockets]


def start(folder: Path, token: Path) -> tuple[Forked, str, int]:
    """`ray start --head` as an operator would, with a dashboard and token authentication."""
    names = ("port", "dashboard-port", "dashboard-agent-listen-port", "ray-client-server-port")
    ports = dict(zip(names, free_ports(4), strict=True))
    options = [f"--{name}={port}" for name, port in ports.items()]
    options += [f"--temp-dir={folder}", "--disable-usage-stats", "--node-ip-address=127.0.0.1"]
    command = ["ray", "start", "--head", "--block", "--num-cpus=4", *options]
    bins = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # where the job finds `python`
    server = {"PATH": bins, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "OMP_NUM_THREADS": "1"}
    with (folder / "log").open("a") as log:
        code = "from ray.scripts.scripts import main\nmain()\n"
        process = fork(command, code, os.environ | server | METRICS, folder, [log.fileno(), log.fileno()])
    return process, f"http://127.0.0.1:{ports['dashboard-port']}", ports["port"]


@contextmanager
def head_node() -> Iterator[Head]:
    """A cluster of one node; Ray gives a node half a minute to come up, which a busy machine may take twice."""
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as name:
        folder, token = Path(name), Path(name) / "token"
        token.touch(0o600)
        token.write_text(TOKEN + "\n")
        for _ in range(3):
            process, address, gcs = start(folder, token)
            found = Head(folder, address, f"127.0.0.1:{gcs}", token)
            wait_for(lambda: process.poll() is not None or found.client().list_jobs() == [])  # noqa: B023
            if process.poll() is None:
                break
        try:
            assert process.poll() is None, (folder / "log").read_text()[-2000:]
            yield found
        finally:
            _end(process)


def _end(process: Forked) -> None:
    """At once: Ray takes half a minute to end in good order, and nobody wants what it would leave."""
    with suppress(psutil.NoSuchProcess):
        head = psutil.Process(process.pid)
        for each in (head, *head.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                each.kill()
    process.wait(timeout=60)
