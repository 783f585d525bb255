"""A search by Ray Tune itself, of a trainable that is none of ours: the account pays for the trials that ran."""

import sys
from pathlib import Path
from typing import Any

import pytest
from budgeted_bench import SIGMA, lines, open_account, price, price_of_two
from dp_accounting.dp_event import GaussianDpEvent
from optuna.samplers import RandomSampler
from ray import cloudpickle, tune
from ray.tune.search.optuna import OptunaSearch

import rayprivacy as rp
from rayprivacy.ledger.store import Ledger
from rayprivacy.tuning.budgeted import NO_BUDGET

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Ray's workers do not find the tests
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
CHUNKS = 2


def trainable(config):
    if config["x"] > 0.9:
        raise RuntimeError("diverged")
    for step in range(2):
        tune.report({"loss": (config["x"] - 0.3) ** 2 + 0.1 / (step + 1)})


def charging(config, url):
    """Charges itself chunk by chunk, as a training behind the release gate does."""
    release = rp.trial_release("mine", config)
    with Ledger.open(url) as ledger:
        for chunk in range(1, CHUNKS + 1):
            charge = ledger.reserve("chat", release, "d", GaussianDpEvent(config["sigma"]), rung=chunk)
            ledger.commit_output(ledger.start(charge), b"noisy")
            tune.report({"loss": config["x"]})


def budgeted(url, seed, cost=price, **settings):
    return rp.BudgetedSearcher(OptunaSearch(sampler=RandomSampler(seed)), cost, url, "chat", name="mine", **settings)


def tuner(function, search, path, samples, at_once=2):
    config = {"metric": "loss", "mode": "min", "search_alg": search, "num_samples": samples}
    return tune.Tuner(
        tune.with_resources(function, {"cpu": 0.5}),
        param_space={"x": tune.uniform(0.0, 1.0), "sigma": SIGMA},
        tune_config=tune.TuneConfig(**config, max_concurrent_trials=at_once),
        run_config=tune.RunConfig(storage_path=str(path / "tune"), name="search", verbose=0),
    )


def test_trials_that_charge_themselves_cannot_overdraw_together(url, tmp_path, local_ray):
    open_account(url, 2 * CHUNKS + CHUNKS / 2)
    search = budgeted(url, 3, price_of_two, charges="trial")
    grid = tuner(tune.with_parameters(charging, url=url), search, tmp_path, 5).fit()
    assert not grid.errors, "no trial began that was refused on its way"
    assert len(grid) == 2
    assert search.exhausted == NO_BUDGET
    assert [state for *_, state in lines(url)] == ["committed"] * 2 * CHUNKS
    assert search.searcher._ot_study.best_value == grid.get_best_result().metrics["loss"]


def test_a_search_is_restored_by_ray_tune(url, tmp_path, local_ray, monkeypatch):
    """Its driver dies when the second trial reports; the restored search knows the charges, and pays for the rerun."""
    monkeypatch.setenv("TUNE_GLOBAL_CHECKPOINT_S", "0")
    open_account(url, 20)
    dying = tuner(trainable, budgeted(url, 5), tmp_path, 3, at_once=1)
    dying._local_tuner._run_config.callbacks = [_Dies()]
    with pytest.raises(_Killed):
        dying.fit()
    before = lines(url)
    assert [state for *_, state in before] == ["committed", "started"]
    grid = tune.Tuner.restore(str(tmp_path / "tune" / "search"), trainable=tune.with_resources(trainable, {"cpu": 0.5}))
    results = grid.fit()
    assert len(results) == 3
    after = lines(url)
    assert (after[0], len(after)) == (before[0], 3 + 1)
    releases = [release for release, *_ in after]
    assert releases.count(f"{before[1][0]}-2") == 1
    ran = {rp.trial_release("mine", result.config) for result in results}
    assert ran == {release.removesuffix("-2") for release in releases}


@pytest.mark.exhaustive
def test_the_example_of_the_documentation_runs(tmp_path, local_ray, monkeypatch, capsys):
    page = (Path(__file__).parents[3] / "docs" / "tuning.md").read_text()
    code = page.partition("## Your own trainable")[2].partition("```python")[2].partition("```")[0]
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(code, scope)
    ran = len(lines(f"sqlite:///{tmp_path}/clipping.db", "numbers"))
    assert 2 <= ran < 20
    assert f"{ran} trials; {NO_BUDGET}" in capsys.readouterr().out


class _Killed(BaseException):
    """Nothing catches it."""


class _Dies(tune.Callback):
    def __init__(self):
        self.seen: set[str] = set()

    def on_trial_result(self, iteration, trials, trial, result, **info):
        self.seen.add(trial.trial_id)
        if len(self.seen) == 2:
            raise _Killed
