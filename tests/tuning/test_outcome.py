"""How a trial without a figure is told: refused where the account cannot pay for the rest of it, else failed."""

from typing import Any

import pytest
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState, create_trial

from rayprivacy.tuning.outcome import conclude, open_study
from rayprivacy.tuning.space import load_space
from rayprivacy.tuning.trials import Trials

VALUES = {"training.clipping_norm": 1.0}


@pytest.mark.parametrize(
    ("epsilon", "before", "state"), [(8.0, 0, "failed"), (8.0, 1, "failed"), (2.1, 1, "failed"), (1.9, 0, "refused")]
)
def test_a_trial_without_a_figure(bench: Any, epsilon: float, before: int, state: str) -> None:
    """The account of epsilon 2.1 has room for the one trial of 2.0: its second chunk still fits after its first."""
    trials = Trials.of(load_space(bench.space()), bench.folder / "out")
    trials.root.mkdir()
    study = open_study(trials.space, trials.root)
    distributions = {key: FloatDistribution(0.1, 10.0, log=True) for key in VALUES}
    study.add_trial(create_trial(state=TrialState.FAIL, params=VALUES, distributions=distributions))
    bill = trials.bill(VALUES)
    ledger = bench.account(epsilon, plan=[event for _, event in bill])
    for number, (release, event) in enumerate(bill[:before]):
        ledger.reserve("search", release, f"{number:064x}", event)
    outcome = conclude(trials, ledger, None)
    assert [(row.state, row.charges, row.planned) for row in outcome.rows] == [(state, before, 2)]
    assert outcome.best is None
