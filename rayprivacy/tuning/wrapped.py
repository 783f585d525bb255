"""A searcher around another one, which passes on the suggestions that can be run, are new, and are admitted.

- A suggestion that cannot be run (no noise is enough for its budget, a value is out of range) is reported to the inner
  searcher as failed, before anything runs, and the next one is asked for.
- Equal configs are the same release. What is running, or has run in this search, is not started again; the inner
  searcher is told its figures where they are known.
- What the account cannot pay ends the search. A search whose running trials may charge less than their price waits for
  them first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ray.tune.search import Searcher

from rayprivacy.core.errors import ConfigError
from rayprivacy.ledger.charges import Charge
from rayprivacy.tuning.affordability import Owed

MOST_SKIPPED = 200  # in a row
NO_BUDGET = "the account has too little left for another trial"


@dataclass
class Candidate:
    """A suggestion that can be run.

    Attributes:
        name: the trial id under which the inner searcher made it.
        config: what Ray Tune hands to the trial.
        release: of the trial.
        bill: every charge of the trial, in order.
        charge: the charge of this run of the trial, where the searcher makes it.
    """

    name: str
    config: Mapping[str, Any]
    release: str
    bill: Sequence[Owed]
    charge: Charge | None = None


class WrappedSearcher(Searcher):
    """The loop that all searches under a budget share; subclasses price a suggestion and admit it.

    Attributes:
        exhausted: why the search ended before all trials were suggested; None if it did not.
    """

    def __init__(self, inner: Searcher, *, waits: bool) -> None:
        """Wrap a searcher.

        Args:
            inner: makes the suggestions.
            waits: whether running trials may charge less than their price, so that a trial that is not affordable now
                may become so.
        """
        super().__init__(metric=inner.metric, mode=inner.mode)
        self._inner = inner
        self._waits = waits
        self._running: dict[str, Candidate] = {}
        self._waiting: Candidate | None = None
        self._started: set[str] = set()
        self.exhausted: str | None = None

    def suggest(self, trial_id: str) -> Any:
        """The config of the next trial, None to be asked again later, or FINISHED.

        Raises:
            ConfigError: none of many suggestions in a row could be run.
        """
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

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Pass a report on."""
        if trial_id in self._running:
            self._inner.on_trial_result(self._running[trial_id].name, result)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Pass the end of a trial on."""
        ended = self._running.pop(trial_id, None)
        if ended is not None:
            self._inner.on_trial_complete(ended.name, result, error)

    def _candidate(self, name: str, config: Mapping[str, Any]) -> Candidate:
        """A suggestion with its price.

        Raises:
            ConfigError: it cannot be run.
        """
        raise NotImplementedError

    def _admit(self, candidate: Candidate) -> bool:
        """Whether the account can pay for the trial."""
        raise NotImplementedError

    def _figures(self, candidate: Candidate) -> dict[str, Any] | None:
        """The last report of an earlier run of the same trial, which then need not run; None where there is none."""
        return None

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
