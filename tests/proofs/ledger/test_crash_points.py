"""A process may die just before or just after each of its database actions: nothing is spent unseen or drawn twice.

Every scenario is run with a process that kills itself at its first crossing, then at its second, and so on until a run
comes through. After each death the book is read and the run is finished by another process that knows nothing of it.
"""

import itertools
import shutil
import signal

import pytest
from backdoor import empty_database
from crashing import EVENT, RUNGS, SCENARIOS, open_accounts, open_and_die, run, run_and_die
from processes import warm_children

from rayprivacy.ledger.charges import ChargeState
from rayprivacy.ledger.store import Ledger

LEAST = {"plain": 40, "rungs": 80, "take-over": 40, "cancel": 64, "selective": 50, "pld": 60}  # crash points
COST = 2**80 // 400 + 1  # of an event with sigma = 20, in multiples of 2^-80


def test_there_are_enough_crash_points():
    assert LEAST.keys() == SCENARIOS.keys()
    assert 2 * sum(LEAST.values()) >= 600  # on two stores


# What comes after one action and before the next is one moment, crossed twice: every second crossing meets them all.
STORES = [
    pytest.param("sqlite", 2, id="sqlite, every second"),
    pytest.param("sqlite", 1, id="sqlite", marks=pytest.mark.exhaustive),
    pytest.param("postgresql", 5, id="postgresql, every fifth"),
    pytest.param("postgresql", 1, id="postgresql", marks=pytest.mark.exhaustive),
]


@pytest.mark.parametrize(("url", "stride"), STORES, indirect=["url"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_crash_spends_unseen_or_draws_twice(url, tmp_path, scenario, stride):
    parent = Ledger.open(url)
    with warm_children(run, url, scenario, "warm-up", tmp_path) as call:
        for crossings in itertools.count(1 + len(scenario) % stride, stride):
            account = f"{scenario}-{crossings}"
            open_accounts(parent, scenario, account)
            exit_code = call(run_and_die, scenario, account, tmp_path, crossings)
            assert exit_code in (0, -signal.SIGKILL)
            _check(parent, scenario, account, tmp_path, finished=exit_code == 0)
            if crossings // stride % 20 == 0:
                parent.close()
                parent = Ledger.open(url)
                parent.verify()
            if exit_code == 0:
                break
    assert crossings > LEAST[scenario]
    assert parent.verify().accounts > crossings // stride
    parent.close()


@pytest.mark.parametrize(("url", "stride"), STORES, indirect=["url"])
def test_no_crash_leaves_half_a_ledger(url, tmp_path, stride):
    with warm_children(run, f"sqlite:///{tmp_path}/warm-up.db", "plain", "warm-up", tmp_path) as call:
        for crossings in itertools.count(1, 3 * stride):  # the creation of tables has many statements
            new = url.replace("ledger.db", f"{crossings}.db")
            exit_code = call(open_and_die, new, crossings)
            assert exit_code in (0, -signal.SIGKILL)
            ledger = Ledger.open(new)
            open_accounts(ledger, "plain", "chat")
            SCENARIOS["plain"](ledger, "chat", _emptied(tmp_path / "work"))
            assert ledger.verify().charges == 1
            ledger.close()
            if exit_code == 0:
                break
            if not url.startswith("sqlite"):
                empty_database(url)
    assert crossings > 30


def _check(ledger, scenario, account, folder, finished):
    done = _consistent(ledger, scenario, account, folder)
    drawn = _drawn(folder, account)
    if finished:
        assert len(done) == len(RUNGS if scenario == "rungs" else (0,))
    SCENARIOS[scenario](ledger, account, folder)
    after = _consistent(ledger, scenario, account, folder)
    assert {charge.rung for charge in after} == set(RUNGS if scenario == "rungs" else (0,))
    for rung in (charge.rung for charge in done):  # what was persisted was not drawn again
        assert _drawn(folder, account, rung) == _drawn(folder, account, rung) & drawn
    live = [charge for charge in ledger.charges_of(account, "run") if charge.is_live]
    assert live == after
    if scenario == "cancel":
        assert len(ledger.charges_of(account, "run")) == 2


def _consistent(ledger, scenario, account, folder):
    """The committed charges, after every check that must hold at any time."""
    entries = ledger.entries(account)
    started = {entry.rung for entry in entries if entry.kind == "start"}
    charges = [charge for charge in ledger.charges_of(account, "run") if charge.is_live]
    assert len({charge.rung for charge in charges}) == len(charges)
    used, drawn_rungs = ledger.status(account).balance.used, set()
    for rung in (0, *RUNGS):
        drawn = _drawn(folder, account, rung)
        if drawn:
            drawn_rungs.add(rung)
            assert rung in started
        charge = next((charge for charge in charges if charge.rung == rung), None)
        output = ledger.output(charge) if charge else None
        assert (output is None) == (charge is None or charge.state is not ChargeState.COMMITTED)
        assert output is None or output.hex() in drawn
        assert _served(folder, account, rung) <= ({output.hex()} if output else set())
    if scenario != "pld":
        assert used == (len(charges) * COST,)
        assert used[0] >= len(drawn_rungs) * COST
    else:
        plans = [entry.kind for entry in entries].count("plan")
        assert plans == 1 or (plans == 0 and not charges)
        assert used == (len(charges),) * plans
    if scenario == "selective":
        exposures = [entry.release_id for entry in ledger.entries(f"{account}-central") if entry.kind == "exposure"]
        assert exposures == ["run"] * len(charges)
    assert all(charge.event == EVENT for charge in charges)
    return [charge for charge in charges if charge.state is ChargeState.COMMITTED]


def _emptied(folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def _drawn(folder, account, rung="*"):
    return {path.read_text() for path in folder.glob(f"drawn-{account}-{rung}-*")}


def _served(folder, account, rung):
    path = folder / f"served-{account}-{rung}"
    return set(path.read_text().split()) if path.exists() else set()
