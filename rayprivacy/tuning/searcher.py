"""Optuna's suggestions for the searches of space files: each is a recipe that charges itself, chunk by chunk."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ray.tune.search import Searcher
from ray.tune.search.optuna import OptunaSearch

from rayprivacy.core.errors import ConfigError
from rayprivacy.ledger.api import LedgerApi
from rayprivacy.tuning.affordability import can_pay
from rayprivacy.tuning.names import FAILED, REFUSED, UTILITY
from rayprivacy.tuning.trial_recipes import Trials, Values
from rayprivacy.tuning.wrapped import Candidate, WrappedSearcher


class PayingSearch(WrappedSearcher):
    """The searcher of `pay_for_all` and `public`; `failure` is what broke it."""

    def __init__(
        self,
        inner: OptunaSearch,
        trials: Trials,
        ledger: LedgerApi | None,
        known: Iterable[Values],
        tell: Callable[[Values, dict[str, Any]], None],
    ) -> None:
        """Wrap Optuna's search.

        Args:
            inner: Optuna's search.
            trials: the trials.
            ledger: where they are charged; None where they are free.
            known: values of trials that ended before; the same values again would be the same release.
            tell: told the values and last figures of each trial that ends.
        """
        super().__init__(inner, waits=True)
        self._trials = trials
        self._ledger = ledger
        self._tell = tell
        self._started = {trials.recipe(values).release_id for values in known}
        self.failure: ConfigError | None = None

    def suggest(self, trial_id: str) -> Any:
        """The values of the next trial, None to be asked again later, or FINISHED."""
        try:
            return super().suggest(trial_id)
        except ConfigError as error:
            self.failure = error
            return Searcher.FINISHED

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Pass a report on, if it has a figure."""
        if UTILITY in result:
            super().on_trial_result(trial_id, result)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Pass the end of a trial on, pruned or not, and tell of it."""
        figures = result or {}
        values = self._running[trial_id].config
        bad = error or REFUSED in figures or FAILED in figures
        super().on_trial_complete(trial_id, None if bad else result, bad)
        if REFUSED in figures:
            self.exhausted = "the account had too little left for a trial that was running"
        self._tell(values, figures)

    def save(self, checkpoint_path: str) -> None:
        """Nothing: Optuna's study has a journal of its own, and a search resumes from there."""

    def __getstate__(self) -> dict[str, Any]:
        # Ray Tune pickles its settings to be able to restore a search, and this one is resumed from its journal.
        return {"_metric": self._metric, "_mode": self._mode}

    def _candidate(self, name: str, config: Mapping[str, Any]) -> Candidate:
        bill = self._trials.bill(config)
        return Candidate(name, config, self._trials.recipe(config).release_id, bill)

    def _admit(self, candidate: Candidate) -> bool:
        budget = self._trials.space.budget
        if self._ledger is None or budget is None:
            return True
        bills = [each.bill for each in (*self._running.values(), candidate)]
        return can_pay(self._ledger, budget.account, bills, self._trials.protection(candidate.config))
