"""Two real nodes, each in a network namespace of its own: a worker node is killed in the middle of a run.

    python benchmarks/two_nodes.py --json        # as root, with `ip` of iproute2
    python benchmarks/two_nodes.py --methods generator --cpus 9 -o resources.workers=8 -o model.dtype=float32 \\
        --calm resources.workers=1 --json

The namespaces are joined by a pair of virtual Ethernet devices, so that every byte between the nodes crosses a network
device, ports of one node are not ports of the other, and `ray start` runs as on two machines. They share one file
system, as the nodes of a cluster share one. Recipes go in through the Jobs API of the head.

For each method: a run whose worker node is killed (SIGKILL, all its processes) once it has finished a piece of teachers
or saved a chunk of steps; then a run of the same recipe, key and ledger that nobody disturbs. Their certificates and
synthetic texts must be the same, and the second run must not be charged. By the second command the first run has eight
workers and the other one has one.

Without the right to make namespaces, `--loopback` starts the two nodes on 127.0.0.2 and 127.0.0.3 instead.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
from ray.job_submission import JobStatus, JobSubmissionClient

from rayprivacy.ledger.store import Ledger

JOBS = Path(__file__).parent.parent / "jobs"
ENVIRONMENT = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_TRAIN_V2_ENABLED": "1"}
PORT, DASHBOARD = 6399, 8299
PATIENCE = 1800.0
SMALL = {
    "seqpate": [
        "corpus.max_records_per_user=1", "teachers={count: 40, stack: 4, max_tokens: 14, row_tokens: 16}",
        "pseudo.texts=32", "votes.queries=64", "student.steps=10", "student.warm_steps=10", "generation.texts=8",
        "evaluation={users: 4, completions: 2, nonprivate_steps: 2}", "resources.actors=2",
    ],
    "generator": [
        "corpus.max_records_per_user=1", "training.steps=6", "training.chunk=2", "training.sampling_rate=0.02",
        "training.expected_batch=20", "training.max_tokens=14", "generation={texts: 8, max_tokens: 8}",
        "evaluation={users: 4}", "resources={workers: 2, cpus: 1, actors: 1}",
    ],
}  # fmt: skip
UNDER_WAY = {"seqpate": "private/teachers/*.safetensors", "generator": "private/training/states/*/step-*"}


@dataclass(frozen=True)
class Node:
    """Where a node lives: its address, and what its commands begin with."""

    address: str
    prefix: tuple[str, ...] = ()


def main() -> None:
    arguments = _arguments()
    arguments.work.mkdir(parents=True, exist_ok=True)
    with _nodes(arguments.loopback) as nodes:
        found = {method: _method(method, nodes, arguments) for method in arguments.methods}
    figures = {"network": "loopback" if arguments.loopback else "namespaces", **found}
    print(json.dumps(figures, indent=1) if arguments.json else figures)


def _method(method: str, nodes: tuple[Node, Node], arguments: argparse.Namespace) -> dict[str, Any]:
    work = arguments.work / method
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    overrides, charges = {"disturbed": arguments.override, "calm": arguments.override + arguments.calm}, []
    for name, own in overrides.items():
        with _ray(*nodes, work, arguments.cpus) as worker:
            recipe = _recipe(method, work, own)
            _run(method, nodes, recipe, work / name, worker if name == "disturbed" else None)
        charges.append(_charges(work))
    certificates = [json.loads((work / name / "certificate.json").read_text()) for name in ("disturbed", "calm")]
    texts = [pq.read_table(work / name / "synthetic.parquet") for name in ("disturbed", "calm")]
    return {
        "same_certificate": certificates[0] == certificates[1],
        "same_text": texts[0].equals(texts[1]),
        "charges": charges,
        "overrides": overrides,
        "seconds": {name: _seconds(work / name) for name in ("disturbed", "calm")},
    }


def _recipe(method: str, work: Path, overrides: list[str]) -> list[str]:
    """The arguments of `rayprivacy run` but for --out."""
    own = [f"privacy.ledger=sqlite:///{work}/ledger.db", f"privacy.key={work}/key", "resources.address=auto"]
    settings = [*SMALL[method], *own, *overrides]
    return [str(JOBS / method / "chat.yaml"), *(part for setting in settings for part in ("-o", setting))]


def _run(method: str, nodes: tuple[Node, Node], recipe: list[str], out: Path, victim: Any) -> None:
    """Submit one run, kill the victim once it is under way, and wait for the run to end."""
    command = ["rayprivacy.cli", "run", *recipe, "--out", str(out)]
    quoted = " ".join([sys.executable, "-m", *(f"'{word}'" for word in command)])
    script = out.with_suffix(".sh")
    script.write_text(quoted)
    job = _submitted(nodes[0], f"sh {script}")
    if victim is not None:
        _wait(lambda: any(out.glob(UNDER_WAY[method])) or _over(nodes[0], job), f"{method} to be under way")
        assert not _over(nodes[0], job), "the run was over before its node could be killed"
        _kill(victim)
    _wait(lambda: _over(nodes[0], job), f"{method} to end")
    status = _ask(nodes[0], f"get_job_status({job!r}).value")
    if status != JobStatus.SUCCEEDED:
        raise SystemExit(f"{method}: the job ended as {status}: {_ask(nodes[0], f'get_job_logs({job!r})')[-2000:]}")


def _submitted(head: Node, entrypoint: str) -> str:
    return _ask(head, f"submit_job(entrypoint={entrypoint!r})")


def _over(head: Node, job: str) -> bool:
    return JobStatus(_ask(head, f"get_job_status({job!r}).value")).is_terminal()


def _ask(head: Node, call: str) -> str:
    """Ask the Jobs API from inside the head's namespace, where alone it can be reached."""
    name = JobSubmissionClient.__name__
    code = f"from ray.job_submission import {name} as C; print(C('http://{head.address}:{DASHBOARD}').{call})"
    done = subprocess.run(_inside(head, sys.executable, "-c", code), capture_output=True, text=True, env=_environment())
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return done.stdout.strip()


@contextmanager
def _ray(head: Node, other: Node, work: Path, cpus: int) -> Iterator[subprocess.Popen[bytes]]:
    """Start both nodes; yields the worker node's process."""
    start = [str(Path(sys.executable).with_name("ray")), "start", "--block", f"--num-cpus={cpus}"]
    first = [*start, "--head", f"--node-ip-address={head.address}", f"--port={PORT}", "--include-dashboard=true"]
    first += [f"--dashboard-host={head.address}", f"--dashboard-port={DASHBOARD}"]
    second = [*start, f"--address={head.address}:{PORT}", f"--node-ip-address={other.address}"]
    started = []
    try:
        for node, command, name in ((head, first, "head"), (other, second, "worker")):
            with (work / f"{name}.log").open("wb") as log:
                call = _inside(node, *command)
                started.append(
                    subprocess.Popen(call, stdout=log, stderr=log, env=_environment(), start_new_session=True)
                )
            if node is head:
                _wait(lambda: _answers(head), "the head")
        _wait(lambda: _alive(head) == 2, "two nodes")
        yield started[1]
    finally:
        for process in reversed(started):
            _kill(process)


def _answers(head: Node) -> bool:
    with suppress(SystemExit):
        return bool(_ask(head, "get_version()"))
    return False


def _alive(head: Node) -> int:
    code = (f"import ray; ray.init(address='{head.address}:{PORT}', log_to_driver=False, logging_level='ERROR');"
            "print(sum(node['Alive'] for node in ray.nodes()))")  # fmt: skip
    done = subprocess.run(_inside(head, sys.executable, "-c", code), capture_output=True, text=True, env=_environment())
    return int(done.stdout.split()[-1]) if done.returncode == 0 else 0


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a node: everything that its `ray start` has started, at once."""
    with suppress(psutil.NoSuchProcess):
        whole = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        for each in whole:
            with suppress(psutil.NoSuchProcess):
                each.send_signal(signal.SIGKILL)
    process.wait()


@contextmanager
def _nodes(loopback: bool) -> Iterator[tuple[Node, Node]]:
    """Two places that reach each other over a network."""
    if loopback:
        yield Node("127.0.0.2"), Node("127.0.0.3")
        return
    names, addresses = (f"rp-{os.getpid()}-a", f"rp-{os.getpid()}-b"), ("10.77.0.1", "10.77.0.2")
    devices = (f"rpa{os.getpid()}", f"rpb{os.getpid()}")
    try:
        for name in names:
            _ip("netns", "add", name)
        _ip("link", "add", devices[0], "type", "veth", "peer", "name", devices[1])
        for name, device, address in zip(names, devices, addresses, strict=True):
            _ip("link", "set", device, "netns", name)
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", device)
            _ip("-n", name, "link", "set", device, "up")
            _ip("-n", name, "link", "set", "lo", "up")
        first, second = (
            Node(address, ("ip", "netns", "exec", name)) for name, address in zip(names, addresses, strict=True)
        )
        yield first, second
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"ip {' '.join(arguments)}: {done.stderr.strip()}; be root, or give --loopback.")


def _inside(node: Node, *command: str) -> list[str]:
    return [*node.prefix, *command]


def _environment() -> dict[str, str]:
    return os.environ | ENVIRONMENT


def _charges(work: Path) -> int:
    ledger = Ledger.open(f"sqlite:///{work}/ledger.db")
    report = ledger.verify()
    ledger.close()
    return report.charges


def _seconds(out: Path) -> float:
    lines = [json.loads(line)["time"] for line in (out / "run.log").read_text().splitlines()]
    return round(lines[-1] - lines[0], 1)


def _wait(found: Callable[[], Any], what: str) -> None:
    until = time.monotonic() + PATIENCE
    while not found():
        if time.monotonic() > until:
            raise SystemExit(f"waited {PATIENCE:.0f} s for {what}")
        time.sleep(1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--loopback", action="store_true")
    parser.add_argument("--methods", nargs="+", choices=list(SMALL), default=list(SMALL))
    parser.add_argument("--work", type=lambda path: Path(path).absolute(), default=Path("runs/two_nodes").absolute())
    parser.add_argument("--cpus", type=int, default=2, help="CPUs that each node says it has")
    parser.add_argument("--calm", action="append", default=[], help="one more setting of the run that is not disturbed")
    parser.add_argument("-o", dest="override", action="append", default=[], help="one more setting of the recipes")
    return parser.parse_args()


if __name__ == "__main__":
    main()
