"""The next report of a trial: its chunk is run, and its model is measured. The part of a trial that needs models."""

import math
from typing import Any

from rayprivacy.core.errors import ReleaseError
from rayprivacy.methods.registry import method_of
from rayprivacy.runs.drive import drive
from rayprivacy.runs.recipe import Recipe
from rayprivacy.tuning.heldout_loss import heldout_loss
from rayprivacy.tuning.metric import utility
from rayprivacy.tuning.names import EPSILON, UTILITY
from rayprivacy.tuning.trial_recipes import Trials


def next_report(trials: Trials, recipe: Recipe, number: int) -> dict[str, Any]:
    """Run a trial up to one of its reports, or find that done.

    Args:
        trials: of the search.
        recipe: of the trial.
        number: of the report, from 1.

    Returns:
        `utility`, `epsilon` (the recipe's), and `done` when this is all of the trial.
    """
    last = number >= trials.reports(recipe)
    method = method_of(recipe)
    folder = trials.folder(recipe)
    until = None if last else number
    run, _ = drive(method, recipe.absolute(), folder, until=until, measured=False, announce=False)
    metric = trials.space.metric
    if metric.charged:
        figure = heldout_loss(run, metric, trials.chunks(recipe, number))
    else:
        figure = utility(folder, recipe, metric, method.card.texts)
    if math.isnan(figure):
        raise ReleaseError("the model has diverged and has no figure: search smaller learning rates, or less noise.")
    return {UTILITY: figure, EPSILON: recipe.privacy.epsilon, "done": last}
