"""What a search leaves: every trial with its spend, the best recipe, and the frontier of utility against epsilon.

It remembers by Optuna's study in a journal file: one that was killed goes on where it stopped, and asks for the trials
that were running first. What they had charged is charged, and is not charged again.
"""

import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import optuna
import pyarrow as pa
import pyarrow.parquet as pq
from optuna.samplers import RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState
from ray.tune.search.optuna import OptunaSearch

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.files import write_atomic
from rayprivacy.ledger.store import Ledger
from rayprivacy.tuning.budgeted import can_pay, live_charges
from rayprivacy.tuning.free_trials import FreeTrials
from rayprivacy.tuning.space import MetricConfig, Space
from rayprivacy.tuning.trainable import EPSILON, UTILITY
from rayprivacy.tuning.trials import Trials

Point = tuple[float, float, bool]  # epsilon, utility, whether it is the best
State = Literal["finished", "pruned", "refused", "failed", "infeasible"]
_NAME = "search"
_DIRECTIONS = {"min": StudyDirection.MINIMIZE, "max": StudyDirection.MAXIMIZE}


def frontier(points: Sequence[Point], mode: str) -> list[tuple[float, float]]:
    """The points that no other one matches in both, by epsilon; `mode` says whether small or large utility is good.

    >>> frontier([(1, 5.0, False), (2, 6.0, False), (3, 4.0, True)], "min")
    [(1, 5.0), (3, 4.0)]
    """
    sign, best, kept = 1 if mode == "min" else -1, float("inf"), []
    for epsilon, utility, _ in sorted(points, key=lambda point: (point[0], sign * point[1])):
        if sign * utility < best:
            best = sign * utility
            kept.append((epsilon, utility))
    return kept


def draw_frontier(points: Sequence[Point], metric: MetricConfig, path: Path) -> None:
    """Write the picture of every finished trial as a PNG file; trials of one epsilon stand above each other."""
    from matplotlib.figure import Figure  # an optional package, and slow to import

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    line = frontier(points, metric.mode)
    axes.plot(*zip(*line, strict=True), drawstyle="steps-post", color="#767676", linewidth=1, label="frontier")
    for best, marker, label in ((False, "o", "trial"), (True, "*", "best")):
        of_kind = [point[:2] for point in points if point[2] == best]
        if of_kind:
            axes.plot(*zip(*of_kind, strict=True), marker, markersize=12 if best else 6, label=label)
    good = "lower" if metric.mode == "min" else "higher"
    axes.set(xlabel="epsilon of the trial's recipe", ylabel=f"{metric.name} ({good} is better)")
    axes.legend()
    figure.savefig(path, dpi=150)


def open_study(space: Space, root: Path) -> Study:
    """The study of a search: new, or with the trials that were running enqueued again."""
    directions = [_DIRECTIONS[mode] for _, mode in _objectives(space)]
    study = optuna.create_study(storage=_storage(root), study_name=_NAME, directions=directions, load_if_exists=True)
    for trial in study.get_trials(states=(TrialState.RUNNING,)):
        study.tell(trial.number, state=TrialState.FAIL)
        study.enqueue_trial(trial.params)
    return study


def ended(study: Study) -> list[FrozenTrial]:
    """Trials that have their figures."""
    return [trial for trial in study.get_trials(states=(TrialState.COMPLETE, TrialState.PRUNED)) if trial.values]


def optuna_search(space: Space, root: Path, past: int) -> OptunaSearch:
    """Ray Tune's view of the study; with the number of `past` trials, a resumed search draws others."""
    metrics, modes = ([each[i] for each in _objectives(space)] for i in (0, 1))
    one, seed = len(metrics) == 1, space.seed + past
    return OptunaSearch(
        {key: domain.distribution() for key, domain in space.search.items()},
        metric=metrics[0] if one else metrics,
        mode=modes[0] if one else modes,
        sampler=RandomSampler(seed) if space.searcher == "random" else TPESampler(seed=seed, constant_liar=True),
        study_name=_NAME,
        storage=_storage(root),
    )


def _objectives(space: Space) -> list[tuple[str, str]]:
    frontier = [(EPSILON, "min")] if space.objectives == "utility_and_epsilon" else []
    return [(UTILITY, space.metric.mode), *frontier]


def _storage(root: Path) -> JournalStorage:
    return JournalStorage(JournalFileBackend(str(root / "study.journal")))


@dataclass(frozen=True)
class TrialRow:
    """One trial."""

    number: int  # in the order of suggestion
    state: State  # `refused` and `failed` trials have no figure; the account has too little left for a refused one
    release_id: str  # empty when it was infeasible
    utility: float | None  # the metric
    epsilon: float | None  # what its recipe asked for; None where none runs
    charges: int  # that were made
    planned: int  # charges of a whole trial, with its reports where the metric is charged
    share: float | None  # part of the account's cap that the charges took; None where trials are free
    values: str  # the searched values, as JSON


@dataclass(frozen=True)
class Outcome:
    """The end of a search."""

    rows: Sequence[TrialRow]  # every trial
    best: TrialRow | None  # the best whole trial, or the best pruned one if there is no whole one
    exhausted: str | None  # why there are fewer trials than asked for; None if there are not
    spent: float | None  # part of the account's cap that is used in all; None where trials are free
    said: str = ""  # of the best trial of `free`: how it is used, and what its figure is worth


_ARROW: Mapping[Any, pa.DataType] = {int: pa.int64(), float | None: pa.float64()}  # all else is text
_SCHEMA = pa.schema([(each.name, _ARROW.get(each.type, pa.string())) for each in fields(TrialRow)])


def conclude(trials: Trials | FreeTrials, ledger: Ledger | None, exhausted: str | None) -> Outcome:
    """Write `trials.parquet`, `best.yaml` and `frontier.png`; `ledger` is None where trials were free."""
    rows, said = _rows(trials, ledger), ""
    best = _best(rows, trials.space.metric.mode)
    pq.write_table(pa.Table.from_pylist([asdict(row) for row in rows], _SCHEMA), trials.root / "trials.parquet")
    if best is not None:
        values = json.loads(best.values)
        if isinstance(trials, FreeTrials):
            said = trials.said(values, sum(row.utility is not None for row in rows))
        notes = "".join(f"# {line}\n" for line in said.splitlines())
        write_atomic(trials.root / "best.yaml", f"{notes}{trials.best(values)}".encode())
    if best is not None and isinstance(trials, Trials):
        ended = [row for row in rows if row.state == "finished" or row is best]
        shown = [(row.epsilon or 0.0, row.utility or 0.0, row is best) for row in ended]
        draw_frontier(shown, trials.space.metric, trials.root / "frontier.png")
    budget = trials.space.budget
    spent = ledger.status(budget.account).share if ledger and budget else None
    return Outcome(rows, best, exhausted, spent, said)


def _rows(trials: Trials | FreeTrials, ledger: Ledger | None) -> list[TrialRow]:
    rows: dict[str, TrialRow] = {}
    for trial in open_study(trials.space, trials.root).trials:
        if trial.state is not TrialState.WAITING:
            values = json.dumps(trial.params, sort_keys=True)
            row = _row(trials, ledger, trial, values)
            if values not in rows or row.utility is not None:
                rows[values] = row
    return sorted(rows.values(), key=lambda row: row.number)


def _row(trials: Trials | FreeTrials, ledger: Ledger | None, trial: FrozenTrial, values: str) -> TrialRow:
    number, figures, searched = trial.number, trial.values, json.loads(values)
    try:
        name, bill = trials.name(searched), trials.bill(searched)
    except ConfigError:
        return TrialRow(number, "infeasible", "", None, None, 0, 0, None, values)
    made, share = _spend(trials, ledger, {release for release, _ in bill})
    state: State
    if figures:
        # Ray Tune tells a searcher of every report but the last one, which ends the trial.
        state = "finished" if len(trial.intermediate_values) + 1 >= trials.reports(searched) else "pruned"
    else:
        state = "refused" if _is_refused(trials, ledger, searched) else "failed"
    utility = figures[0] if figures else None
    return TrialRow(number, state, name, utility, trials.epsilon(searched), made, len(bill), share, values)


def _is_refused(trials: Trials | FreeTrials, ledger: Ledger | None, values: Mapping[str, Any]) -> bool:
    budget = trials.space.budget
    if ledger is None or budget is None or isinstance(trials, FreeTrials):
        return False
    return not can_pay(ledger, budget.account, [trials.bill(values)], trials.protection(values))


def _spend(trials: Trials | FreeTrials, ledger: Ledger | None, releases: Set[str]) -> tuple[int, float | None]:
    budget = trials.space.budget
    if ledger is None or budget is None:
        return 0, None
    status = ledger.status(budget.account)
    made = sum(len(live_charges(ledger, budget.account, release)) for release in releases)
    lines = [line for line in ledger.lines(budget.account) if line.release_id in releases]
    return made, sum(status.share_of(line) for line in lines)


def _best(rows: Sequence[TrialRow], mode: str) -> TrialRow | None:
    whole = [row for row in rows if row.state == "finished"]
    found = whole or [row for row in rows if row.utility is not None]
    pick = min if mode == "min" else max
    return pick(found, key=lambda row: row.utility or 0.0) if found else None
