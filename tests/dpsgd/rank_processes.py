"""Real ranks for tests: processes in one gloo group, started once, that run one function after the other."""

import datetime
import multiprocessing
import os
import tempfile
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

PATIENCE_SECONDS = 120


class Ranks:
    """A group of processes; `run` calls a function on all of them and returns what each has returned.

    A call that fails or hangs ends the group, and the next call starts another.
    """

    def __init__(self, world: int) -> None:
        self._world = world
        self._connections: list[Connection] = []
        self._processes: list[SpawnProcess] = []

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        # They meet in a file: a free port may be taken by another test's Ray before a rank listens on it.
        self._meeting = tempfile.TemporaryDirectory(prefix="ranks-")
        place = f"file://{self._meeting.name}/ranks"
        for rank in range(self._world):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(rank, self._world, place, there), daemon=True)
            process.start()
            there.close()
            self._connections.append(here)
            self._processes.append(process)

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        if not self._processes:
            self._start()
        for connection in self._connections:
            connection.send((function, arguments))
        answers = []
        for connection in self._connections:
            arrived = connection.poll(PATIENCE_SECONDS)
            answers.append(connection.recv() if arrived else (False, f"{function.__name__} hangs"))
        failures = [answer for worked, answer in answers if not worked]
        if failures:
            self.close()
            raise RuntimeError("\n".join(failures))
        return [answer for _, answer in answers]

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.join(1)
            if process.is_alive():
                process.kill()
                process.join()
        if self._processes:
            self._meeting.cleanup()
        self._connections, self._processes = [], []


def _serve(rank: int, world: int, place: str, connection: Connection) -> None:
    import torch
    import torch.distributed as dist

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ["LOCAL_RANK"] = str(rank)
    wait = datetime.timedelta(seconds=PATIENCE_SECONDS)
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
