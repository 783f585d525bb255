"""Real ranks for tests: processes in one gloo group, started once, that run one function after the other."""

import datetime
import importlib
import multiprocessing
import os
import signal
import tempfile
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from timeouts import patience

_IMPORTED = ("torch.distributed", "transformers.models.gpt2", "transformers.models.llama", "peft", "deepspeed")
_THREADS = Path("/proc/self/task")
PATIENCE_SECONDS = 120


class Ranks:
    """A group of processes; `run` calls a function on all of them and returns what each has returned.

    A call that fails or hangs ends the group, and the next call starts another.
    """

    def __init__(self, world: int) -> None:
        self._world = world
        self._connections: list[Connection] = []
        self._first: BaseProcess | None = None

    def _start(self) -> None:
        may_fork = _THREADS.is_dir() and len(list(_THREADS.iterdir())) == 1  # a lock of another would be held for ever
        context = multiprocessing.get_context("fork" if may_fork else "spawn")
        # They meet in a file: a free port may be taken by another test's Ray before a rank listens on it.
        self._meeting = tempfile.TemporaryDirectory(prefix="ranks-")
        place = f"file://{self._meeting.name}/ranks"
        self._connections, theirs = (
            list(ends) for ends in zip(*(context.Pipe() for _ in range(self._world)), strict=True)
        )
        inherited = self._connections if may_fork else []
        self._first = context.Process(target=_become_ranks, args=(place, theirs, inherited), daemon=True)
        self._first.start()
        for connection in theirs:
            connection.close()

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        if not self._first:
            self._start()
        for connection in self._connections:
            connection.send((function, arguments))
        answers = []
        for connection in self._connections:
            arrived = connection.poll(patience(PATIENCE_SECONDS))
            answers.append(connection.recv() if arrived else (False, f"{function.__name__} hangs"))
        failures = [answer for worked, answer in answers if not worked]
        if failures:
            self.close()
            raise RuntimeError("\n".join(failures))
        return [answer for _, answer in answers]

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        if self._first and self._first.pid:
            self._first.join(1)
            if self._first.exitcode != 0:
                with suppress(ProcessLookupError):
                    os.killpg(self._first.pid, signal.SIGKILL)
                self._first.kill()
                self._first.join()
            self._meeting.cleanup()
        self._connections, self._first = [], None


def _become_ranks(place: str, connections: Sequence[Connection], inherited: Sequence[Connection]) -> None:
    """Import what ranks need, once, and fork: this process is rank 0 and the leader of their process group."""
    os.setpgid(0, 0)
    warnings.simplefilter("ignore")
    for name in _IMPORTED:
        with suppress(ImportError):
            importlib.import_module(name)
    forked = range(1, len(connections))
    rank = next((rank for rank in forked if os.fork() == 0), 0)
    for other in (*inherited, *(connection for at, connection in enumerate(connections) if at != rank)):
        other.close()
    try:
        _serve(rank, len(connections), place, connections[rank])
    finally:
        if rank:
            os._exit(0)
    for _ in forked:
        os.wait()


def _serve(rank: int, world: int, place: str, connection: Connection) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["LOCAL_RANK"] = str(rank)
    wait = datetime.timedelta(seconds=patience(PATIENCE_SECONDS))
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=world, timeout=wait)
    while True:
        try:
            function, arguments = connection.recv()
        except EOFError:
            return
        try:
            connection.send((True, function(*arguments)))
        except Exception:  # noqa: BLE001 - the test shall see it
            connection.send((False, traceback.format_exc()))
