"""The encoding of the private corpus in Ray actors, part by part.

Only part numbers travel, of all parts: how many of them hold users is private, and Ray shows how many calls an actor
had. Texts are read, and states written, where they are encoded. What is finished is known from the markers in the
store, so a killed actor, node or driver costs the file it was working on, and retries are harmless: a dead actor is
replaced and its part is done again (see `actor_pool`).
"""

from collections.abc import Iterator
from functools import cached_property

import ray
import torch

from rayprivacy.core.errors import ReleaseError
from rayprivacy.core.sealing import Seal
from rayprivacy.models.backbone import Backbone, load_backbone
from rayprivacy.teachers.actor_pool import ActorPool
from rayprivacy.teachers.encoding import encode_part, is_cached
from rayprivacy.teachers.settings import ResourcesConfig
from rayprivacy.teachers.spec import GroupSpec

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

    def ready(self) -> None:
        """Answer, to say that the process is there."""

    @_SEAL.around(_STEP)
    def encode(self, part: int) -> None:
        """Encode what the store lacks of a part."""
        if not is_cached(self._spec, part):
            encode_part(self._spec, part, self._backbone)


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
    encoder = ray.remote(_Encoder).options(num_cpus=resources.cpus_per_actor, scheduling_strategy="SPREAD")
    actors = ActorPool(lambda: encoder.remote(spec), min(count, parts))
    try:
        for part, _ in actors.work(_STEP, "encode", range(parts)):
            yield part
    finally:
        actors.close()


@_SEAL.around(_STEP)
def _all_cached(spec: GroupSpec) -> bool:
    return all(is_cached(spec, part) for part in range(spec.teachers.parts))
