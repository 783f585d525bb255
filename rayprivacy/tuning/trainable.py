"""One trial, chunk by chunk, as Ray Tune runs it.

A step of the Trainable ends with a report to Ray Tune. With pruning it runs one chunk; without, the whole trial. Each
chunk is reserved in the ledger, run, and committed, and the model that the last one leaves is measured: for nothing on
public text, for another charge on private text. Only then does the scheduler decide whether there is a next step, so a
trial that is pruned has paid for what it ran and for nothing else. Reports are public, and so is the sentence of a
failure.

Ray Tune has a process for each trial and the trial's actor is another. Only the actor imports the models, and gets the
search by reference: what unpickles it imports them too.
"""

import os
from collections.abc import Sequence
from typing import Any

import ray
from ray import ObjectRef, tune
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rayprivacy.core.errors import BudgetRefusedError, RayPrivacyError, ReleaseError
from rayprivacy.core.private import Seal

# Keys of what a trial reports to Ray Tune.
UTILITY = "utility"
EPSILON = "epsilon"
REFUSED = "refused"
FAILED = "failed"
_CHARGED = {"public": "nothing was charged", "free": "nothing was charged"}  # by rules of charging


class Trial(tune.Trainable):
    """A trial of any search but a selection.

    All that a Trainable starts must fit into its placement group, and a whole run has no size that is known. So the run
    lives in an actor beside it, on the driver's node, where the search's files are.
    """

    def setup(self, config: dict[str, Any], trials: Sequence[ObjectRef[Any]] = (), home: str = ".") -> None:
        """Start the actor, for the searched values, in the driver's working directory; `trials` is a list of one."""
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        actor: Any = ray.remote(_Runner).options(num_cpus=0, scheduling_strategy=here)
        self._runner: Any = actor.remote(*trials, config, home)

    def step(self) -> dict[str, Any]:
        """Run up to the next report; the figures of the trial so far."""
        return dict(ray.get(self._runner.report.remote(self.training_iteration + 1)))

    def cleanup(self) -> None:
        """End the actor."""
        ray.kill(self._runner)

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Nothing: the state of a trial is its run directory."""


class _Runner:
    def __init__(self, trials: Any, values: dict[str, Any], home: str) -> None:
        os.chdir(home)
        self._trials, self._values = trials, values

    def report(self, number: int) -> dict[str, Any]:
        charged = _CHARGED.get(self._trials.space.charging, "what was charged stays charged once")
        seal = Seal(ReleaseError, f"{charged}, so run the search again with --resume")
        try:
            return dict(seal.around("a trial")(self._trials.report)(self._values, number))
        except BudgetRefusedError:
            return {REFUSED: True, "done": True}
        except RayPrivacyError as error:
            return {FAILED: str(error), "done": True}
