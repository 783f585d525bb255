"""Files of weights and optimizer state by parameter name and range: any number of ranks loads what any other saved.

A folder holds

    rank-00000-of-00002.safetensors   one for each rank: flat float32 'weight:NAME:START', 'exp_avg:NAME:START', ...
    state.json                        steps done, the optimizer, and for each file its SHA-256 and its fragments

Where all ranks hold the same parameters only rank 0 writes. Each file is written whole and then renamed, and state.json
is written last, with the digests of all files. So a folder whose files are missing, torn or of two saves is refused, by
every rank, and never loaded in part.

States are private: weights and moments are noisy, but have not been released. Files have mode 0600.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from rayprivacy.core.errors import ReleaseError, ShardError
from rayprivacy.core.files import read_json, write_json
from rayprivacy.dpsgd import collectives
from rayprivacy.dpsgd.engines.manifest import Fragment, check_manifest
from rayprivacy.dpsgd.engines.partitions import Partition

MANIFEST = "state.json"
_WEIGHT = "weight"


def write_state(
    folder: Path,
    optimizer: torch.optim.Optimizer,
    partitions: Sequence[Partition],
    replicated: bool,
    steps: int,
) -> None:
    """Write what this rank owns into an existing folder, in place of a state that is there; collective.

    The folder is one for all ranks. With `replicated` every rank holds the same, so that rank 0 alone writes.
    """
    writers = 1 if replicated else collectives.world()
    own = {}
    if collectives.rank() < writers:
        path = folder / f"rank-{collectives.rank():05d}-of-{writers:05d}.safetensors"
        _write_whole(path, dict(_entries(optimizer, partitions)))
        fragments = (piece.fragment for partition in partitions for piece in partition.pieces)
        held = [[fragment.name, fragment.start, fragment.count] for fragment in fragments]
        own = {path.name: {"sha256": _digest(path), "fragments": held}}
    files = {name: facts for written in collectives.gather(own) for name, facts in written.items()}
    if collectives.rank() == 0:
        state = optimizer.state.get(partitions[0].tensor, {})
        facts = {
            "steps": steps,
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


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_state(
    folder: Path, optimizer: torch.optim.Optimizer, partitions: Sequence[Partition], sizes: Mapping[str, int]
) -> int:
    """Set weights and optimizer state of what this rank owns; collective. Returns the number of steps done.

    Nothing is set before all is checked: when one rank finds the folder incomplete, damaged, or written for something
    else, all refuse it.
    """
    problem = None
    try:
        saved = _Saved(folder)
        saved.check(optimizer, sizes)
    except ShardError as error:
        problem = str(error)
    problems = [found for found in collectives.gather(problem) if found]
    if problems:
        raise ShardError(problems[0])
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
    state: dict[str, Any] = dict(vectors)
    if saved.updates is not None:
        state["step"] = torch.tensor(saved.updates, dtype=torch.float32)
    optimizer.state.pop(tensor, None)
    if state:
        optimizer.state[tensor] = state


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
            self._digests = {name: own["sha256"] for name, own in facts["files"].items()}
            self._held = {name: [Fragment(*held) for held in own["fragments"]] for name, own in facts["files"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise ShardError(f"{folder / MANIFEST} is missing or damaged: load another saved state.") from None

    def check(self, optimizer: torch.optim.Optimizer, sizes: Mapping[str, int]) -> None:
        """Require the same kind of optimizer, the same parameters, and whole files; ranks share the reading."""
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
            if not path.is_file() or (mine and _digest(path) != digest):
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
