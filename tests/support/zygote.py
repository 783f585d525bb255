"""A warm process from which the processes of tests are forked: drivers that may be killed, and Ray's workers.

A Python process that imports torch, transformers and this package takes eight seconds of CPU before it does anything,
and the tests start hundreds of them. One server imports once; each process is a fork of it, with the arguments, the
environment, the folder and the output that it would have had. Whoever asked for it waits until it ends, and if that one
is killed, it is killed too: a tree of processes ends as it would otherwise.

Ray reads its settings from the environment when it is imported. So where several processes have the same, the server
forks another one that imports Ray under these settings, and they are forks of that. No such server may draw an id of
Ray: the generator would be in the same state in all that are forked later.
"""

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

SOCKET = "RAYPRIVACY_TEST_ZYGOTE"
WORKER = Path(__file__).with_name("forked_worker.py")
LARGEST = 1 << 20  # an order is one message, and so are its answers: the process, and its exit code
WARM = """
torch torch.func torch.utils.checkpoint transformers transformers.models.llama.modeling_llama peft accelerate tokenizers
safetensors.torch gguf numpy pandas polars pyarrow.parquet pyarrow.csv pyarrow.json pyarrow.dataset scipy.stats
scipy.optimize sklearn sqlalchemy.dialects.sqlite requests jsonschema google.protobuf fsspec optuna pydantic
yaml typer rich.console cryptography jinja2 dp_accounting opendp.prelude
rayprivacy.models.backbone rayprivacy.models.trainable rayprivacy.models.features rayprivacy.models.adapters
rayprivacy.models.store rayprivacy.ledger.store rayprivacy.release.gate rayprivacy.release.steps
rayprivacy.evaluation.language rayprivacy.generation.decode rayprivacy.auditing.scoring
""".split()  # noqa: SIM905
WITH_RAY = """
ray ray._private.node ray.train ray.train.torch ray.data rayprivacy.ledger.service rayprivacy.dpsgd.worker
rayprivacy.corpus.shards rayprivacy.teachers.pool rayprivacy.generation.writing
""".split()  # noqa: SIM905
LATE = {"RAY_ADDRESS", "RAY_CLIENT_MODE", "RAY_LD_PRELOAD_ON_WORKERS"}  # Ray reads these when it needs them
FEW, MOST = 2, 6  # orders of one set of settings that are worth no server, and the servers that there may be


class Forked:
    """A process that was forked from the server and leads a session of its own; `returncode` as in `subprocess`."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.returncode: int | None = None
        self.pid = int(connection.recv(LARGEST))

    def poll(self) -> int | None:
        return self.wait(0) if select.select([self._connection], [], [], 0)[0] else self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
            self.returncode = int(self._connection.recv(LARGEST) or -signal.SIGKILL)
            self._connection.close()
        return self.returncode


def fork(
    argv: Sequence[str], code: str | None, env: Mapping[str, str], cwd: str | Path, streams: Sequence[int]
) -> Forked:
    """Fork a process with this `sys.argv`, whose first word is the script that it runs, unless there is code.

    `env` is its whole environment, `streams` the file descriptors of its standard output and its standard error.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(os.environ[SOCKET])
    order = {"argv": [*argv], "code": code, "env": {**env}, "cwd": str(cwd)}
    socket.send_fds(connection, [json.dumps(order).encode()], [*streams])
    return Forked(connection)


def fork_command(words: Sequence[str], cwd: Path, patch: str = "", env: Mapping[str, str] | None = None) -> Forked:
    """Fork `rayprivacy` with these words, after `patch`; it writes the files `stdout` and `stderr` of `cwd`."""
    code = f"import os, signal, sys\n{patch}\nfrom rayprivacy.cli import main\nsys.exit(main())\n"
    # Files, not pipes: what Ray leaves behind for a moment after SIGKILL would hold a pipe open.
    with (cwd / "stdout").open("w") as out, (cwd / "stderr").open("w") as err:
        return fork(["rayprivacy", *words], code, env or os.environ, cwd, [out.fileno(), err.fileno()])


@contextmanager
def zygote() -> Iterator[None]:
    """Start a server; until the end, a Ray that this process starts has its workers forked there."""
    with tempfile.TemporaryDirectory(prefix="zygote-") as folder:
        address = f"{folder}/socket"
        command = [sys.executable, str(Path(__file__)), address]
        with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as server:
            assert server.stdout
            server.stdout.readline()  # it listens
            os.environ[SOCKET] = address
            fork_workers()
            yield
            del os.environ[SOCKET]
            server.terminate()


def fork_workers() -> None:
    """Ray starts its workers by the script that it finds at `setup_worker_path`.

    Where there is no dashboard, nobody asks for the logs of workers, and Ray starts no process that follows them all.
    """
    from ray._private.parameter import RayParams

    real = RayParams.update_if_absent

    def update(self: Any, **known: Any) -> None:
        if SOCKET in os.environ and "setup_worker_path" in known:
            known["setup_worker_path"] = str(WORKER)
            known["include_log_monitor"] = bool(self.include_dashboard)
        real(self, **known)

    RayParams.update_if_absent = update


def _import(names: Sequence[str]) -> None:
    for name in names:
        __import__(name)


def _serve(address: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(address)
        server.listen(128)
        print(flush=True)
        _import(WARM)
        assert "ray" not in sys.modules, "all its workers would have the settings of this process"
        gc.freeze()  # collections of those who are forked leave the server's memory as it is
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who wait for others
        server.settimeout(1.0)
        parent, with_ray = os.getppid(), _WithRay(server)
        while parent == os.getppid():  # a killed test leaves no server behind
            with suppress(TimeoutError, ValueError):  # who asks may be killed before all is said
                with_ray.answer(*_received(server.accept()[0]))


def _received(connection: socket.socket) -> tuple[bytes, list[int]]:
    """An order, and what it comes with: the connection, and places for the output."""
    order, streams, _, _ = socket.recv_fds(connection, LARGEST, 2)
    return order, [connection.detach(), *streams]


class _WithRay:
    """Servers that have imported Ray, each with its settings, the one asked last behind the others."""

    def __init__(self, *foreign: socket.socket) -> None:
        self._foreign = foreign
        self._asked: Counter[str] = Counter()
        self._servers: dict[str, socket.socket] = {}

    def answer(self, order: bytes, handles: list[int]) -> None:
        """Fork what is asked for: from the server with its settings, if they are asked for often."""
        key = json.dumps(_settings(json.loads(order)["env"]))
        self._asked[key] += 1
        if self._asked[key] > FEW:
            server = self._servers.pop(key, None) or self._start(key, handles)
            self._servers[key] = server
            socket.send_fds(server, [order], handles)
        else:
            _attend_apart(order, handles, [*self._foreign, *self._servers.values()])
        for handle in handles:
            os.close(handle)

    def _start(self, key: str, foreign: Sequence[int]) -> socket.socket:
        """Fork a server: where it takes its orders. It ends when nobody can send any more."""
        if len(self._servers) == MOST:
            self._servers.pop(next(iter(self._servers))).close()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            try:
                for each in (ours, *self._foreign, *self._servers.values()):
                    each.close()
                for handle in foreign:
                    os.close(handle)
                _import_ray(json.loads(key))
                _serve_with_ray(theirs)
            except BaseException:  # noqa: BLE001 - whoever waits for it sees that it has ended, and here why
                traceback.print_exc()
            finally:
                os._exit(0)
        theirs.close()
        return ours


def _settings(env: Mapping[str, str]) -> dict[str, str]:
    return {name: env[name] for name in sorted(env) if name == "HOME" or (name.startswith("RAY_") and name not in LATE)}


def _import_ray(settings: Mapping[str, str]) -> None:
    for name in _settings(os.environ):
        del os.environ[name]
    os.environ.update(settings)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # what is imported may start a process and wait for it
    import ray.actor

    real = ray.actor.ActorClassID
    # Each class of actors draws an id when it is defined. Ray's own generator shall not have begun before the forks.
    ray.actor.ActorClassID = SimpleNamespace(from_random=lambda: real(os.urandom(real.size())))
    _import(WITH_RAY)
    ray.actor.ActorClassID = real
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def _serve_with_ray(orders: socket.socket) -> None:
    while True:
        order, handles, _, _ = socket.recv_fds(orders, LARGEST, 3)
        if not order:
            return
        _attend_apart(order, handles, [orders])
        for handle in handles:
            os.close(handle)


def _attend_apart(order: bytes, handles: list[int], foreign: Sequence[socket.socket]) -> None:
    """Fork a process that attends to an order, without what belongs to the server."""
    if os.fork() == 0:
        try:
            for each in foreign:
                each.close()
            _attend(socket.socket(fileno=handles[0]), handles[1:], json.loads(order))
        finally:
            os._exit(0)


def _attend(connection: socket.socket, streams: list[int], order: dict[str, Any]) -> None:
    """Fork what is asked for, and wait until it ends or nobody waits for it any more."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child == 0:
        connection.close()
        _become(streams, **order)
    for stream in streams:
        os.close(stream)
    connection.sendall(str(child).encode())
    handle = os.pidfd_open(child)
    if handle not in select.select([handle, connection], [], [])[0]:
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with suppress(OSError):
        connection.sendall(str(code).encode())


def _become(streams: list[int], argv: list[str], code: str | None, env: dict[str, str], cwd: str) -> None:
    status = 1
    try:
        os.setsid()
        for stream, place in zip(streams, (1, 2), strict=True):
            os.dup2(stream, place)
            os.close(stream)
        os.environ.clear()
        os.environ.update(env)
        os.chdir(cwd)
        more = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path and path not in sys.path]
        sys.argv, sys.path[:1] = argv, [os.path.dirname(argv[0]) if code is None else "", *more]
        _run(argv[0], code)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - as an interpreter does
        traceback.print_exc()
    finally:
        _leave(status)


def _run(script: str, code: str | None) -> None:
    import numpy

    numpy.random.seed()  # Python's own generator is seeded anew by every fork
    if code is None:
        runpy.run_path(script, run_name="__main__")
    else:
        fork_workers()
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})


def _leave(status: int) -> None:
    """End as an interpreter does, and free nothing that belongs to the server."""
    with suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(BaseException):
            stream.flush()
    os._exit(status)


if __name__ == "__main__":  # without an address, what it would import is compiled
    _serve(sys.argv[1]) if sys.argv[1:] else _import([*WARM, *WITH_RAY])
