"""Optuna's suggestions for Ray Tune, each let through only when it is feasible and the account can pay for all of it.

- infeasible: the accountant finds no noise for the budget, or a value is out of the recipe's range. Told to Optuna as
  failed, before anything runs.
- known already: equal values are the same release, and its figure is known.
- unaffordable: the search ends there. While trials run that may be pruned, and so leave something, it waits.
"""

from collections.abc import Callable, Iterable
from typing import Any

from ray.tune.search import Searcher
from ray.tune.search.optuna import OptunaSearch

from rayprivacy.core.errors import ConfigError
from rayprivacy.tuning.purse import Purse
from rayprivacy.tuning.trial import FAILED, REFUSED, UTILITY
from rayprivacy.tuning.trials import Trials, Values

MOST_REFUSED = 200  # in a row


class PayingSearch(Searcher):
    """A searcher around Optuna's; `exhausted` says why the search ended early, `failure` what broke it."""

    def __init__(
        self,
        inner: OptunaSearch,
        trials: Trials,
        purse: Purse | None,
        known: Iterable[Values],
        tell: Callable[[Values, dict[str, Any]], None],
    ) -> None:
        """Wrap a search.

        Args:
            inner: Optuna's search.
            trials: the trials.
            purse: the account, or None where trials are free.
            known: values of trials that ended before; the same values again would be the same release.
            tell: told the values and last figures of each trial that ends.
        """
        super().__init__(metric=inner.metric, mode=inner.mode)
        self._inner, self._trials, self._purse, self._tell = inner, trials, purse, tell
        self._names: dict[str, str] = {}
        self._releases = {trials.recipe(values).release_id for values in known}
        self._running: dict[str, Values] = {}
        self._waiting: tuple[str, Values] | None = None
        self.exhausted: str | None = None
        self.failure: ConfigError | None = None

    def suggest(self, trial_id: str) -> Any:
        """The next trial, None to be asked again later, or FINISHED."""
        try:
            self._waiting = self._waiting or self._feasible(trial_id)
        except ConfigError as error:
            self.failure = error
        if self._waiting is None:
            return Searcher.FINISHED
        name, values = self._waiting
        if self._purse and not self._purse.fits(values, self._running.values()):
            return self._out_of_money(name)
        self._names[trial_id], self._running[trial_id], self._waiting = name, values, None
        return {"values": dict(values)}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Pass a report on to Optuna."""
        if UTILITY in result:
            self._inner.on_trial_result(self._names[trial_id], result)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Pass the end of a trial on to Optuna, pruned or not."""
        values, figures = self._running.pop(trial_id), result or {}
        bad = error or REFUSED in figures or FAILED in figures
        self._inner.on_trial_complete(self._names.pop(trial_id), None if bad else result, error=bad)
        if REFUSED in figures:
            self.exhausted = "the account had too little left for a trial that was running"
        self._tell(values, figures)

    def save(self, checkpoint_path: str) -> None:
        """Nothing: Optuna's study has a journal of its own, and a search resumes from there."""

    def __getstate__(self) -> dict[str, Any]:
        # Ray Tune pickles its settings so that it could restore a search itself, which nobody asks of it here.
        return {"_metric": self._metric, "_mode": self._mode}

    def _feasible(self, trial_id: str) -> tuple[str, Values] | None:
        reason = ""
        for attempt in range(MOST_REFUSED):
            name = f"{trial_id}-{attempt}"
            values: Values = self._inner.suggest(name) or {}
            try:
                self._trials.charges(values)
            except ConfigError as error:
                reason = str(error)
            else:
                release = self._trials.recipe(values).release_id
                if release not in self._releases:
                    self._releases.add(release)
                    return name, values
            self._inner.on_trial_complete(name, error=True)
        if reason:
            raise ConfigError(f"{MOST_REFUSED} suggestions of the space in a row are infeasible, the last as {reason}")
        self.exhausted = "the space has no other values"
        return None

    def _out_of_money(self, name: str) -> Any:
        if self._running and self._trials.space.pruning:
            return None
        self._inner.on_trial_complete(name, error=True)
        self._waiting = None
        self.exhausted = "the account has too little left for another trial"
        return Searcher.FINISHED
