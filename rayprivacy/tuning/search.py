"""A search: the space is read, what cannot work is refused, and its rule of charging takes over.

Trials of a selection are in `selection`. Those that all pay (`pay_for_all`), that read public text only (`public`), or
the questions of a release (`free`), run here by Ray Tune.
"""

import logging
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search import Searcher
from ray.tune.search.optuna import OptunaSearch
from rich.console import Console

from rayprivacy.core.errors import BudgetRefusedError, ConfigError, RayPrivacyError
from rayprivacy.core.files import Json, private_directory, read_json, write_atomic, write_json
from rayprivacy.core.keys import load_or_create_key
from rayprivacy.core.units import Budget
from rayprivacy.core.written import dump_yaml
from rayprivacy.ledger.opening import More
from rayprivacy.ledger.store import Ledger
from rayprivacy.methods.registry import method_of
from rayprivacy.runs import account, decide, files, session
from rayprivacy.runs.checks import check_files, table_behind
from rayprivacy.runs.recipe import LOCAL, Recipe
from rayprivacy.tuning.budgeted import Candidate, PricedSearcher, can_pay
from rayprivacy.tuning.free_trials import FreeTrials
from rayprivacy.tuning.outcome import Outcome, conclude, ended, open_study, optuna_search
from rayprivacy.tuning.selection import run_selection
from rayprivacy.tuning.space import Space, lines_of_trials, load_space, read_sentences
from rayprivacy.tuning.trainable import EPSILON, FAILED, REFUSED, UTILITY, Trial
from rayprivacy.tuning.trials import DECIDED, SPACE, Trials, Values

_TRIED = 200  # draws of the space, to find one that can be run
# Trials stay in the driver's folder; one that was refused has no figure; results are kept here, and in one place.
_ENVIRONMENT = {
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
}


def start_search(
    path: Path, overrides: files.Overrides, out: Path, *, resume: bool, console: Console
) -> Outcome | Path | None:
    """Run a search in the folder `out`, or go on; a selection returns its winner's folder, or None without trials."""
    space = load_space(path, overrides)
    if space.metric.text is not None:
        read_sentences(space.metric)
    if space.charging == "free":
        return run_free(space, path, overrides, out.absolute(), resume, console)
    trials = Trials.of(space, out.absolute())
    with lines_of_trials(space, path, overrides):
        example = feasible(trials)
    _check_example(trials, example)
    _open_folder(trials, resume)  # last: a space with a password in it is refused before it is written
    if space.charging == "select":
        return run_selection(trials, console)
    return run_search(trials, example, console)


def run_free(
    space: Space, path: Path, overrides: files.Overrides, root: Path, resume: bool, console: Console
) -> Outcome:
    """Search, or go on with a search, without a charge: there is neither an account nor a key."""
    trials = FreeTrials.of(space, root)
    with lines_of_trials(space, path, overrides):
        feasible(trials)
    _open_folder(trials, resume)
    with session.ray_session(LOCAL):
        return _search(trials, None, console)


def feasible(trials: Trials | FreeTrials) -> Values:
    """Some values of the space that can be run; raises the ConfigError of the last ones if none were found."""
    dice, refusal = random.Random(0), ConfigError()
    for _ in range(_TRIED):
        values = {key: domain.draw(dice) for key, domain in trials.space.search.items()}
        try:
            trials.bill(values)
        except ConfigError as error:
            refusal = error
        else:
            return values
    raise refusal


def _check_example(trials: Trials, example: Values) -> None:
    recipe = trials.recipe(example)
    if table := table_behind(recipe.corpus):
        raise ConfigError(
            f"corpus.source is {table.kind.words}, of which each trial would choose a version of its own: search on"
            " files, which all trials share."
        )
    card = method_of(recipe).card
    if card.has_model and not card.has_language_model:
        raise ConfigError(
            f"method '{recipe.method}' releases a tagger, whose losses searches cannot read yet: give values of your"
            " own, or choose them on public text."
        )
    check_files(recipe)
    if trials.space.pruning is None:
        return
    if not trials.plan(example).chunks:
        raise ConfigError(f"pruning is set and method '{recipe.method}' cannot be stopped half-way: remove pruning.")
    if not trials.space.metric.of_model:
        raise ConfigError(
            f"pruning is set and metric.name is '{trials.space.metric.name}', which needs synthetic text:"
            " use public_perplexity, or remove pruning."
        )


def _open_folder(trials: Trials | FreeTrials, resume: bool) -> None:
    root, shape = trials.root, trials.shape
    stored = root / SPACE
    if stored.exists():
        if not resume:
            raise ConfigError(f"{root} holds a search already: add --resume to go on, or choose another --out.")
        if read_json(stored) != shape:
            raise ConfigError(
                f"{root} holds a search of another space: resume it with its own, or choose another --out."
            )
    private_directory(root)
    if isinstance(trials, Trials):
        write_atomic(root / DECIDED, dump_yaml(decide.decisions(trials.base, root / DECIDED)).encode())
    write_json(stored, shape)


class RecipeSearch(PricedSearcher):
    """Optuna's suggestions for a space file: each is a recipe that charges itself, chunk by chunk, or is free."""

    failure: ConfigError | None = None  # what broke the search

    def __init__(
        self,
        inner: OptunaSearch,
        trials: Trials | FreeTrials,
        ledger: Ledger | None,
        known: Iterable[Values],
        progress: Callable[[Values, Json], None],
    ) -> None:
        # `ledger` is None where trials are free; `known` are values of trials that ended before, which would be the
        # same releases again; `progress` takes the values and the last figures of each trial that ends.
        super().__init__(inner, waits=True)
        self._trials, self._ledger, self._progress = trials, ledger, progress
        self._started = {trials.name(values) for values in known}

    def suggest(self, trial_id: str) -> Any:
        """The values of the next trial, None to be asked again later, or FINISHED."""
        try:
            return super().suggest(trial_id)
        except ConfigError as error:
            self.failure = error
            return Searcher.FINISHED

    def on_trial_result(self, trial_id: str, result: Json) -> None:
        """Pass a report on, if it has a figure."""
        if UTILITY in result:
            super().on_trial_result(trial_id, result)

    def on_trial_complete(self, trial_id: str, result: Json | None = None, error: bool = False) -> None:
        """Pass the end of a trial on, pruned or not, and tell of it."""
        figures = result or {}
        values = self._running[trial_id].config
        bad = error or REFUSED in figures or FAILED in figures
        super().on_trial_complete(trial_id, None if bad else result, bad)
        if REFUSED in figures:
            self.exhausted = "the account had too little left for a trial that was running"
        self._progress(values, figures)

    def save(self, checkpoint_path: str) -> None:
        """Nothing: Optuna's study has a journal of its own, and a search resumes from there."""

    def __getstate__(self) -> Json:
        # Ray Tune pickles its settings to be able to restore a search, and this one is resumed from its journal.
        return {"_metric": self._metric, "_mode": self._mode}

    def _candidate(self, name: str, config: Mapping[str, Any]) -> Candidate:
        return Candidate(name, config, self._trials.name(config), self._trials.bill(config))

    def _admit(self, candidate: Candidate) -> bool:
        budget = self._trials.space.budget
        if self._ledger is None or budget is None:
            return True
        assert isinstance(self._trials, Trials), "nothing else has a budget"
        protection = self._trials.protection(candidate.config)
        return can_pay(self._ledger, budget.account, self._bills(candidate), protection)


def run_search(trials: Trials, example: Values, console: Console) -> Outcome:
    """Search, or go on with a search; the order of an account that is not open yet is chosen from `example`."""
    recipe = trials.recipe(example).absolute()
    load_or_create_key(Path(recipe.privacy.key))
    with session.ray_session(recipe.resources.address), _paying(trials, recipe, example) as ledger:
        return _search(trials, ledger, console)


def _search(trials: Trials | FreeTrials, ledger: Ledger | None, console: Console) -> Outcome:
    os.environ |= _ENVIRONMENT
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # a trial's end, good or bad, is told by us
    space = trials.space
    failures: list[str] = []
    past = ended(open_study(space, trials.root))

    def progress(values: Values, figures: Json) -> None:
        failures.extend([figures[FAILED]] if FAILED in figures else [])
        console.print(_line(values, figures), highlight=False, markup=False, soft_wrap=True)

    if ledger and ledger.news:
        console.print(ledger.news, highlight=False, markup=False, soft_wrap=True)
    searcher = RecipeSearch(
        optuna_search(space, trials.root, len(past)), trials, ledger, [each.params for each in past], progress
    )
    if len(past) < space.trials:
        _tuner(trials, searcher, space.trials - len(past)).fit()
    if searcher.failure:
        raise searcher.failure
    outcome = conclude(trials, ledger, searcher.exhausted)
    if outcome.best is None:
        if failures:
            raise RayPrivacyError(failures[0])
        raise BudgetRefusedError(f"no trial ran: {searcher.exhausted}; raise budget.epsilon, or open another account.")
    return outcome


def _tuner(trials: Trials | FreeTrials, searcher: RecipeSearch, samples: int) -> tune.Tuner:
    space, root, pruning = trials.space, trials.root, trials.space.pruning
    attempt = sum(1 for _ in (root / "tune").glob("attempt-*")) + 1
    trial = tune.with_parameters(Trial, trials=[ray.put(trials)], home=str(Path.cwd()))
    # Next to nothing, on this node: what a trial starts asks for its own, and the search's files are here.
    here = tune.PlacementGroupFactory([{f"node:{ray.util.get_node_ip_address()}": 0.001}])
    halving = None
    if pruning is not None:
        rungs: Any = {"grace_period": pruning.grace, "reduction_factor": pruning.reduction, "max_t": 10_000}
        halving = ASHAScheduler(metric=UTILITY, mode=space.metric.mode, **rungs)
    return tune.Tuner(
        tune.with_resources(trial, here),
        tune_config=tune.TuneConfig(
            search_alg=searcher,
            scheduler=halving,
            num_samples=samples,
            max_concurrent_trials=space.concurrent,
            trial_dirname_creator=lambda trial: f"trial-{trial.trial_id}",
        ),
        run_config=tune.RunConfig(storage_path=str(root / "tune"), name=f"attempt-{attempt}", verbose=0),
    )


@contextmanager
def _paying(trials: Trials, recipe: Recipe, example: Values) -> Iterator[Ledger | None]:
    """The ledger of a search that pays, its account opened, and its service running for all trials."""
    privacy, budget = recipe.privacy, trials.space.budget
    with closing(privacy.open_ledger()) as ledger:
        if budget is not None:
            protection = trials.protection(example)
            cap = Budget(budget.epsilon, budget.delta)
            plan = trials.charges(example) * trials.space.trials
            terms = More(**account.terms_of(trials.recipe(example), trials.plan(example)), plan=plan)
            ledger.ensure_account(
                budget.account, protection.unit, protection.relation, cap, privacy.composition, **terms
            )
        with session.ledger_service(privacy, watched=True):
            yield ledger if budget else None


def _line(values: Values, figures: Json) -> str:
    if UTILITY in figures:
        result = f"{figures[UTILITY]:.4g}" + (f" at epsilon {figures[EPSILON]:g}" if EPSILON in figures else "")
    else:
        result = "refused by the account" if REFUSED in figures else f"failed: {figures.get(FAILED, 'no reason given')}"
    shown = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in values.items()}
    return f"  {', '.join(f'{key} {value}' for key, value in shown.items())}: {result}"
