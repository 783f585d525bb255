"""Clean child processes: a server imports the library once, and each child is forked from it.

Not "fork" from the test process: that may hold the locks of torch's and Ray's threads, and a child would wait for ever.
"""

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from typing import Any

_PRELOAD = [
    "pytest",  # a child imports the main module of its parent again
    "psycopg",
    "hypothesis",
    "rayprivacy.release.gate",
    "rayprivacy.accounting.calibrate",
    "rayprivacy.ledger.store",
]


def forkserver() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    return context


@contextmanager
def warm_children(warm_up: Callable[..., Any], *arguments: Any) -> Iterator[Callable[..., int | None]]:
    """Call a function in a child process, again and again: `call(function, *arguments)` answers the exit code.

    Each child is forked from one single-threaded process that has done the work before, so that imports and the
    compilation of queries are paid once. What `warm_up` returns is the first argument of every call.
    """
    here, there = multiprocessing.Pipe()
    parent = forkserver().Process(target=_breed, args=(there, warm_up, arguments))
    parent.start()
    there.close()

    def call(*work: Any) -> int | None:
        here.send(work)
        exit_code: int | None = here.recv()
        return exit_code

    try:
        yield call
    finally:  # or a session that is killed would wait for it for ever
        here.close()
        parent.join()


def _breed(pipe: Connection, warm_up: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    warm = warm_up(*arguments)
    fork = multiprocessing.get_context("fork")
    while True:
        try:
            function, *rest = pipe.recv()
        except EOFError:
            return
        child = fork.Process(target=function, args=(warm, *rest))
        child.start()
        child.join()
        pipe.send(child.exitcode)
