"""One trial, chunk by chunk, as Ray Tune runs it.

A step of the Trainable runs one chunk: it is reserved in the ledger, run, committed, and the model it leaves is
measured, for nothing on public text or for another charge on private text. Only then does the scheduler decide whether
there is a next step, so a trial that is pruned has paid for what it ran and for nothing else. What is reported is
public, and so is a failure's sentence.
"""

import os
from typing import Any

import ray
from ray import tune
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rayprivacy.core.errors import BudgetRefusedError, RayPrivacyError, ReleaseError
from rayprivacy.core.sealing import Seal
from rayprivacy.methods.catalogue import method_of
from rayprivacy.methods.recipe import Recipe
from rayprivacy.methods.run import Run
from rayprivacy.tuning.charged import heldout_loss
from rayprivacy.tuning.metric import utility
from rayprivacy.tuning.trials import Trials, Values

UTILITY, EPSILON, REFUSED, FAILED = "utility", "epsilon", "refused", "failed"
SEAL = Seal(ReleaseError, "what was charged stays charged once, so run the search again with --resume")


class Trial(tune.Trainable):
    """A trial of `pay_for_all` or `public`.

    Whatever a Trainable starts must fit into its placement group, which nobody can size for a whole run. So the run
    lives in an actor beside it, on the driver's node, where the search's files are.
    """

    def setup(self, config: dict[str, Any], trials: Trials | None = None, home: str = ".") -> None:
        """Start the actor.

        Args:
            config: `values`, by dotted key.
            trials: the search.
            home: the driver's working directory, which paths in recipes are relative to.
        """
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        actor: Any = ray.remote(_Runner).options(num_cpus=0, scheduling_strategy=here)
        self._runner: Any = actor.remote(trials, config["values"], home)

    def step(self) -> dict[str, Any]:
        """Run the next chunk; the figures of the trial so far."""
        figures: dict[str, Any] = ray.get(self._runner.report.remote(self.training_iteration + 1))
        return figures

    def cleanup(self) -> None:
        """End the actor."""
        ray.kill(self._runner)

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Nothing: the state of a trial is its run directory."""


class _Runner:
    def __init__(self, trials: Trials, values: Values, home: str) -> None:
        os.chdir(home)
        self._trials, self._recipe = trials, trials.recipe(values)

    def report(self, rung: int) -> dict[str, Any]:
        try:
            return SEAL.around("a trial")(advance)(self._trials, self._recipe, rung)
        except BudgetRefusedError:
            return {REFUSED: True, "done": True}
        except RayPrivacyError as error:
            return {FAILED: str(error), "done": True}


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
    return {UTILITY: figure, EPSILON: recipe.privacy.epsilon, "done": rung >= rungs}
