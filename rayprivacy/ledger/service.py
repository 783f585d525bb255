"""The ledger service: one Ray actor through which a whole cluster reaches a ledger.

The actor holds no state. Ray restarts it as often as it dies, and a restarted one opens the ledger again; Ray never
repeats a call (`max_task_retries=0`), because whether to repeat is for the client to decide, which looks first. It runs
one call at a time, but nothing rests on that: what decides is the database transaction, so two services at once, or
one beside processes that open the ledger themselves, cannot overspend.

It is detached, and found by a name made of a digest of version, URL without passwords, and key path.

A SQLite ledger is a file of one host, so its service is pinned to the node of the process that started it first, and
serves the others from there. While no service runs, a process on another node could take a missing file for a new
ledger, with every budget unspent: in a cluster of several nodes a service therefore only opens files that exist. That
cannot see a second file at the same path on another node; use PostgreSQL where the drivers of a ledger run on several
nodes.

What passes through it are names, keyed digests, events and outputs (noise included), never private text. Errors come
back as answers, in one sentence of ours: Ray would carry a traceback to the driver, its log files and the dashboard.
The key passes as a path. The URL is an argument of the actor, which Ray's control store keeps: rather than a password,
name a password file in it (`?passfile=...`).
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray.util.metrics import Gauge
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from sqlalchemy import func, select

from rayprivacy import __version__
from rayprivacy.core.errors import ConfigError, LedgerError, RayPrivacyError
from rayprivacy.core.keys import load_key
from rayprivacy.core.private import Seal, digest_json
from rayprivacy.core.uris import sounds_secret
from rayprivacy.ledger.book import entries
from rayprivacy.ledger.database import ledger_file, parse_url
from rayprivacy.ledger.store import Ledger

R = TypeVar("R")
NAMESPACE = "rayprivacy"
SEAL = Seal(LedgerError, "what was charged stays charged once, so run again with --resume")
_OPTIONS: dict[str, Any] = {
    "lifetime": "detached",
    "get_if_exists": True,
    "max_concurrency": 1,
    "max_restarts": -1,
    "max_task_retries": 0,
    "num_cpus": 0,
}
IDLE_SECONDS = 10.0  # how late a charge made elsewhere may show; Ray drops a gauge that is not set for 20 seconds
REST_SECONDS = 0.5  # how often a busy ledger is looked at
GAUGES = {
    "epsilon_cap": "Epsilon of the account's cap, which is its claim.",
    "delta_cap": "Delta of the account's cap.",
    "epsilon_spent": "Epsilon of all charges that are not cancelled, at the account's delta: a diagnostic.",
    "epsilon_reserved": "Epsilon of charges reserved and not started: they can still be given back.",
    "epsilon_remaining": "The largest epsilon, at the account's delta, that one more release may ask for.",
    "share_used": "Part of the cap that all charges take together.",
    "charges": "Number of charges that are not cancelled.",
}
_FIGURE = {"epsilon_cap": "epsilon", "delta_cap": "delta"}


@dataclass(frozen=True)
class Address:
    """Where a ledger is, in absolute terms; prints neither the URL, which may hold a password, nor the key's path."""

    url: str = field(repr=False)
    key_path: Path | None = field(default=None, repr=False)
    watched: bool = True

    @classmethod
    def of(cls, url: str, key_path: Path | None = None, watched: bool = True) -> "Address":
        """The address as every process can use it; unwatched services export no gauges: secret trials must not show."""
        parsed = parse_url(url)
        if parsed.get_backend_name() == "sqlite" and parsed.database not in (None, "", ":memory:"):
            parsed = parsed.set(database=str(Path(str(parsed.database)).resolve()))
        return cls(parsed.render_as_string(hide_password=False), key_path.absolute() if key_path else None, watched)

    @property
    def file(self) -> Path | None:
        """The ledger file; None for a database server."""
        return ledger_file(self.url)

    @property
    def name(self) -> str:
        """The name of the service; says nothing about passwords."""
        parsed = parse_url(self.url)
        query = {name: value for name, value in parsed.query.items() if not sounds_secret(name)}
        bare = parsed._replace(password=None).set(query=query).render_as_string()
        own = [__version__, bare, str(self.key_path or ""), *([] if self.watched else ["not watched"])]
        return f"ledger-{digest_json(own)[:32]}"

    def open(self, expected_head: str | None = None) -> Ledger:
        """Open the ledger itself."""
        return Ledger.open(self.url, expected_head, load_key(self.key_path) if self.key_path else None)


class LedgerService:
    """The actor behind `client.LedgerClient`. Every answer is a value, or one of our errors."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._opened: tuple[Ledger, AccountGauges] | None = None  # at first use: a failing constructor is final

    def open(self) -> str | RayPrivacyError:
        """Open the ledger unless it is open; answers the node that this is."""
        return self._answer("opening the ledger", self._node)

    def expect(self, head: str) -> RayPrivacyError | None:
        """Require that the ledger contains a head seen earlier."""
        return self._answer("looking for a ledger head", lambda: self._address.open(head).close())

    def call(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """One call of a method of `store.Ledger`."""
        return self._answer(f"calling {method}", lambda: self._run(method, args, kwargs))

    def refresh(self) -> bool | RayPrivacyError:
        """Set the gauges now, if it has any."""
        return self._answer("refreshing gauges", self._refresh)

    def _ready(self) -> "tuple[Ledger, AccountGauges]":
        if self._opened is None:
            ledger = self._address.open()
            self._opened = ledger, AccountGauges(ledger)
            if self._address.watched:
                self._opened[1].watch()
        return self._opened

    def _node(self) -> str:
        self._ready()
        return str(ray.get_runtime_context().get_node_id())

    def _run(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        ledger, gauges = self._ready()
        answer = getattr(ledger, method)(*args, **kwargs)
        gauges.wake()
        return answer

    def _refresh(self) -> bool:
        gauges = self._ready()[1]
        if self._address.watched:
            gauges.refresh()
        return True

    @staticmethod
    def _answer(step: str, work: Callable[[], R]) -> R | RayPrivacyError:
        try:
            return SEAL.around(step)(work)()
        except RayPrivacyError as error:
            return error


def ensure_service(address: Address, node: str | None = None, service: type[LedgerService] = LedgerService) -> Any:
    """The handle of the service, started if need be: for a file on `node`, or on this one if the file can be no
    other's.
    """
    if not ray.is_initialized():
        raise ConfigError("Ray is not started: start it, or open the ledger in this process.")
    running = find_service(address)
    if running is not None:
        return running
    options = _OPTIONS | {"name": address.name, "namespace": NAMESPACE}
    if address.file is not None:
        if node is None:
            _require_this_node(address.file)
        here = node or ray.get_runtime_context().get_node_id()
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(here, soft=False)
    return ray.remote(service).options(**options).remote(address)


def find_service(address: Address) -> Any | None:
    """The handle of the service, or None when it is not running."""
    try:
        return ray.get_actor(address.name, NAMESPACE)
    except ValueError:
        return None


def _require_this_node(file: Path) -> None:
    if not file.exists() and sum(node["Alive"] for node in ray.nodes()) > 1:
        raise LedgerError(
            f"the ledger {file} does not exist on this node, and the cluster has others: create it with"
            " `rayprivacy ledger create` on the node that keeps it and connect there first, or use PostgreSQL."
        )


class AccountGauges:
    """What the accounts of a ledger have spent and have left, as gauges for Prometheus.

    Ray's metrics agent exports them on every node as `ray_rayprivacy_account_<what>{account="..."}`. The account is the
    only tag: account names are public labels that a user chose, so choose names that may stand on a dashboard.
    Releases, digests and users never become tags. Every figure follows from the terms and the events of the ledger,
    which say nothing about the corpus; 'spent' is a diagnostic, the claim of an account is its cap. Two services export
    the same accounts: ask Prometheus for `max by (account)`.

    The gauges follow the ledger, not the calls: a thread reads what has been appended since it last looked, so that
    charges wait for no gauge, and charges made elsewhere (another service, the command line) show too. When metrics
    fail, they stop; the ledger goes on.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._gauges: dict[str, Gauge] = {}
        self._seen = 0
        self._charges = Counter[str]()
        self._figures: dict[str, dict[str, float]] = {}
        self._one_reader = threading.Lock()
        self._due = threading.Event()

    def watch(self) -> None:
        """Follow the ledger from now on, in a thread that ends with the process."""
        threading.Thread(target=self._watch, name="account-gauges", daemon=True).start()

    def wake(self) -> None:
        """Say that something may have been appended; returns at once."""
        self._due.set()

    def refresh(self) -> None:
        """Set the gauges of every account; figures are computed again for those that have new entries."""
        with self._one_reader:
            self._gauges = self._gauges or {
                name: Gauge(f"rayprivacy_account_{name}", text, ("account",)) for name, text in GAUGES.items()
            }
            end, charges, touched = self._news()
            for account in touched:
                self._figures[account] = self._ledger.status(account).figures | {"charges": charges[account]}
            for account, figures in self._figures.items():
                for name, gauge in self._gauges.items():
                    gauge.set(float(figures[_FIGURE.get(name, name)]), tags={"account": account})
            self._seen, self._charges = end, charges  # last: what failed is tried again

    def _news(self) -> tuple[int, Counter[str], set[str]]:
        counts = select(entries.c.account, entries.c.kind, func.count(), func.max(entries.c.seq))
        news = counts.where(entries.c.seq > self._seen).group_by(entries.c.account, entries.c.kind)
        with self._ledger.snapshot() as connection:
            rows = connection.execute(news).all()
        charges = self._charges.copy()
        for account, kind, count, _ in rows:
            charges[account] += {"reserve": 1, "cancel": -1}.get(kind, 0) * count
        return max((last for *_, last in rows), default=self._seen), charges, {row[0] for row in rows}

    def _watch(self) -> None:
        while True:
            with suppress(Exception):  # a gauge is worth no charge
                self.refresh()
            time.sleep(REST_SECONDS)
            self._due.wait(IDLE_SECONDS)
            self._due.clear()
