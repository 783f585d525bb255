"""Which coordinates of which parameters a rank's optimizer owns, hence adds noise to and saves, whatever the engine.

*Partitions* map the flat tensors that this rank's optimizer updates to coordinates of named parameters. Plain PyTorch
and ZeRO 0 update whole parameters. ZeRO 1 and 2 lay all parameters end to end, cut the line into one partition for each
rank, and keep this rank's part in float32. ZeRO 3 cuts every parameter into one part for each rank and lays this rank's
parts end to end, each padded to the same length. Padding belongs to no parameter: it gets no noise, and its gradient is
set to zero. Noise and saved states are by parameter name and coordinate, so this map is all that they need to know
about a stage.

*The noise manifest* is checked before the first step. A coordinate that no rank owns would be released without noise;
one that two ranks own would get the same keyed noise twice (dpsgd/noise.py), which is noise of another scale. So the
ranks exchange their fragments, and a step is only taken on a complete partition. Where every rank holds all parameters
(ZeRO 0, plain PyTorch) the manifest is `replicated`: each rank must hold everything exactly once.

>>> halves = [[Fragment("weight", 0, 3)], [Fragment("weight", 3, 3)]]
>>> check_manifest({"weight": 6}, halves, replicated=False)
>>> check_manifest({"weight": 7}, halves, replicated=False)  # doctest: +ELLIPSIS
Traceback (most recent call last):
...
rayprivacy.core.errors.ReleaseError: no rank holds coordinate 6 of parameter 'weight' ...

*Saved states*, which any number of ranks loads from what any other saved, are a folder of

    rank-00000-of-00002.safetensors   one for each rank: flat float32 'weight:NAME:START', 'exp_avg:NAME:START', ...
    state.json                        steps done, stream of noise, optimizer; for each file its SHA-256 and fragments

Where all ranks hold the same parameters only rank 0 writes. Each file is written whole and then renamed, and state.json
is written last, with the digests of all files. So a folder whose files are missing, torn or of two saves is refused, by
every rank, and never loaded in part. States are private: weights and moments are noisy, but have not been released.
Files have mode 0600.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from rayprivacy.core.errors import ReleaseError, ShardError
from rayprivacy.core.files import read_json, write_json
from rayprivacy.core.private import digest_file
from rayprivacy.dpsgd import collectives
from rayprivacy.dpsgd.noise import STREAM

MANIFEST = "state.json"
_WEIGHT = "weight"


@dataclass(frozen=True)
class Fragment:
    """Coordinates [start, start + count) of the flattened parameter `name`; none when count is 0."""

    name: str
    start: int
    count: int


def check_manifest(sizes: Mapping[str, int], ranks: Sequence[Sequence[Fragment]], replicated: bool) -> None:
    """Require every coordinate of every trainable parameter exactly once, over all ranks or (replicated) on each."""
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
    behind = Fragment(name, size, 0)
    for fragment in (*sorted(fragments, key=lambda fragment: (fragment.start, fragment.count)), behind):
        start, end = fragment.start, fragment.start + fragment.count
        if start < 0 or end < start or end > size:
            raise ReleaseError(f"a fragment [{start}, {end}) of parameter '{name}' is outside [0, {size}): correct it.")
        if fragment.count and start < covered:
            raise ReleaseError(
                f"coordinate {start} of parameter '{name}' is held twice: it would get its noise twice; "
                "let one rank hold it."
            )
        if start > covered:
            raise ReleaseError(
                f"no rank holds coordinate {covered} of parameter '{name}' ({size} in all): it would get no noise; "
                "let the fragments of all ranks cover it."
            )
        covered = end if fragment.count else covered


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
    """A tensor that the optimizer updates, float32, and what is in it."""

    tensor: Tensor  # the tensor itself, which the optimizer holds too
    pieces: tuple[Piece, ...]  # in the order of their offsets

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


def write_state(
    folder: Path, optimizer: torch.optim.Optimizer, partitions: Sequence[Partition], replicated: bool, steps: int
) -> None:
    """Write what this rank owns into an existing folder of all ranks, in place of a state there; collective."""
    writers = 1 if replicated else collectives.world()
    own = {}
    if collectives.rank() < writers:
        path = folder / f"rank-{collectives.rank():05d}-of-{writers:05d}.safetensors"
        _write_whole(path, dict(_entries(optimizer, partitions)))
        fragments = (piece.fragment for partition in partitions for piece in partition.pieces)
        held = [[fragment.name, fragment.start, fragment.count] for fragment in fragments]
        own = {path.name: {"sha256": digest_file(path), "fragments": held}}
    files = {name: facts for written in collectives.gather(own) for name, facts in written.items()}
    if collectives.rank() == 0:
        state = optimizer.state.get(partitions[0].tensor, {})
        facts = {
            "steps": steps,
            "noise": STREAM,
            "optimizer": type(optimizer).__name__,
            "kinds": sorted(_vectors(state, partitions[0].tensor)),
            "updates": float(state["step"]) if "step" in state else None,  # torch counts for Adam's bias correction
            "files": files,
        }
        write_json(folder / MANIFEST, facts)
    collectives.wait()


def _vectors(state: Mapping[str, Any], tensor: Tensor) -> dict[str, Tensor]:
    """What of an optimizer's state has one number for each coordinate."""
    tensors = {key: value for key, value in state.items() if isinstance(value, Tensor) and key != "step"}
    return {key: value for key, value in tensors.items() if value.shape == tensor.shape}


def _entries(optimizer: torch.optim.Optimizer, partitions: Sequence[Partition]) -> Iterator[tuple[str, Tensor]]:
    for partition in partitions:
        vectors = _vectors(optimizer.state.get(partition.tensor, {}), partition.tensor)
        for kind, vector in {_WEIGHT: partition.tensor, **vectors}.items():
            flat = vector.detach().reshape(-1)
            for piece in partition.pieces:
                yield _entry(kind, piece.fragment), flat[piece.place].cpu().clone()


def _entry(kind: str, fragment: Fragment) -> str:
    return f"{kind}:{fragment.name}:{fragment.start}"


def _write_whole(path: Path, tensors: dict[str, Tensor]) -> None:
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    save_file(tensors, scratch)
    scratch.chmod(0o600)
    with scratch.open("rb") as file:
        os.fsync(file.fileno())
    scratch.replace(path)


def read_state(
    folder: Path, optimizer: torch.optim.Optimizer, partitions: Sequence[Partition], sizes: Mapping[str, int]
) -> int:
    """Set weights and optimizer state of what this rank owns; collective. Returns the number of steps done.

    Nothing is set before all is checked: when one rank finds the folder incomplete, damaged, or written for something
    else, all refuse it. So they do where ranks read different states, as those of a shared disk may be seen late: sums
    of two steps would be added up.
    """
    problem, steps = "", 0
    try:
        saved = _Saved(folder)
        saved.check(optimizer, sizes)
        steps = saved.steps
    except ShardError as error:
        problem = str(error)
    found = collectives.gather((problem, steps))
    problems = [said for said, _ in found if said]
    if problems:
        raise ShardError(problems[0])
    if len(set(found)) > 1:
        raise ShardError(f"ranks read states of different steps, in {folder} and beside it: run again with --resume.")
    for partition in partitions:
        _set_partition(saved, optimizer, partition)
    collectives.wait()
    return saved.steps


@torch.no_grad()
def _set_partition(saved: "_Saved", optimizer: torch.optim.Optimizer, partition: Partition) -> None:
    tensor = partition.tensor
    vectors = {kind: torch.zeros_like(tensor) for kind in saved.kinds}
    for kind, vector in {_WEIGHT: tensor, **vectors}.items():
        flat = vector.detach().view(-1)
        for piece in partition.pieces:
            saved.fill(flat[piece.place], kind, piece.fragment)
    if saved.updates is not None:
        vectors["step"] = torch.tensor(saved.updates, dtype=torch.float32)
    optimizer.state.pop(tensor, None)
    if vectors:
        optimizer.state[tensor] = vectors


class _Saved:
    """A folder's state: its facts, and any range of its tensors."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            facts = read_json(folder / MANIFEST)
            self.steps: int = facts["steps"]
            self.kinds: list[str] = facts["kinds"]
            self.updates: float | None = facts["updates"]
            self._optimizer: str = facts["optimizer"]
            self._stream: str = facts.get("noise", "another stream")
            self._digests = {name: own["sha256"] for name, own in facts["files"].items()}
            self._held = {name: [Fragment(*held) for held in own["fragments"]] for name, own in facts["files"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise ShardError(f"{folder / MANIFEST} is missing or damaged: load another saved state.") from None

    def check(self, optimizer: torch.optim.Optimizer, sizes: Mapping[str, int]) -> None:
        """Require the same stream of noise, optimizer and parameters, and whole files; ranks share the reading."""
        if self._stream != STREAM:
            raise ShardError(
                f"the state in {self._folder} has noise of {self._stream}, which is {STREAM} in this version: finish"
                " the run with the version that began it."
            )
        if self._optimizer != type(optimizer).__name__:
            raise ShardError(
                f"the state in {self._folder} is of {self._optimizer}, not of {type(optimizer).__name__}: "
                "set training.optimizer.kind to what the run began with."
            )
        try:
            check_manifest(sizes, list(self._held.values()), replicated=False)
        except ReleaseError:
            raise ShardError(f"the state in {self._folder} is of other parameters: load one of this model.") from None
        for number, (name, digest) in enumerate(self._digests.items()):
            path = self._folder / name
            mine = number % collectives.world() == collectives.rank()
            if not path.is_file() or (mine and digest_file(path) != digest):
                raise ShardError(f"{path} is missing or damaged: load another saved state.")

    def fill(self, flat: Tensor, kind: str, wanted: Fragment) -> None:
        """Set all of `flat` [wanted.count] from the files that hold parts of it."""
        for name, fragments in self._held.items():
            for held in fragments:
                start = max(held.start, wanted.start)
                stop = min(held.start + held.count, wanted.start + wanted.count)
                if held.name == wanted.name and start < stop:
                    with safe_open(self._folder / name, framework="pt") as file:
                        part = file.get_slice(_entry(kind, held))[start - held.start : stop - held.start]
                    flat[start - wanted.start : stop - wanted.start] = part.to(flat.device)
