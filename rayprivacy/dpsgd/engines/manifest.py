"""The noise manifest: a list of the coordinates that each rank adds noise to, checked before the first step.

Every rank adds noise to the coordinates that its part of the optimizer owns. A coordinate that no rank owns would be
released without noise; one that two ranks own would get the same keyed noise twice (dpsgd/noise.py), which is noise of
another scale. So the ranks exchange their fragments, and a step is only taken on a complete partition. Where every rank
holds all parameters (ZeRO 0, plain PyTorch) the manifest is `replicated`: each rank must hold everything exactly once.

>>> halves = [[Fragment("weight", 0, 3)], [Fragment("weight", 3, 3)]]
>>> check_manifest({"weight": 6}, halves, replicated=False)
>>> check_manifest({"weight": 7}, halves, replicated=False)
Traceback (most recent call last):
...
rayprivacy.core.errors.ReleaseError: no rank holds coordinate 6 of parameter 'weight' (7 in all): it would get no noise; let the fragments of all ranks cover it.
"""  # noqa: E501 - a doctest cannot break a line

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rayprivacy.core.errors import ReleaseError


@dataclass(frozen=True)
class Fragment:
    """Coordinates [start, start + count) of the flattened parameter `name`; none when count is 0."""

    name: str
    start: int
    count: int


def check_manifest(sizes: Mapping[str, int], ranks: Sequence[Sequence[Fragment]], replicated: bool) -> None:
    """Require every coordinate of every trainable parameter exactly once, over all ranks or (replicated) on each.

    Args:
        sizes: number of coordinates of each trainable parameter.
        ranks: fragments of each rank, in any order.
        replicated: whether every rank holds, and noises, all parameters.

    Raises:
        ReleaseError: there is no rank, or a coordinate is missing, held twice, out of range or of an unknown parameter.
    """
    if not ranks:
        raise ReleaseError("the noise manifest has 0 ranks: gather the fragments of every rank, this one included.")
    whole = ranks if replicated else [[fragment for rank in ranks for fragment in rank]]
    for fragments in whole:
        _check_partition(sizes, fragments)


def _check_partition(sizes: Mapping[str, int], fragments: Iterable[Fragment]) -> None:
    held: dict[str, list[Fragment]] = {name: [] for name in sizes}
    for fragment in fragments:
        if fragment.name not in held:
            raise ReleaseError(
                f"a rank holds the parameter '{fragment.name}', which is not trainable: leave it to the model."
            )
        held[fragment.name].append(fragment)
    for name, size in sizes.items():
        _check_parameter(name, size, held[name])


def _check_parameter(name: str, size: int, fragments: list[Fragment]) -> None:
    covered = 0
    for fragment in sorted(fragments, key=lambda fragment: (fragment.start, fragment.count)):
        start, end = fragment.start, fragment.start + fragment.count
        if start < 0 or end < start or end > size:
            raise ReleaseError(f"a fragment [{start}, {end}) of parameter '{name}' is outside [0, {size}): correct it.")
        if fragment.count and start < covered:
            raise ReleaseError(
                f"coordinate {start} of parameter '{name}' is held twice: it would get its noise twice; "
                "let one rank hold it."
            )
        if start > covered:
            _missing(name, size, covered)
        covered = end if fragment.count else covered
    if covered < size:
        _missing(name, size, covered)


def _missing(name: str, size: int, coordinate: int) -> None:
    raise ReleaseError(
        f"no rank holds coordinate {coordinate} of parameter '{name}' ({size} in all): it would get no noise; "
        "let the fragments of all ranks cover it."
    )
