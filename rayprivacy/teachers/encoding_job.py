"""The encoding of the private corpus as one Ray Data job over its parts.

Only part numbers travel, of all parts: how many of them have somebody in them is private, and Ray shows how many rows a
job has. Texts are read, and states written, where they are encoded. What is finished is known from the markers in the
store, so a killed actor, node or driver costs the file it was working on, and retries are harmless: Ray Data starts
dead actors again and repeats their parts.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import ray
import ray.data
import torch

from rayprivacy.core.errors import ReleaseError
from rayprivacy.core.sealing import Seal
from rayprivacy.models.backbone import Backbone, load_backbone
from rayprivacy.teachers.encoding import encode_part, is_cached
from rayprivacy.teachers.settings import ResourcesConfig
from rayprivacy.teachers.spec import GroupSpec

START_RETRIES = 3
_STEP = "encoding private text"
_SEAL = Seal(ReleaseError, "nothing was charged or released, run again with --resume")


class _Encoder:
    """An actor that encodes parts; foreign errors leave it sealed, because they may quote private text."""

    def __init__(self, spec: GroupSpec) -> None:
        # One thread: the order of floating-point sums must not depend on how many cores a node happens to have.
        torch.set_num_threads(1)
        self._spec = spec

    @cached_property
    def _backbone(self) -> Backbone:
        return load_backbone(self._spec.model)

    @_SEAL.around(_STEP)
    def __call__(self, batch: dict[str, npt.NDArray[np.int64]]) -> dict[str, npt.NDArray[np.int64]]:
        for part in batch["part"].tolist():
            if not is_cached(self._spec, part):
                encode_part(self._spec, part, self._backbone)
        return batch


def cache_features(spec: GroupSpec, resources: ResourcesConfig) -> Iterator[int]:
    """Encode whatever the store lacks; yields every part of the corpus once, as it is finished.

    Ray must be started. When nothing is missing, neither an actor nor the model is started.

    Raises:
        ConfigError: the base cannot be loaded, or has fewer layers than teachers.layers.
        ReleaseError: encoding stopped; nothing was charged or released.
    """
    spec.store.prepare()
    parts = spec.teachers.parts
    if _all_cached(spec):
        yield from range(parts)
        return
    count = resources.actors or max(1, int(ray.cluster_resources().get("CPU", 1) / resources.cpus_per_actor))
    # One part in flight per actor, so that none waits behind a long one.
    pool = ray.data.ActorPoolStrategy(size=min(count, parts), max_tasks_in_flight_per_actor=1)
    with ray.data.DataContext.current(_context()):
        todo = ray.data.from_items([{"part": part} for part in range(parts)], override_num_blocks=parts)
        done = todo.map_batches(
            _Encoder,
            fn_constructor_args=(spec,),
            batch_size=1,
            compute=pool,
            num_cpus=resources.cpus_per_actor,
        )
    try:
        for row in done.iter_rows():
            yield int(row["part"])
        return
    except Exception as error:  # noqa: BLE001 - whatever Ray raises may quote private text
        failure = _SEAL.unwrap(_STEP, error)
    raise failure


@_SEAL.around(_STEP)
def _all_cached(spec: GroupSpec) -> bool:
    return all(is_cached(spec, part) for part in range(spec.teachers.parts))


def _context() -> Any:
    context = ray.data.DataContext.get_current().copy()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.max_errored_blocks = 0
    context.max_consecutive_actor_init_deaths = START_RETRIES
    return context
