"""Training with Ray Train: starts the workers of a job, and waits for the trained weights.

Workers that die, alone or with their node, are started again by Ray Train, RESTARTS times at most. When the
cluster has become too small for them, Ray Train would wait for ever; here it tries START_ATTEMPTS times, for a minute
each, so that a new node has time to come. Both limits are public, and count failures without looking at data. A caller
may give Ray Train's own settings instead; they are passed on as they are.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from ray.exceptions import RayError
from ray.train import ControllerError, RunConfig, ScalingConfig, TrainingFailedError
from ray.train.torch import TorchConfig, TorchTrainer
from ray.train.v2.api.config import FailureConfig
from safetensors.torch import load_file

from rayprivacy.core import errors
from rayprivacy.core.console import repeating
from rayprivacy.core.errors import RayPrivacyError
from rayprivacy.core.files import private_directory, read_json
from rayprivacy.dpsgd.worker import PROGRESS, REFUSED, SEAL, Job, train_worker

POLL_SECONDS = 0.5
START_ATTEMPTS = 10
RESTARTS = 3  # of workers that died


def run_training(
    job: Job,
    progress: Callable[[int], None] = lambda _: None,
    scaling_config: ScalingConfig | None = None,
    run_config: RunConfig | None = None,
) -> dict[str, torch.Tensor]:
    """Train, or finish what an earlier run began: the trained parameters by name, float32. Ray must be started.

    `progress` is called now and then, in another thread, with the number of steps done; it must not raise. Where a
    chunk of steps is refused, what ran before it stays charged.
    """
    for folder in (job.folder, job.states.parent, job.states):
        private_directory(folder)
    for left in (REFUSED, PROGRESS):
        (job.folder / left).unlink(missing_ok=True)
    engine = job.engine
    # The job is bound, not a config: Ray Train's controller unpickles its config, and would import the models for it.
    trainer = TorchTrainer(
        partial(train_worker, job),
        torch_config=TorchConfig(backend="nccl" if engine.gpu else "gloo", timeout_s=1800),
        scaling_config=scaling_config or ScalingConfig(num_workers=engine.workers, use_gpu=engine.gpu),
        run_config=run_config or _own_run(job),
    )
    failure: RayPrivacyError | None = None
    with _following(job.folder / PROGRESS, progress):
        try:
            trainer.fit()
        except ControllerError as error:
            # Ray Train keeps the types private.
            unstarted = type(error.controller_failure).__name__.startswith("WorkerGroupStartup")
            failure = _no_room(engine.workers) if unstarted else SEAL.unwrap("training", error)
        except (TrainingFailedError, RayError) as error:
            failure = SEAL.unwrap("training", error)
    if (job.folder / REFUSED).exists():
        facts = read_json(job.folder / REFUSED)
        raise getattr(errors, facts["kind"], RayPrivacyError)(facts["sentence"])
    if failure:
        raise failure
    return load_file(job.weights)


def _own_run(job: Job) -> RunConfig:
    return RunConfig(
        name=job.release.release_id,
        storage_path=str(private_directory(job.folder / "ray")),
        failure_config=FailureConfig(max_failures=RESTARTS, controller_failure_limit=START_ATTEMPTS - 1),
    )


def _no_room(workers: int) -> RayPrivacyError:
    return RayPrivacyError(
        f"the cluster had no room for resources.workers = {workers}, in all attempts: add nodes, ask for fewer"
        " workers, or remove the placement groups that a killed run has left (`ray list placement-groups`);"
        f" {SEAL.remedy}."
    )


@contextmanager
def _following(path: Path, progress: Callable[[int], None]) -> Iterator[None]:
    """Call back with the steps that rank 0 has written down, while the main thread waits."""

    def look() -> None:
        if path.exists():
            progress(int(path.read_text()))

    try:
        with repeating(POLL_SECONDS, look):
            yield
    finally:
        look()
