"""Training with Ray Train: starts the workers of a job, and waits for the trained weights.

Workers that die, alone or with their node, are started again by Ray Train, as often as the recipe says. When the
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


def run_training(
    job: Job,
    told: Callable[[int], None] = lambda _: None,
    scaling_config: ScalingConfig | None = None,
    run_config: RunConfig | None = None,
) -> dict[str, torch.Tensor]:
    """Train, or finish what an earlier run began; Ray must be started.

    Args:
        job: what is trained.
        told: called now and then, in another thread, with the number of steps done; it must not raise.
        scaling_config: what Ray Train is asked for; by default the workers of the job's engine.
        run_config: Ray Train's name, storage, callbacks and failures; by default a folder among the job's, and the
            failures of the job's engine.

    Returns:
        The trained parameters by name, float32.

    Raises:
        BudgetRefusedError: a chunk of steps was refused; what ran before it stays charged.
        RayPrivacyError: whatever else stopped a worker, without private text.
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
    with _progress(job.folder / PROGRESS, told):
        try:
            trainer.fit()
        except ControllerError as error:
            failure = _no_room(engine.workers) if _unstarted(error) else SEAL.unwrap("training", error)
        except (TrainingFailedError, RayError) as error:
            failure = SEAL.unwrap("training", error)
    _raise_refusal(job.folder / REFUSED)
    if failure:
        raise failure
    return load_file(job.weights)


def _own_run(job: Job) -> RunConfig:
    return RunConfig(
        name=job.release.release_id,
        storage_path=str(private_directory(job.folder / "ray")),
        failure_config=FailureConfig(max_failures=job.engine.failures, controller_failure_limit=START_ATTEMPTS - 1),
    )


def _unstarted(error: ControllerError) -> bool:
    return type(error.controller_failure).__name__.startswith("WorkerGroupStartup")  # Ray Train keeps the types private


def _no_room(workers: int) -> RayPrivacyError:
    return RayPrivacyError(
        f"the cluster had no room for resources.workers = {workers}, in all attempts: add nodes, ask for fewer"
        " workers, or remove the placement groups that a killed run has left (`ray list placement-groups`);"
        f" {SEAL.remedy}."
    )


def _raise_refusal(path: Path) -> None:
    if path.exists():
        facts = read_json(path)
        raise getattr(errors, facts["kind"], RayPrivacyError)(facts["sentence"])


@contextmanager
def _progress(path: Path, told: Callable[[int], None]) -> Iterator[None]:
    """Tell the steps that rank 0 has written down, while the main thread waits; nothing before it has a model."""

    def look() -> None:
        if path.exists():
            told(int(path.read_text()))

    try:
        with repeating(POLL_SECONDS, look):
            yield
    finally:
        look()
