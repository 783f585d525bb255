"""Text that a released model writes as a stage of a run, or wrote before: the file says what it was made of."""

from pathlib import Path
from typing import Any

import ray

from rayprivacy.generation import settings, text_writers
from rayprivacy.generation.writing import Labels, Prompts, Written, read_written, write_samples
from rayprivacy.runs.context import RunContext


def written_once(
    context: RunContext[Any],
    model_dir: Path,
    prompts: Prompts,
    config: settings.WritingConfig,
    labels: Labels,
    path: Path,
    source: str,
    what: str,
    structure: text_writers.Structure | None = None,
    names: frozenset[str] = frozenset(),
    begun: bool = False,
    whole: str = "",
) -> Written:
    """Write the texts of a saved model, unless a file of the same source is there.

    `source` names the model and the prompts, `what` the count that is shown, and `names` those of the structure in the
    prompts, which no text should have; texts do not end inside of what is `whole` (see `write_samples`).
    """
    if path.exists() and (written := read_written(path)).source == source:
        return written
    return write_samples(
        model_dir,
        prompts,
        config,
        labels,
        path,
        context.recipe.resources.actors or int(ray.cluster_resources()["CPU"]),
        engine=config.decided,
        workspace=context.run.root / "public",
        structure=structure,
        names=names,
        source=source,
        begun=begun,
        whole=whole,
        progress=context.counter(what),
    )
