"""A Ray Tune searcher for a trainable of your own, whose trials are paid by an account of the ledger.

    suggestion -> price: list of events -> LEDGER: reserve, start -> trial -> LEDGER: commit the last figures
                                              | refused
                                              v
                                       the search has FINISHED

`price` says what a trial releases, and the account pays exactly that. So it must cover all that leaves a trial,
including the metric that steers the search. The searcher charges (`charges="search"`), unless the trials do so
themselves (`charges="trial"`); then it starts no trial that the account cannot pay to its end beside those that run.

What the searcher cannot see: Ray Tune runs a trial again without asking it after a failure (`max_failures`, 0 when left
out), after a preemption, and when a search is restored with `resume_errored` or `restart_errored`; and schedulers of
population-based training change the config of a running trial. Do not use these for trials that draw fresh noise,
unless they charge themselves. A search that is restored runs its interrupted trials again, and charges them again
unless they are repeatable.

Searches of space files run through the same loop (`PricedSearcher`):

- A suggestion that cannot be run (no noise is enough for its budget, a value is out of range) is reported to the inner
  searcher as failed, before anything runs, and the next one is asked for.
- Equal configs are the same release. A trial that is running, or has run in this search, is not started again; the
  inner searcher is told its figures where they are known.
- A trial that the account cannot pay ends the search. A search whose running trials may charge less than
  their price waits for them first.

Privacy argument. A charge is made for each run of a trial, and started before the trial is. It pays for one draw of a
trial's noise. A trial of the user's own may draw fresh noise whenever it runs, so a second run of an equal config is a
second release. Hence a trial that came to its end is not run again: the ledger stores its last figures, and serves
them. A trial that did not (it failed, or the search was killed) stays charged, since its noise may have been seen, and
its next run is a release of its own, charged anew: `<release>-2`, `<release>-3`, ...

A trial is `repeatable` when all of its noise is a function of a secret key and of its config, as it is behind the
release gate: a second run releases the same once more. It runs again on the charge that it has.

The ledger alone decides whether a charge is admitted. A search whose trials charge themselves looks first (`can_pay`),
in the one process that starts trials, so that no trial begins that the account cannot pay to its end, however many run
at once.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from dp_accounting.dp_event import DpEvent
from ray.tune.search import Searcher
from ray.tune.utils import merge_dicts
from sqlalchemy import make_url

from rayprivacy.core.errors import BudgetRefusedError, ConfigError, LeaseHeldError
from rayprivacy.core.files import Json
from rayprivacy.core.private import digest_bytes, digest_json
from rayprivacy.core.units import Protection
from rayprivacy.core.uris import sounds_secret
from rayprivacy.ledger.accounts import check_protection
from rayprivacy.ledger.charges import Charge, ChargeState, same_event
from rayprivacy.ledger.service import Address
from rayprivacy.ledger.store import LedgerApi
from rayprivacy.runs.account import whole

Owed = tuple[str, DpEvent]  # a release, and one charge of it
Price = Callable[[Json], Sequence[DpEvent]]
MOST_SKIPPED = 200  # in a row
NO_BUDGET = "the account has too little left for another trial"
_STATE = ("_running", "_waiting", "_started", "_constants", "_head", "exhausted")


def trial_release(name: str, config: Mapping[str, Any]) -> str:
    """The release id of a trial: the name of its search, and a digest of its whole config.

    >>> trial_release("lr", {"rate": 0.5}) == trial_release("lr", {"rate": np.float64(0.5)})
    True

    Raises:
        ConfigError: a value of the config has no JSON form.
    """
    return f"{name}-{digest_json({key: _plain(key, value) for key, value in config.items()})[:16]}"


@dataclass(frozen=True)
class TrialCharges:
    """How a search charges one account; a trial that is repeatable draws the same noise when it runs again."""

    account: str
    protection: Protection
    repeatable: bool

    def begin(self, ledger: LedgerApi, release: str, event: DpEvent) -> Charge:
        """Charge the next run of a trial, and start the charge; LeaseHeldError if another process runs it."""
        run = 1
        while True:
            charge = ledger.reserve(self.account, *_run(release, run), event, protection=self.protection)
            if self.repeatable:
                return ledger.start(charge)
            if charge.state is ChargeState.RESERVED:
                with suppress(LeaseHeldError):  # another process was faster, and this run is its own
                    started = ledger.start(charge)
                    if started.lease.token == 1:
                        return started
            run += 1

    def end(self, ledger: LedgerApi, charge: Charge, figures: Mapping[str, float]) -> None:
        """Store the last figures of a trial that came to its end."""
        with suppress(LeaseHeldError):  # a process that runs the same trial took it over, and stores its own
            ledger.commit_output(ledger.start(charge), json.dumps(dict(figures)).encode())

    def figures(self, ledger: LedgerApi, release: str, event: DpEvent) -> dict[str, float] | None:
        """The last figures of a trial that came to its end before; None if none of its runs did."""
        run = 1
        while True:
            name, _ = _run(release, run)
            charges = live_charges(ledger, self.account, name)
            if not charges:
                return None
            charge = same_event(charges[0], event)
            if charge.state is ChargeState.COMMITTED:
                found: dict[str, float] = json.loads(ledger.output(charge) or b"{}")
                return found
            run += 1


def can_pay(ledger: LedgerApi, account: str, bills: Iterable[Sequence[Owed]], protection: Protection) -> bool:
    """Whether the account can pay all that several trials have not charged yet; a bill is in the order of charging."""
    unpaid = [event for bill in bills for event in _unpaid(ledger, account, bill)]
    if not unpaid:
        return True
    try:
        ledger.check(account, whole(unpaid), protection)
    except BudgetRefusedError:
        return False
    return True


def live_charges(ledger: LedgerApi, account: str, release: str) -> list[Charge]:
    """The charges of a release that have not been cancelled."""
    return [charge for charge in ledger.charges_of(account, release) if charge.is_live]


def _unpaid(ledger: LedgerApi, account: str, bill: Sequence[Owed]) -> list[DpEvent]:
    """The charges of a trial that are not made yet; those of one release are made in order."""
    paid = {release: len(live_charges(ledger, account, release)) for release, _ in bill}
    unpaid = []
    for release, event in bill:
        if paid[release] == 0:
            unpaid.append(event)
        else:
            paid[release] -= 1
    return unpaid


def _run(release: str, run: int) -> tuple[str, str]:
    """Release id and input digest of one run; the search does not know the corpus, which its name stands for."""
    name = release if run == 1 else f"{release}-{run}"
    return name, digest_bytes(name.encode())


def _plain(key: str, value: Any) -> Any:
    try:
        return json.loads(json.dumps(value, default=_scalar, allow_nan=False))
    except (TypeError, ValueError):
        raise ConfigError(
            f"the config of a trial has '{key}' of type {type(value).__name__}, which has no JSON form that could name"
            " the trial: search plain values, and hand over the rest with ray.tune.with_parameters."
        ) from None


def _scalar(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError


@dataclass
class Candidate:
    """A suggestion that can be run."""

    name: str  # the trial id under which the inner searcher made it
    config: Mapping[str, Any]
    release: str
    bill: Sequence[Owed]  # every charge of the trial, in order
    charge: Charge | None = None  # of this run of the trial, where the searcher makes it

    @property
    def event(self) -> DpEvent:
        """The whole bill as one event."""
        return whole([event for _, event in self.bill])


class PricedSearcher(Searcher):
    """The loop that all searches under a budget share; subclasses price a suggestion and admit it.

    Attributes:
        exhausted: why the search ended before all trials were suggested; None if it did not.
    """

    def __init__(self, inner: Searcher, *, waits: bool) -> None:
        # With `waits`, running trials may charge less than their price, so that a trial may become affordable.
        super().__init__(metric=inner.metric, mode=inner.mode)
        self._inner = inner
        self._waits = waits
        self._running: dict[str, Candidate] = {}
        self._waiting: Candidate | None = None
        self._started: set[str] = set()
        self.exhausted: str | None = None

    def suggest(self, trial_id: str) -> Any:
        """The config of the next trial, None to be asked again later, or FINISHED."""
        found = self._waiting or self._next(trial_id)
        if not isinstance(found, Candidate):
            return found
        self._waiting = None
        if self._admit(found):
            self._started.add(found.release)
            self._running[trial_id] = found
            return dict(found.config)
        if self._waits and self._running:
            self._waiting = found
            return None
        self._inner.on_trial_complete(found.name, error=True)
        self.exhausted = NO_BUDGET
        return Searcher.FINISHED

    def on_trial_result(self, trial_id: str, result: Json) -> None:
        """Pass a report on."""
        if trial_id in self._running:
            self._inner.on_trial_result(self._running[trial_id].name, result)

    def on_trial_complete(self, trial_id: str, result: Json | None = None, error: bool = False) -> None:
        """Pass the end of a trial on."""
        ended = self._running.pop(trial_id, None)
        if ended is not None:
            self._inner.on_trial_complete(ended.name, result, error)

    def _candidate(self, name: str, config: Mapping[str, Any]) -> Candidate:
        """A suggestion with its price; raises ConfigError for one that cannot be run."""
        raise NotImplementedError

    def _admit(self, candidate: Candidate) -> bool:
        raise NotImplementedError

    def _figures(self, candidate: Candidate) -> dict[str, float] | None:
        """The last report of an earlier run of the same trial, which then need not run; None where there is none."""
        return None

    def _bills(self, candidate: Candidate) -> list[Sequence[Owed]]:
        return [each.bill for each in (*self._running.values(), candidate)]

    def _next(self, trial_id: str) -> Candidate | str | None:
        reason = ""
        for attempt in range(MOST_SKIPPED):
            name = f"{trial_id}-{attempt}"
            config: Any = self._inner.suggest(name)
            if config is None:
                return None
            if config == Searcher.FINISHED:
                self.exhausted = "the inner searcher has finished"
                return Searcher.FINISHED
            figures = None
            try:
                candidate = self._candidate(name, config)
            except ConfigError as error:
                reason = str(error)
            else:
                figures = self._figures(candidate)
                if figures is None and candidate.release not in self._started:
                    return candidate
            self._inner.on_trial_complete(name, figures, error=figures is None)
        if reason:
            raise ConfigError(f"{MOST_SKIPPED} suggestions of the space in a row are infeasible, the last as {reason}")
        self.exhausted = "the space has no other values"
        return Searcher.FINISHED


class BudgetedSearcher(PricedSearcher):
    """Any searcher of Ray Tune, under a budget.

    It may be wrapped in a `ConcurrencyLimiter`, or wrap one. Ray Tune pickles it; the copy opens the ledger again by
    its URL, and finds the charges there.
    """

    def __init__(
        self,
        searcher: Searcher,
        price: Price,
        ledger: str | LedgerApi,
        account: str,
        *,
        name: str,
        protection: Protection | None = None,
        charges: Literal["search", "trial"] = "search",
        repeatable: bool = False,
        ledger_key: str | Path | None = None,
    ) -> None:
        """Wrap a searcher.

        Args:
            searcher: makes the suggestions.
            price: the events of a trial, from its whole config: what was suggested, and the constants of `param_space`.
                It raises ConfigError for a config that cannot be run.
            ledger: URL of the ledger, without a password; or a ledger that is open, with which the search cannot be
                restored by another process.
            account: the account that pays; it must be open.
            name: of the search. It stands for the trainable and for the corpus: change it when one of them changes.
            protection: what the events protect; central user-level add-or-remove when left out.
            charges: `search`: this searcher charges a trial as a whole before it hands out its config. `trial`: the
                trial charges itself, as release `trial_release(name, config)`, in chunks or as a whole.
            repeatable: whether a trial that runs again draws the same noise (see `TrialCharges`).
            ledger_key: file of the key that authenticates the entries of the ledger at the URL.

        Raises:
            ConfigError: this is no searcher, or the URL holds a password.
            LedgerError: the account is not open, or protects something else.
        """
        if not isinstance(searcher, Searcher):
            raise ConfigError(
                f"searcher is a {type(searcher).__name__}, which is no ray.tune.search.Searcher and is never asked for"
                " one config at a time: use OptunaSearch, for random search with optuna.samplers.RandomSampler."
            )
        super().__init__(searcher, waits=charges == "trial")
        self._price = price
        self._name = name
        self._charges = TrialCharges(account, protection or Protection(), repeatable)
        self._address = _address(ledger, ledger_key) if isinstance(ledger, str) else None
        self._ledger = None if isinstance(ledger, str) else ledger
        self._constants: Json = {}
        self._head: str | None = None
        with self._open() as opened:
            check_protection(opened.account(account), self._charges.protection)

    @property
    def searcher(self) -> Searcher:
        """The wrapped searcher, which Ray Tune saves by itself."""
        return self._inner

    def set_search_properties(self, metric: str | None, mode: str | None, config: Json, **spec: Any) -> bool:
        """Pass on metric, mode and space of `tune.Tuner`, and keep the constants of `param_space`."""
        self._constants = config
        accepted = self._inner.set_search_properties(metric, mode, config, **spec)
        self._metric = self._inner.metric
        self._mode = self._inner.mode
        return accepted

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        """Ask the wrapped searcher whether it limits concurrent trials by itself."""
        return self._inner.set_max_concurrency(max_concurrent)

    def on_trial_complete(self, trial_id: str, result: Json | None = None, error: bool = False) -> None:
        """Commit the charge of a trial that came to its end, with its figures; what failed stays charged."""
        ended = self._running.get(trial_id)
        if ended and ended.charge and result and not error:
            metrics = [self._metric] if isinstance(self._metric, str) else self._metric or []
            named = [name for name in (*metrics, "training_iteration") if name in result]
            with self._open() as ledger:
                self._charges.end(ledger, ended.charge, {name: float(result[name]) for name in named})
        super().on_trial_complete(trial_id, result, error)

    def save(self, checkpoint_path: str) -> None:
        """Save the wrapped searcher."""
        self._inner.save(checkpoint_path)

    def restore(self, checkpoint_path: str) -> None:
        """Restore the wrapped searcher."""
        self._inner.restore(checkpoint_path)

    def get_state(self) -> Json:
        """What Ray Tune keeps of this searcher beside the wrapped one."""
        return {name: getattr(self, name) for name in _STATE}

    def set_state(self, state: Json) -> None:
        """Go on with a search; trials that were running run again, and are charged again unless they are repeatable."""
        self.__dict__.update(state)
        for interrupted in self._running.values():
            if interrupted.charge is not None:
                self._charge(interrupted)

    def __getstate__(self) -> Json:
        return self.__dict__ | {"_ledger": None}

    def _candidate(self, name: str, config: Mapping[str, Any]) -> Candidate:
        everything = merge_dicts(self._constants, dict(config))
        events = self._price(everything)
        release = trial_release(self._name, everything)
        return Candidate(name, config, release, [(release, event) for event in events])

    def _admit(self, candidate: Candidate) -> bool:
        if not candidate.bill:
            return True
        if not self._waits:
            try:
                self._charge(candidate)
            except BudgetRefusedError:
                return False
            return True
        with self._open() as ledger:
            return can_pay(ledger, self._charges.account, self._bills(candidate), self._charges.protection)

    def _charge(self, candidate: Candidate) -> None:
        with self._open() as ledger:
            candidate.charge = self._charges.begin(ledger, candidate.release, candidate.event)

    def _figures(self, candidate: Candidate) -> dict[str, float] | None:
        first = candidate.release not in self._started
        if self._waits or not candidate.bill or (self._charges.repeatable and first):
            return None
        with self._open() as ledger:
            return self._charges.figures(ledger, candidate.release, candidate.event)

    @contextmanager
    def _open(self) -> Iterator[LedgerApi]:
        if self._ledger is not None:
            yield self._ledger
        elif self._address is not None:
            with closing(self._address.open(self._head)) as ledger:
                yield ledger
                self._head = ledger.head()
        else:
            raise ConfigError("the search was begun with an open ledger, which is not restored: give the ledger's URL.")


def _address(url: str, key: str | Path | None) -> Address:
    address = Address.of(url, Path(key) if key else None)
    parsed = make_url(url)
    if parsed.password or any(map(sounds_secret, parsed.query)):
        raise ConfigError(
            "the ledger's URL holds a password, and Ray Tune would write it down: put it into a password file"
            " (PGPASSFILE, or ?passfile=... in the URL)."
        )
    return address
