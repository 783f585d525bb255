"""Start the workers with Ray Train, and wait for the trained weights.

Workers that die, alone or with their node, are started again by Ray Train, as often as the recipe says. When the
cluster has become too small for them, Ray Train would wait for ever; here it tries START_ATTEMPTS times, for a minute
each, so that a new node has time to come. Both limits are public, and count failures without looking at data.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from ray.exceptions import RayError
from ray.train import ControllerError, RunConfig, ScalingConfig, TrainingFailedError
from ray.train.torch import TorchConfig, TorchTrainer
from ray.train.v2.api.config import FailureConfig
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from safetensors.torch import load_file

from rayprivacy.core import errors
from rayprivacy.core.errors import RayPrivacyError
from rayprivacy.core.files import private_directory, read_json
from rayprivacy.dpsgd.loop import PROGRESS, REFUSED, SEAL, Job, train_worker

POLL_SECONDS = 0.5
START_ATTEMPTS = 10


def run_training(job: Job, console: Console, told: Callable[[int], None] = lambda _: None) -> dict[str, torch.Tensor]:
    """Train, or finish what an earlier run began; Ray must be started.

    Args:
        job: what is trained.
        console: where progress is shown.
        told: called now and then, in another thread, with the number of steps done; it must not raise.

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
        scaling_config=ScalingConfig(num_workers=engine.workers, use_gpu=engine.gpu),
        run_config=RunConfig(
            name=job.release.release_id,
            storage_path=str(private_directory(job.folder / "ray")),
            failure_config=FailureConfig(max_failures=engine.failures, controller_failure_limit=START_ATTEMPTS - 1),
        ),
    )
    failure: RayPrivacyError | None = None
    with _progress(job.folder / PROGRESS, job.training.steps, console, told):
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


def _unstarted(error: ControllerError) -> bool:
    return type(error.controller_failure).__name__.startswith("WorkerGroupStartup")  # Ray Train keeps the types private


def _no_room(workers: int) -> RayPrivacyError:
    return RayPrivacyError(
        f"the cluster had no room for resources.workers = {workers} in {START_ATTEMPTS} attempts: add nodes or ask for"
        f" fewer workers; {SEAL.remedy}."
    )


def _raise_refusal(path: Path) -> None:
    if path.exists():
        facts = read_json(path)
        raise getattr(errors, facts["kind"], RayPrivacyError)(facts["sentence"])


@contextmanager
def _progress(path: Path, total: int, console: Console, told: Callable[[int], None]) -> Iterator[None]:
    """Show the steps that rank 0 has written down, while the main thread waits."""
    columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    over = threading.Event()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("steps", total=total)

        def look() -> None:
            done = int(path.read_text()) if path.exists() else 0
            bar.update(task, completed=done)
            told(done)

        def watch() -> None:
            while not over.wait(POLL_SECONDS):
                look()
            look()

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()
