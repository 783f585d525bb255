"""Any sequence of calls, by two holders, with reopening: the ledger does what a page of plain Python does."""

import itertools
import uuid
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

import pytest
from dp_accounting import GaussianDpEvent, LaplaceDpEvent, SelfComposedDpEvent
from effort import EFFORT
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from usual import TERMS

from rayprivacy.accounting.events import MetricLocalDpEvent
from rayprivacy.core.errors import BudgetRefusedError, LeaseHeldError, LedgerError
from rayprivacy.core.units import AccountKind
from rayprivacy.ledger.charges import Charge
from rayprivacy.ledger.store import Ledger

ORDER = 16.0
SIGMAS = (2.5, 4.0, 9.0)  # two or three of the first fill an account
GAUSSIANS = tuple(GaussianDpEvent(sigma) for sigma in SIGMAS)
TRAINING = SelfComposedDpEvent(GaussianDpEvent(12.0), 4)
METRIC = tuple(MetricLocalDpEvent(0.1, 1.5, tokens) for tokens in (9, 4, 1))
PLAN = (SelfComposedDpEvent(GaussianDpEvent(9.0), 3), SelfComposedDpEvent(LaplaceDpEvent(9.0), 2))
PLANS: dict[tuple[int, ...], Any] = {  # by how often their lines may run
    (3, 2): PLAN,
    (2, 3): (SelfComposedDpEvent(GaussianDpEvent(9.0), 2), SelfComposedDpEvent(LaplaceDpEvent(9.0), 3)),
}
COMPOSITIONS: dict[str, tuple[dict[str, Any], tuple[Any, ...]]] = {
    "gdp": ({}, (*GAUSSIANS, TRAINING)),
    "zcdp": ({}, (GAUSSIANS[0], LaplaceDpEvent(2.5), TRAINING)),
    "rdp": ({"order": ORDER}, (*GAUSSIANS, TRAINING)),
    "metric": ({"kind": AccountKind.METRIC_LOCAL, "protected": ""}, METRIC),
    "pld": ({}, (GaussianDpEvent(9.0), LaplaceDpEvent(9.0), PLAN[0])),
    "selective": ({"kind": AccountKind.SELECTIVE, "policy": "phones"}, (*GAUSSIANS, TRAINING)),
}


def price(composition, event):
    """The exact cost of an event, without the ledger."""
    if composition == "metric":
        return (Fraction(event.epsilon) * Fraction(event.diameter) * event.tokens,)
    leaf, count = (event.event, event.count) if isinstance(event, SelfComposedDpEvent) else (event, 1)
    if composition == "pld":
        return (count, 0) if isinstance(leaf, GaussianDpEvent) else (0, count)
    squared = count / Fraction(leaf.noise_multiplier) ** 2
    return (squared * {"zcdp": Fraction(1, 2), "rdp": Fraction(ORDER) / 2}.get(composition, 1),)


State = Literal["reserved", "started", "committed", "cancelled"]
Key = tuple[str, str, int]  # release, input, rung


def on_grid(price):
    """The least multiple of 2^-80 that is not below a price."""
    return -((-price * 2**80) // 1)


@dataclass
class ModelCharge:
    key: Key
    event: Any
    cost: tuple[int, ...]
    state: State = "reserved"
    token: int = 0
    holder: str = ""
    term_runs: bool = False
    output: bytes | None = None


@dataclass
class ModelAccount:
    """An account with the costs and limits of its rule."""

    limits: tuple[int, ...]
    entries: int
    charges: list[ModelCharge] = field(default_factory=list)

    def total(self, *states):
        costs = [charge.cost for charge in self.charges if charge.state in states]
        return tuple(sum(cost[i] for cost in costs) for i in range(len(self.limits)))

    def live(self, key):
        found = [charge for charge in self.charges if charge.key == key and charge.state != "cancelled"]
        assert len(found) <= 1
        return found[0] if found else None

    def fits(self, cost):
        used = self.total("reserved", "started", "committed")
        return all(u + c <= most for u, c, most in zip(used, cost, self.limits, strict=True))

    def reserve(self, key, event, cost):
        release, digest, rung = key
        paid = self.live(key)
        if paid is not None:
            if paid.event != event:
                raise LedgerError
            return paid
        if rung > 1 and self.live((release, digest, rung - 1)) is None:
            raise LedgerError
        if not self.fits(cost):
            raise BudgetRefusedError
        self.charges.append(ModelCharge(key, event, cost))
        self.entries += 1
        return self.charges[-1]

    def register_plan(self, limits):
        if self.charges or len(self.limits) == 1:
            raise LedgerError
        self.limits = limits
        self.entries += 1

    def start(self, charge, holder, term_runs):
        if charge.state == "cancelled":
            raise LedgerError
        if charge.state == "committed" or (charge.state == "started" and charge.holder == holder):
            return
        if charge.state == "started" and charge.term_runs:
            raise LeaseHeldError
        charge.state, charge.token, charge.holder, charge.term_runs = "started", charge.token + 1, holder, term_runs
        self.entries += 1

    def renew(self, charge, token, term_runs):
        self._fence(charge, token)
        charge.term_runs = term_runs
        self.entries += 1

    def commit(self, charge, token, output):
        if charge.state == "committed":
            return
        self._fence(charge, token)
        charge.state, charge.output = "committed", output
        self.entries += 1

    def cancel(self, charge):
        if charge.state == "cancelled":
            return
        if charge.state != "reserved":
            raise LedgerError
        release, digest, rung = charge.key
        if rung and self.live((release, digest, rung + 1)) is not None:
            raise LedgerError
        charge.state = "cancelled"
        self.entries += 1

    @staticmethod
    def _fence(charge, token):
        if charge.state != "started" or charge.token != token:
            raise LedgerError


class Store:
    """One database for all examples: each opens an account of its own."""

    def __init__(self, url, composition):
        self.url, self.composition, self.ledger = url, composition, Ledger.open(url)
        self.second = Ledger.open(url)
        self.head = self.ledger.head()
        self.accounts = 0

    def reopen(self):
        self.head = self.ledger.head()
        self.ledger.close()
        self.ledger = Ledger.open(self.url, expected_head=self.head)

    def open_account(self):
        name, corpus = uuid.uuid4().hex, uuid.uuid4().hex
        more, events = COMPOSITIONS[self.composition]
        rule_name = "gdp" if self.composition == "selective" else self.composition
        self.ledger.create_account(f"{name}-central", *TERMS, corpus=corpus)
        self.ledger.create_account(name, *TERMS, composition=rule_name, corpus=corpus, **more)
        if self.composition == "pld":
            self.ledger.register_plan(name, PLAN)
        self.accounts += 2
        found: Any = self.ledger.terms(name).rule
        model = ModelAccount((3, 2), 2) if self.composition == "pld" else ModelAccount((found.limit,), 1)
        return name, self._costs(name, events), model

    def _costs(self, name, events):
        filter_ = self.ledger.terms(name).rule
        costs = {repr(event): filter_.cost(event, (0,) * filter_.size) for event in events}
        for event in events:
            exact = price(self.composition, event)[: filter_.size]
            for have, want in zip(costs[repr(event)], exact, strict=True):
                if self.composition == "rdp":  # floats, rounded up
                    assert want <= Fraction(have, 2**80) <= want * (1 + Fraction(1, 10**8))
                else:
                    assert have == (want if self.composition == "pld" else on_grid(Fraction(want)))
        return costs


class LedgerMachine(RuleBasedStateMachine):
    store: Store

    def __init__(self):
        super().__init__()
        self.name, self.costs, self.model = self.store.open_account()
        self.events = COMPOSITIONS[self.store.composition][1]
        self.protection = self.store.ledger.account(self.name).protection
        self.handles: list[tuple[Charge, ModelCharge]] = []
        self.replans = 0
        self.outputs = itertools.count()

    @property
    def ledger(self):
        return self.store.ledger

    def both(self, modelled, real):
        """Call both; they must raise the very same, or neither of them."""
        raised: list[type | None] = []
        results = []
        for call in (modelled, real):
            try:
                results.append(call())
                raised.append(None)
            except (LedgerError, BudgetRefusedError) as error:
                raised.append(type(error))
        assert raised[0] == raised[1]
        return results or None

    def known(self, number):
        return self.handles[number % len(self.handles)]

    @rule(
        release=st.sampled_from("rs"),
        digest=st.sampled_from("dde"),
        rung=st.sampled_from([0, 0, 1, 2, 3]),
        event=st.integers(0, 3),
    )
    def reserve(self, release, digest, rung, event):
        chosen = self.events[event % len(self.events)]
        cost = self.costs[repr(chosen)]
        done = self.both(
            lambda: self.model.reserve((release, digest, rung), chosen, cost),
            lambda: self.ledger.reserve(self.name, release, digest, chosen, rung=rung, protection=self.protection),
        )
        if done:
            self.handles.append((done[1], done[0]))
            self.agree(*done)

    @precondition(lambda self: self.store.composition in ("pld", "gdp") and (not self.handles or self.replans < 2))
    @rule(limits=st.sampled_from([*PLANS]), another=st.booleans())
    def register_plan(self, limits, another):
        """Also by a process that knows nothing of this one, which may remember the earlier plan."""
        self.replans += 1
        ledger = self.store.second if another else self.ledger
        self.both(
            lambda: self.model.register_plan(limits), lambda: ledger.register_plan(self.name, PLANS[limits]) and None
        )

    @precondition(lambda self: self.handles)
    @rule(number=st.integers(0, 50), holder=st.sampled_from(["host-a:1:1", "host-b:2:2"]), term_runs=st.booleans())
    def start(self, number, holder, term_runs):
        charge, modelled = self.known(number)
        done = self.both(
            lambda: self.model.start(modelled, holder, term_runs),
            lambda: self.ledger.start(charge, holder=holder, seconds=1000 if term_runs else -1),
        )
        if done:
            self.handles.append((done[1], modelled))
            self.agree(modelled, done[1])

    @precondition(lambda self: self.handles)
    @rule(number=st.integers(0, 50), term_runs=st.booleans())
    def renew(self, number, term_runs):
        charge, modelled = self.known(number)
        self.both(
            lambda: self.model.renew(modelled, charge.lease.token, term_runs),
            lambda: self.ledger.renew(charge, seconds=1000 if term_runs else -1),
        )

    @precondition(lambda self: self.handles)
    @rule(number=st.integers(0, 50), last=st.booleans())
    def commit(self, number, last):
        charge, modelled = self.handles[-1] if last else self.known(number)  # an older handle may hold a stale token
        output = b"%d" % next(self.outputs)
        self.both(
            lambda: self.model.commit(modelled, charge.lease.token, output),
            lambda: self.ledger.commit_output(charge, output),
        )

    @precondition(lambda self: self.handles)
    @rule(number=st.integers(0, 50))
    def cancel(self, number):
        charge, modelled = self.known(number)
        self.both(lambda: self.model.cancel(modelled), lambda: self.ledger.cancel(charge))

    @rule()
    def reopen(self):
        self.store.reopen()

    @precondition(lambda self: self.handles)
    @rule(number=st.integers(0, 50))
    def look_up(self, number):
        charge, modelled = self.known(number)
        assert self.ledger.output(charge) == modelled.output
        found = self.ledger.find_charge(self.name, *modelled.key)
        wanted = self.model.live(modelled.key)
        assert (found is None) == (wanted is None)
        if found and wanted:
            self.agree(wanted, found)

    def agree(self, modelled, charge):
        assert (charge.release_id, charge.input_digest, charge.rung) == modelled.key
        assert (charge.state, charge.lease.token) == (modelled.state, modelled.token)
        assert (charge.event, charge.cost) == (modelled.event, modelled.cost)

    @invariant()
    def the_books_agree(self):
        balance, total = self.ledger.status(self.name).balance, self.model.total
        assert (balance.reserved, balance.started) == (total("reserved"), total("started"))
        assert (balance.committed, balance.used) == (total("committed"), total("reserved", "started", "committed"))
        assert self.model.fits((0,) * len(balance.used))
        assert len(self.ledger.entries(self.name)) == self.model.entries

    def teardown(self):
        states = [line.state for line in self.ledger.lines(self.name)]
        assert states == [charge.state for charge in self.model.charges]
        exposing = self.store.composition in ("selective", "metric")
        assert self.ledger.status(f"{self.name}-central").exposures == exposing * len(self.model.charges)
        assert self.ledger.verify().accounts == self.store.accounts


@pytest.mark.timeout(600)  # a failure is made smaller for up to five minutes
@pytest.mark.parametrize("composition", COMPOSITIONS)
def test_the_ledger_does_what_the_model_does(url, composition):
    opened = Store(url, composition)
    machine = type("Machine", (LedgerMachine,), {"store": opened})
    examples = EFFORT * (5 if url.startswith("sqlite") or EFFORT > 1 else 2)
    config = settings(
        max_examples=examples,
        stateful_step_count=25,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
        phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
        print_blob=True,
    )
    run_state_machine_as_test(machine, settings=config)
    assert opened.accounts >= 2 * examples
    opened.ledger.close()
    opened.second.close()
