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
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal

from dp_accounting.dp_event import DpEvent
from ray.tune.search import Searcher
from ray.tune.utils import merge_dicts
from sqlalchemy import make_url

from rayprivacy.core.errors import BudgetRefusedError, ConfigError
from rayprivacy.core.mirror.uris import sounds_secret
from rayprivacy.core.units import Protection
from rayprivacy.ledger.accounts import check_protection
from rayprivacy.ledger.api import LedgerApi
from rayprivacy.ledger.service import Address
from rayprivacy.runs.account import whole
from rayprivacy.tuning.affordability import can_pay
from rayprivacy.tuning.trial_charges import TrialCharges, trial_release
from rayprivacy.tuning.wrapped import Candidate, WrappedSearcher

Price = Callable[[dict[str, Any]], Sequence[DpEvent]]
_STATE = ("_running", "_waiting", "_started", "_constants", "_head", "exhausted")


class BudgetedSearcher(WrappedSearcher):
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
            repeatable: whether a trial that runs again draws the same noise (see `trial_charges`).
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
        self._by_search = charges == "search"
        self._charges = TrialCharges(account, protection or Protection(), repeatable)
        self._address = _address(ledger, ledger_key) if isinstance(ledger, str) else None
        self._ledger = None if isinstance(ledger, str) else ledger
        self._constants: dict[str, Any] = {}
        self._head: str | None = None
        with self._open() as opened:
            check_protection(opened.account(account), self._charges.protection)

    @property
    def searcher(self) -> Searcher:
        """The wrapped searcher, which Ray Tune saves by itself."""
        return self._inner

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any) -> bool:
        """Pass on metric, mode and space of `tune.Tuner`, and keep the constants of `param_space`."""
        self._constants = config
        accepted = self._inner.set_search_properties(metric, mode, config, **spec)
        self._metric = self._inner.metric
        self._mode = self._inner.mode
        return accepted

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        """Ask the wrapped searcher whether it limits concurrent trials by itself."""
        return self._inner.set_max_concurrency(max_concurrent)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Commit the charge of a trial that came to its end, with its figures; what failed stays charged."""
        ended = self._running.get(trial_id)
        if ended and ended.charge and result and not error:
            with self._open() as ledger:
                self._charges.end(ledger, ended.charge, self._reported(result))
        super().on_trial_complete(trial_id, result, error)

    def save(self, checkpoint_path: str) -> None:
        """Save the wrapped searcher."""
        self._inner.save(checkpoint_path)

    def restore(self, checkpoint_path: str) -> None:
        """Restore the wrapped searcher."""
        self._inner.restore(checkpoint_path)

    def get_state(self) -> dict[str, Any]:
        """What Ray Tune keeps of this searcher beside the wrapped one."""
        return {name: getattr(self, name) for name in _STATE}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on with a search; trials that were running run again, and are charged again unless they are repeatable.

        Raises:
            BudgetRefusedError: the account cannot pay for them.
        """
        self.__dict__.update(state)
        for interrupted in self._running.values():
            if interrupted.charge is not None:
                self._charge(interrupted)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_ledger": None}

    def _candidate(self, name: str, config: Mapping[str, Any]) -> Candidate:
        everything = merge_dicts(self._constants, dict(config))
        events = self._price(everything)
        release = trial_release(self._name, everything)
        return Candidate(name, config, release, [(release, event) for event in events])

    def _admit(self, candidate: Candidate) -> bool:
        if not candidate.bill:
            return True
        if self._by_search:
            try:
                self._charge(candidate)
            except BudgetRefusedError:
                return False
            return True
        bills = [each.bill for each in (*self._running.values(), candidate)]
        with self._open() as ledger:
            return can_pay(ledger, self._charges.account, bills, self._charges.protection)

    def _charge(self, candidate: Candidate) -> None:
        with self._open() as ledger:
            candidate.charge = self._charges.begin(ledger, candidate.release, self._whole(candidate))

    def _figures(self, candidate: Candidate) -> dict[str, Any] | None:
        first = candidate.release not in self._started
        if not (self._by_search and candidate.bill) or (self._charges.repeatable and first):
            return None
        with self._open() as ledger:
            return self._charges.figures(ledger, candidate.release, self._whole(candidate))

    def _whole(self, candidate: Candidate) -> DpEvent:
        return whole([event for _, event in candidate.bill])

    def _reported(self, result: Mapping[str, Any]) -> dict[str, float]:
        metrics = [self._metric] if isinstance(self._metric, str) else self._metric or []
        return {name: float(result[name]) for name in (*metrics, "training_iteration") if name in result}

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
