"""Partitions: a map of the flat tensors that this rank's optimizer updates to coordinates of named parameters.

Plain PyTorch and ZeRO 0 update whole parameters. ZeRO 1 and 2 lay all parameters end to end, cut the line into one
partition for each rank, and keep this rank's part in float32. ZeRO 3 cuts every parameter into one part for each rank
and lays this rank's parts end to end, each padded to the same length. Noise and saved states are by parameter name and
coordinate, so this map is all that they need to know about a stage.

A partition may hold padding. It belongs to no parameter: it gets no noise, and its gradient is set to zero.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from rayprivacy.dpsgd.engines.manifest import Fragment


@dataclass(frozen=True)
class Piece:
    """A fragment of a parameter, and where it begins in its partition."""

    fragment: Fragment
    offset: int

    @property
    def place(self) -> slice:
        """Where it is in the flattened partition."""
        return slice(self.offset, self.offset + self.fragment.count)


@dataclass(frozen=True, eq=False)
class Partition:
    """A tensor that the optimizer updates, float32, and what is in it.

    Attributes:
        tensor: the tensor itself, which the optimizer holds too.
        pieces: in the order of their offsets.
    """

    tensor: Tensor
    pieces: tuple[Piece, ...]

    @property
    def gaps(self) -> Iterator[slice]:
        """The padding: what lies between pieces."""
        end = 0
        for piece in self.pieces:
            if piece.offset > end:
                yield slice(end, piece.offset)
            end = piece.place.stop
        if end < self.tensor.numel():
            yield slice(end, self.tensor.numel())


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The trainable parameters by name, in the order of the model; a tied one comes once."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def size(parameter: nn.Parameter) -> int:
    """Number of coordinates, also of a parameter that ZeRO 3 has partitioned."""
    return int(getattr(parameter, "ds_numel", parameter.numel()))


def whole(parameters: Mapping[str, Tensor]) -> list[Partition]:
    """Partitions of an optimizer that updates whole parameters."""
    return [
        Partition(parameter, (Piece(Fragment(name, 0, parameter.numel()), 0),))
        for name, parameter in parameters.items()
    ]


def of_stages_1_and_2(zero: Any, names: Mapping[nn.Parameter, str]) -> list[Partition]:
    """Partitions of DeepSpeed's optimizer of ZeRO 1 and 2, one for each group of parameters."""
    return [
        Partition(flat, _in_order(_linked(parameter, names[parameter]) for parameter in group))
        for flat, group in zip(zero.single_partition_of_fp32_groups, zero.bit16_groups, strict=True)
    ]


def _linked(parameter: Any, name: str) -> Piece | None:
    link = parameter._hp_mapping
    if link is None:  # all of it belongs to other ranks
        return None
    held, flat = link.lp_fragment_address, link.hp_fragment_address
    return Piece(Fragment(name, held.start, held.numel), flat.start)


def of_stage_3(zero: Any, names: Mapping[nn.Parameter, str], rank: int) -> list[Partition]:
    """Partitions of DeepSpeed's optimizer of ZeRO 3, one for each of its sub-groups."""
    return [
        Partition(flat, _in_order(_laid_out(group, names, rank)))
        for flat, group in zip(zero.fp32_partitioned_groups_flat, zero.fp16_groups, strict=True)
    ]


def _laid_out(group: Sequence[Any], names: Mapping[nn.Parameter, str], rank: int) -> Iterator[Piece]:
    offset = 0
    for parameter in group:
        part = int(parameter.partition_numel())
        start = min(rank * part, size(parameter))
        yield Piece(Fragment(names[parameter], start, min(part, size(parameter) - start)), offset)
        offset += part


def _in_order(pieces: Iterator[Piece | None]) -> tuple[Piece, ...]:
    real = (piece for piece in pieces if piece is not None and piece.fragment.count)
    return tuple(sorted(real, key=lambda piece: piece.offset))
