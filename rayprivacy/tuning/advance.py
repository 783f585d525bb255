"""A chunk of a trial, run and measured; the part of a trial that needs the models."""

import math
from typing import Any

from rayprivacy.core.errors import ReleaseError
from rayprivacy.methods.catalogue import method_of
from rayprivacy.methods.recipe import Recipe
from rayprivacy.methods.run import Run
from rayprivacy.tuning.charged import heldout_loss
from rayprivacy.tuning.metric import utility
from rayprivacy.tuning.trial import EPSILON, UTILITY
from rayprivacy.tuning.trials import Trials


def advance(trials: Trials, recipe: Recipe, rung: int) -> dict[str, Any]:
    """Run a trial until it has reported `rung` times, or find that done.

    Returns:
        `utility`, `epsilon` (the recipe's), and `done` when this is all of the trial.
    """
    rungs, method, folder = trials.rungs(recipe), method_of(recipe), trials.folder(recipe)
    run = Run.open(folder, trials.placed(recipe), resume=True, measured=False)
    if rung < rungs and method.run_until is not None:
        method.run_until(run, rung)
    else:
        method.run(run)
    metric = trials.space.metric
    charged = metric.charged
    figure = heldout_loss(run, metric, trials.chunks(recipe, rung)) if charged else utility(folder, recipe, metric)
    if math.isnan(figure):
        raise ReleaseError("the model has diverged and has no figure: search smaller learning rates, or less noise.")
    return {UTILITY: figure, EPSILON: recipe.privacy.epsilon, "done": rung >= rungs}
