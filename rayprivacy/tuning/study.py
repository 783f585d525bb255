"""The memory of a search: Optuna's study in a journal file, so that a search that was killed goes on where it stopped.

Trials that were running when it was killed are asked for again first: what they had charged is charged, and is not
charged again.
"""

from pathlib import Path

import optuna
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState
from ray.tune.search.optuna import OptunaSearch

from rayprivacy.tuning.space import Space
from rayprivacy.tuning.trainable import EPSILON, UTILITY

_NAME = "search"
_DIRECTIONS = {"min": StudyDirection.MINIMIZE, "max": StudyDirection.MAXIMIZE}


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
    one = len(metrics) == 1
    return OptunaSearch(
        {key: domain.distribution() for key, domain in space.search.items()},
        metric=metrics[0] if one else metrics,
        mode=modes[0] if one else modes,
        sampler=_sampler(space, past),
        study_name=_NAME,
        storage=_storage(root),
    )


def _objectives(space: Space) -> list[tuple[str, str]]:
    frontier = [(EPSILON, "min")] if space.objectives == "utility_and_epsilon" else []
    return [(UTILITY, space.metric.mode), *frontier]


def _sampler(space: Space, past: int) -> BaseSampler:
    seed = space.seed + past
    return RandomSampler(seed) if space.searcher == "random" else TPESampler(seed=seed, constant_liar=True)


def _storage(root: Path) -> JournalStorage:
    return JournalStorage(JournalFileBackend(str(root / "study.journal")))
