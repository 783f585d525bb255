"""The encoding of the private corpus into the feature store, in actors on Ray, piece by piece of every part.

Only the numbers of parts and of their pieces travel: texts are read, and states written, where they are encoded. What
is finished is known from the markers in the store, so that a killed actor, node or driver costs the file it was working
on, and retries are harmless.
"""

from collections.abc import Iterator

from rayprivacy.models.backbone import load_backbone
from rayprivacy.teachers.encoding import GroupPiece, encode_part, is_cached
from rayprivacy.teachers.group import prepared_device
from rayprivacy.teachers.settings import ResourcesConfig
from rayprivacy.teachers.spec import SEAL, GroupSpec, places
from rayprivacy.work.mapping import Actors, in_actors, on_numbers

_STEP = "encoding private text"
_PIECES = 4  # of all parts for each actor at least, so that the last ones to finish do not keep the others waiting


def cache_features(spec: GroupSpec, resources: ResourcesConfig) -> Iterator[int]:
    """Encode whatever the store lacks; yields every part of the corpus once, as it is finished.

    Ray must be started. When nothing is missing, neither an actor nor the model is started. The number of pieces of a
    part follows the number of actors, so that all of them have work, however few parts there are. Where encoding stops,
    nothing was charged or released.
    """
    spec.store.prepare()
    left = []
    for part, cached in on_numbers(_is_cached, spec, range(spec.teachers.parts), _STEP, SEAL):
        if cached:
            yield part
        else:
            left.append(part)
    if left:
        yield from _encoded(spec, sorted(left), resources)


def _encoded(spec: GroupSpec, parts: list[int], resources: ResourcesConfig) -> Iterator[int]:
    actors = Actors(places(resources), resources.cpus_per_actor, resources.gpus_per_actor)
    pieces = -(-_PIECES * actors.most // len(parts))
    open_pieces = dict.fromkeys(parts, pieces)
    asked = [(part, GroupPiece(number, pieces)) for part in parts for number in range(pieces)]
    for number, _ in in_actors(_Encoder, spec, enumerate(asked), _STEP, SEAL, actors):
        part, _ = asked[number]
        open_pieces[part] -= 1
        if not open_pieces[part]:
            yield part


@SEAL.around(_STEP)
def _is_cached(spec: GroupSpec, part: int) -> bool:
    return is_cached(spec, part)


class _Encoder:
    """What encodes parts in an actor; foreign errors leave it sealed, because they may quote private text."""

    @SEAL.around(_STEP)
    def __init__(self, spec: GroupSpec) -> None:
        self._spec, self._backbone = spec, load_backbone(spec.model, prepared_device(gpu=spec.gpu))

    @SEAL.around(_STEP)
    def __call__(self, _: int, asked: tuple[int, GroupPiece]) -> None:
        part, piece = asked
        if not is_cached(self._spec, part, piece):
            encode_part(self._spec, part, self._backbone, piece)
