"""The ledger service with real actors: killed at every step, left by its driver, opened twice, and what it shows."""

import importlib.util
import os
import pickle
import re
import shutil
import signal
import sqlite3
import sys
import time
import urllib.request
from contextlib import closing, nullcontext
from typing import Any

import pytest
import ray
from dp_accounting import GaussianDpEvent, LaplaceDpEvent, NonPrivateDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from postgres import postgres_server
from ray_processes import log_text
from zygote import fork

from rayprivacy.accounting.calibrate import sigma_for
from rayprivacy.accounting.events import MetricLocalDpEvent
from rayprivacy.core.errors import (
    BudgetRefusedError,
    ConfigError,
    EventError,
    KeyFileError,
    LeaseHeldError,
    LedgerError,
    RayPrivacyError,
)
from rayprivacy.core.keys import create_key
from rayprivacy.core.private import Private
from rayprivacy.core.units import AccountKind, Budget, NeighbouringRelation, PrivacyUnit
from rayprivacy.ledger import service
from rayprivacy.ledger.charges import ChargeState, this_process
from rayprivacy.ledger.client import ServiceLostError, close_service, connect
from rayprivacy.ledger.service import Address, LedgerService, ensure_service, find_service
from rayprivacy.ledger.store import Ledger

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # no worker can import a test
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_ray")]
CAP = Budget(3.0, 1e-6)
FIT, ASK = 7, 40
SEVENTH = GaussianDpEvent(sigma_for(FIT, CAP))
EVENT = GaussianDpEvent(100.0)
TERMS = ("chat", PrivacyUnit.USER, NeighbouringRelation.ADD_OR_REMOVE, CAP)


class FrailService(LedgerService):
    """Dies before or after it has run a method, once for each file beside the ledger that says so."""

    def _run(self, method, args, kwargs):
        self._maybe_die(f"before-{method}")
        answer = super()._run(method, args, kwargs)
        self._maybe_die(f"after-{method}")
        return answer

    def _maybe_die(self, moment):
        assert self._address.file is not None
        order = self._address.file.with_name(moment)
        if order.exists():
            order.unlink()
            os._exit(1)


@pytest.fixture
def url(tmp_path):
    url = f"sqlite:///{tmp_path}/ledger.db"
    yield url
    close_service(url)


@pytest.fixture
def client(url):
    client = connect(url)
    client.ensure_account(*TERMS)
    return client


def _wait(what):
    until = time.monotonic() + 30
    while not (found := what()):
        assert time.monotonic() < until
        time.sleep(0.1)
    return found


def test_a_release_through_the_front_door(client, url):
    client.check("chat", EVENT)
    charge = client.reserve("chat", "run", "digest", EVENT)
    started = client.start(charge)
    assert started.lease.holder == this_process(), "leases belong to the caller, not to the actor"
    client.commit_output(client.renew(started), b"noisy")
    assert client.output(charge) == b"noisy"
    spare = client.cancel(client.reserve("chat", "spare", "digest", EVENT, rung=1))
    assert spare.state is ChargeState.CANCELLED
    assert client.find_charge("chat", "spare", "digest", rung=1) is None
    ledger = Ledger.open(url)
    calls = {"accounts": (), "head": (), "find_charge": ("chat", "run", "digest"), "charges_of": ("chat", "run")}
    calls |= dict.fromkeys(("account", "group", "entries", "lines"), ("chat",))
    for method, args in calls.items():
        assert getattr(client, method)(*args) == getattr(ledger, method)(*args)
    assert client.status("chat").figures == ledger.status("chat").figures
    assert client.terms("chat").account == ledger.account("chat")
    assert (ledger.verify().charges, ledger.verify().outputs) == (2, 1)
    client.close()
    assert client.head() == ledger.head()


def test_one_door_per_ledger_travels_to_tasks_and_takes_nothing_private(client, url):
    @ray.remote(num_cpus=0.1)
    def draw(ledger):
        charge = ledger.start(ledger.reserve("chat", "task", "d", EVENT))
        ledger.commit_output(charge, b"drawn in a task")
        return this_process(), charge.lease.holder

    process, holder = ray.get(draw.remote(client))
    assert process == holder != this_process()
    other = connect(url)
    assert other._service == client._service
    (charge,) = other.charges_of("chat", "task")
    assert other.output(charge) == b"drawn in a task"
    charge = client.start(client.reserve("chat", "private", "d", EVENT))
    with pytest.raises(TypeError, match="never pickled"):
        client.commit_output(charge, Private(b"private"))  # type: ignore[arg-type]
    assert client.output(charge) is None


def test_errors_arrive_as_if_the_ledger_were_here(client, url):
    ledger = Ledger.open(url)
    held = ledger.start(ledger.reserve("chat", "held", "d", EVENT), holder="another host:1:1")
    calls: list[tuple[type[RayPrivacyError], str, tuple[Any, ...]]] = [
        (BudgetRefusedError, "reserve", ("chat", "big", "d", GaussianDpEvent(0.1))),
        (EventError, "reserve", ("chat", "endless", "d", GaussianDpEvent(float("nan")))),
        (LeaseHeldError, "start", (held,)),
        (LedgerError, "account", ("nobody",)),
        (LedgerError, "create_account", TERMS),
        (ConfigError, "create_account", (*TERMS[:3], CAP, "unheard of")),
    ]
    for kind, method, args in calls:
        with pytest.raises(kind) as here:
            getattr(ledger, method)(*args)
        with pytest.raises(kind) as there:
            getattr(client, method)(*args)
        assert type(here.value) is type(there.value) is kind
        assert str(here.value) == str(there.value)
        assert "\n" not in str(there.value)
        assert there.value.__cause__ is there.value.__context__ is None


class LeakyService(LedgerService):
    """Quotes what it was given, as foreign code does."""

    def _run(self, method, args, kwargs):
        raise ValueError(f"cannot parse {args[1]}")


def test_a_foreign_error_keeps_its_text_to_itself(url, local_ray):
    ensure_service(Address.of(url), service=LeakyService)
    with pytest.raises(LedgerError) as caught:
        connect(url).reserve("chat", "quoted-5f3b", "d", EVENT)
    assert "calling reserve stopped with ValueError" in str(caught.value)
    assert caught.value.__cause__ is caught.value.__context__ is None
    assert "quoted-5f3b" not in str(caught.value) + log_text(local_ray)


def test_passwords_and_keys_stay_where_they_are(local_ray, tmp_path):
    url, secret = "postgresql://alice:hunter2-e9c1@127.0.0.1:9/book?password=hunter3-a7", ("hunter2-e9c1", "hunter3-a7")
    url += "&sslpassword=hunter3-a7"
    address = Address.of(url)
    assert address.name == Address.of(url.replace("hunter", "other")).name
    assert address.name != Address.of(url, tmp_path / "key").name != Address.of(url.replace("alice", "bob")).name
    with pytest.raises(LedgerError, match=r"postgresql://127\.0\.0\.1/book") as refused:
        connect(url)
    with pytest.raises(LedgerError) as malformed:
        connect("hunter2-e9c1@host")
    _wait(lambda: find_service(address) is None)  # a door that cannot open its ledger is closed
    said = [str(refused.value), str(malformed.value), address.name, repr(address)]
    assert not [word for word in secret if word in "".join([*said, log_text(local_ray)])]


def test_a_ledger_with_a_key(tmp_path, url):
    key_path = tmp_path / "key"
    key = create_key(key_path)
    client = connect(url, key_path)
    client.ensure_account(*TERMS)
    client.reserve("chat", "r", "d", EVENT)
    assert Ledger.open(url, key=key).verify().charges == 1
    assert key.digest("x") not in repr(vars(client))
    close_service(url, key_path)
    key_path.chmod(0o644)
    _wait(lambda: find_service(Address.of(url, key_path)) is None)
    with pytest.raises(KeyFileError, match="0644"):
        connect(url, key_path)
    key_path.chmod(0o600)
    _wait(lambda: find_service(Address.of(url, key_path)) is None)
    assert connect(url, key_path).charges_of("chat", "r")
    close_service(url, key_path)
    with pytest.raises(LedgerError, match="kept with a key"):
        connect(url).reserve("chat", "without", "d", EVENT)


@pytest.mark.parametrize(
    "steps", ["reserve commit_output", pytest.param("reserve start commit_output", marks=pytest.mark.exhaustive)]
)
def test_a_door_that_dies_during_a_call_charges_once(tmp_path, url, steps):
    ensure_service(Address.of(url), service=FrailService)
    client = connect(url)
    client.ensure_account(*TERMS)
    for step in steps.split():
        (tmp_path / f"after-{step}").touch()
    charge = client.reserve("chat", "run", "d", EVENT)
    started = client.start(charge)
    assert (started.lease.token, started.lease.holder) == (1, this_process())
    client.commit_output(started, b"first")
    assert not list(tmp_path.glob("after-*")), "it was to die at each step"
    client.commit_output(started, b"second")
    assert client.output(charge) == client.output(client.reserve("chat", "run", "d", EVENT)) == b"first"
    assert [entry.kind for entry in client.entries("chat")] == ["create", "reserve", "start", "commit"]
    assert Ledger.open(url).verify().outputs == 1


@pytest.mark.exhaustive  # it waits for three doors to open
def test_what_cannot_be_known_is_said(tmp_path, url):
    ensure_service(Address.of(url), service=FrailService)
    client = connect(url)
    (tmp_path / "after-create_account").touch()
    with pytest.raises(LedgerError, match="open it with ensure_account"):
        client.create_account(*TERMS)
    assert client.ensure_account(*TERMS) == client.account("chat")
    for moment in ("before-reserve", "after-reserve"):
        (tmp_path / moment).touch()
    with pytest.raises(ServiceLostError, match="died while calling reserve"):
        client.reserve("chat", "run", "d", EVENT)  # repeated once, and no more
    assert client.reserve("chat", "run", "d", EVENT).state is ChargeState.RESERVED
    assert Ledger.open(url).verify().charges == 1


def test_a_door_that_opens_again_is_shown_an_older_book(client, url, tmp_path):
    client.reserve("chat", "run", "d", EVENT)

    def close():
        ray.kill(client._service)
        _wait(lambda: find_service(Address.of(url)) is None)

    close()
    old = tmp_path / "old.db"
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as book, closing(sqlite3.connect(old)) as copy:
        book.backup(copy)
    client.reserve("chat", "later", "d", EVENT)
    close()
    for path in tmp_path.glob("ledger.db*"):
        path.unlink()
    shutil.copy(old, tmp_path / "ledger.db")
    with pytest.raises(LedgerError, match="an older copy was put back"):
        client.reserve("chat", "later still", "d", EVENT)
    assert connect(url).charges_of("chat", "run")


DRIVER = """
import signal, sys, ray
from dp_accounting import GaussianDpEvent
from rayprivacy.core.units import Budget, NeighbouringRelation, PrivacyUnit
from rayprivacy.ledger.client import connect
ray.init(address=sys.argv[1], log_to_driver=False)
ledger = connect(sys.argv[2])
ledger.ensure_account("chat", PrivacyUnit.USER, NeighbouringRelation.ADD_OR_REMOVE, Budget(3.0, 1e-6))
charge = ledger.reserve("chat", "run", "d", GaussianDpEvent(100.0))
ledger.start(charge)
print("charged", charge.id, flush=True)
signal.pause()
"""


def test_the_door_outlives_its_driver(tmp_path, url):
    said = tmp_path / "said"
    with said.open("w") as file:
        words = ["-c", ray.get_runtime_context().gcs_address, url]
        driver = fork(words, DRIVER, os.environ, tmp_path, [file.fileno()] * 2)
    (charged,) = _wait(lambda: re.findall(r"charged (.+)\n", said.read_text()))
    door = find_service(Address.of(url))
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    client = connect(url)
    assert client._service == door
    (charge,) = client.charges_of("chat", "run")
    assert str(charge.id) == charged
    again = client.reserve("chat", "run", "d", EVENT)
    taken_over = client.start(again)  # its holder is dead, so nobody waits for the lease's term
    assert (taken_over.lease.token, taken_over.lease.holder) == (2, this_process())
    client.commit_output(taken_over, b"noisy")
    assert Ledger.open(url).verify().charges == 1


def _race(ledger, numbers):
    paid = []
    for number in numbers:
        try:
            charge = ledger.reserve("chat", f"run-{number}", "d", SEVENTH)
            ledger.commit_output(ledger.start(charge), b"noisy")
            paid.append(charge.id)
        except BudgetRefusedError:
            continue
    return paid


@pytest.mark.parametrize("store", ["sqlite", pytest.param("postgresql", marks=pytest.mark.exhaustive)])
def test_two_front_doors_race_for_a_budget_that_fits_seven(url, monkeypatch, store):
    with postgres_server() if store == "postgresql" else nullcontext(url) as place:
        _check_race(place, monkeypatch)


def _check_race(url, monkeypatch):
    clients = [connect(url)]
    monkeypatch.setattr(service, "NAMESPACE", "another")
    clients.append(connect(url))
    assert clients[0]._service != clients[1]._service
    clients[0].ensure_account(*TERMS)
    race = ray.remote(_race).options(num_cpus=0.1)
    found = ray.get([race.remote(clients[n], range(n, ASK, 2)) for n in range(2)])
    paid = [charge for each in found for charge in each]
    assert len(set(paid)) == len(paid) == FIT
    report = Ledger.open(url).verify()
    assert (report.charges, report.outputs) == (FIT, FIT)
    close_service(url)
    monkeypatch.undo()
    close_service(url)


def test_a_missing_file_is_no_new_ledger_where_there_are_other_nodes(url, tmp_path, monkeypatch):
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True}, {"Alive": True}])
    with pytest.raises(LedgerError, match="create it with `rayprivacy ledger create`"):
        connect(url)
    assert not list(tmp_path.iterdir())
    Ledger.open(url).close()
    assert connect(url).accounts() == []


@pytest.mark.skipif(importlib.util.find_spec("opencensus") is None, reason="Ray exports metrics with ray[default] only")
def test_prometheus_sees_accounts_and_no_releases(client):
    client.reserve("chat", "a-release-id", "a-digest", EVENT)
    (node,) = ray.nodes()
    endpoint = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"

    def scrape():
        with urllib.request.urlopen(endpoint, timeout=10) as page:
            text = page.read().decode()
        assert not [word for word in ("a-release-id", "a-digest") if word in text]
        return [row for row in text.splitlines() if row.startswith("ray_rayprivacy_account_")]

    def charges_of_ours():
        return [row for row in scrape() if "account_charges{" in row and 'account="chat"' in row and " 1.0" in row[-4:]]

    charged = _wait(charges_of_ours)
    worker = charged[0].partition("WorkerId=")[2].partition(",")[0]  # doors of other tests show for a while yet
    rows = [row for row in scrape() if worker in row]
    assert all('account="chat"' in row for row in rows)
    values = {row.partition("{")[0].removeprefix("ray_rayprivacy_account_"): float(row.split()[-1]) for row in rows}
    assert values.keys() == service.GAUGES.keys()
    assert (values["epsilon_cap"], values["delta_cap"], values["charges"]) == (3.0, 1e-6, 1.0)


def test_whatever_the_ledger_answers_can_travel(url):
    gaussian = GaussianDpEvent(90.0)
    events: dict[str, Any] = {"gdp": SelfComposedDpEvent(gaussian, 3), "zcdp": LaplaceDpEvent(60.0), "pld": gaussian}
    events |= {"rdp": PoissonSampledDpEvent(0.01, gaussian), "metric": MetricLocalDpEvent(0.01, 2.0, 5)}
    terms: dict[str, Any] = {"rdp": {"order": 8.0}, "metric": {"kind": AccountKind.METRIC_LOCAL}}
    ledger = Ledger.open(url)
    for name, event in events.items():
        account = ledger.create_account(name, *TERMS[1:], name, **terms.get(name, {}))
        if name == "pld":
            ledger.register_plan(name, [event])
        charge = ledger.reserve(name, "r", "d", event, protection=account.protection)
        assert pickle.loads(pickle.dumps(charge)) == charge
        status = ledger.status(name)
        assert pickle.loads(pickle.dumps(status)).figures == status.figures
    assert pickle.loads(pickle.dumps(NonPrivateDpEvent())) == NonPrivateDpEvent()
