"""The encoding of the private corpus in Ray actors, piece by piece of every part.

Only the numbers of parts and of their pieces travel, of all of them: how many hold users is private, and Ray shows how
many calls an actor had. Texts are read, and states written, where they are encoded. What is finished is known from the
markers in the store, so a killed actor, node or driver costs the file it was working on, and retries are harmless: a
dead actor is replaced and its piece is done again (see `actor_pool`).
"""

from collections.abc import Iterator
from functools import cached_property

import ray
from ray.exceptions import RayError

from rayprivacy.core.errors import RayPrivacyError, ReleaseError
from rayprivacy.core.sealing import Seal
from rayprivacy.models.backbone import Backbone, load_backbone
from rayprivacy.teachers.actor_pool import ActorPool
from rayprivacy.teachers.devices import prepared_device
from rayprivacy.teachers.encoding import Piece, encode_part, is_cached
from rayprivacy.teachers.places import actor_options, places
from rayprivacy.teachers.settings import ResourcesConfig
from rayprivacy.teachers.spec import GroupSpec

_STEP = "encoding private text"
_PIECES = 4  # for each actor at least, so that the last ones to finish do not keep the others waiting for long
_SEAL = Seal(ReleaseError, "nothing was charged or released, run again with --resume")


class _Encoder:
    """An actor that encodes parts; foreign errors leave it sealed, because they may quote private text."""

    def __init__(self, spec: GroupSpec) -> None:
        self._spec = spec

    @cached_property
    def _backbone(self) -> Backbone:
        return load_backbone(self._spec.model, prepared_device(gpu=self._spec.gpu))

    def ready(self) -> None:
        """Answer, to say that the process is there."""

    @_SEAL.around(_STEP)
    def encode(self, given: tuple[int, Piece]) -> None:
        """Encode what the store lacks of a piece of a part."""
        part, piece = given
        if not is_cached(self._spec, part, piece):
            encode_part(self._spec, part, self._backbone, piece)


def cache_features(spec: GroupSpec, resources: ResourcesConfig) -> Iterator[int]:
    """Encode whatever the store lacks; yields every part of the corpus once, as it is finished.

    Ray must be started. When nothing is missing, neither an actor nor the model is started. The number of pieces of a
    part follows the number of actors, so that all of them have work, however few parts there are. Where encoding stops,
    nothing was charged or released.
    """
    spec.store.prepare()
    parts = spec.teachers.parts
    if _all_cached(spec):
        yield from range(parts)
        return
    count = places(resources)
    encoder = ray.remote(_Encoder).options(**actor_options(resources))
    pieces = -(-_PIECES * count // parts)
    actors = ActorPool(lambda: encoder.remote(spec), min(count, parts * pieces))
    left = dict.fromkeys(range(parts), pieces)
    every = [(part, Piece(number, pieces)) for part in left for number in range(pieces)]
    try:
        for (part, _), _ in actors.work(_STEP, "encode", every):
            left[part] -= 1
            if not left[part]:
                yield part
    finally:
        actors.close()


def _all_cached(spec: GroupSpec) -> bool:
    """Whether the store has every group; tasks name them, each those of some parts."""
    parts = range(spec.teachers.parts)
    tasks = min(len(parts), max(1, int(ray.cluster_resources().get("CPU", 1))))
    check = ray.remote(_SEAL.around(_STEP)(_are_cached)).options(max_retries=3, scheduling_strategy="SPREAD")
    failure: RayPrivacyError
    try:
        return all(ray.get([check.remote(spec, parts[task::tasks]) for task in range(tasks)]))
    except RayError as error:
        failure = _SEAL.unwrap(_STEP, error)
    raise failure  # outside the except block, so that Ray's text does not come along


def _are_cached(spec: GroupSpec, parts: range) -> bool:
    return all(is_cached(spec, part) for part in parts)
