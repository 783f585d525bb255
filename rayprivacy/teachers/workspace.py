"""What one stack of teachers leaves on disk, so that a killed run goes on where it stopped.

A part is finished when its marker is there; the marker names the digests of the features and the matrices and of what
they were computed from. Everything in the folder is private: mode 0600 in a 0700 directory.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load, save

from rayprivacy.core.artifacts import digest_bytes, digest_file, digest_json
from rayprivacy.core.errors import ShardError
from rayprivacy.core.files import private_directory, read_json, write_atomic, write_json
from rayprivacy.models.features import Features


@dataclass(frozen=True)
class Workspace:
    """The folder of a teacher ensemble.

    Attributes:
        root: the folder.
        recipe: digest of everything public that decides what teachers are; another value means other teachers.
    """

    root: Path
    recipe: str

    def prepare(self) -> None:
        """Make the folder, for the owner only, without scratch files of a killed run."""
        private_directory(self.root)
        for scratch in self.root.glob(".part-*"):
            scratch.unlink()

    def _files(self, part: int) -> tuple[Path, Path, Path]:
        stem = f"part-{part:05d}"
        return (
            self.root / f"{stem}.features.safetensors",
            self.root / f"{stem}.teachers.safetensors",
            self.root / f"{stem}.done",
        )

    def input_digest(self, shard_file: Path) -> str:
        """Digest of a part's private input together with the public recipe."""
        return digest_json([self.recipe, digest_file(shard_file)])

    def finished(self, part: int, source: str) -> bool:
        """Whether this part was trained from this very input and its files are intact."""
        features, teachers, done = self._files(part)
        if not all(path.exists() for path in (features, teachers, done)):
            return False
        marker = read_json(done)
        return bool(
            marker["source"] == source
            and digest_file(features) == marker["features"]
            and digest_file(teachers) == marker["teachers"]
        )

    def write(self, part: int, source: str, shards: list[Features], matrices: torch.Tensor) -> None:
        """Store a trained part; the marker comes last."""
        lengths = torch.tensor([len(shard) for shard in shards])
        hidden, targets = torch.cat([s.hidden for s in shards]), torch.cat([s.targets for s in shards])
        cached = save({"hidden": hidden, "targets": targets, "lengths": lengths})
        trained = save({"matrices": matrices})
        features, teachers, done = self._files(part)
        write_atomic(features, cached, 0o600)
        write_atomic(teachers, trained, 0o600)
        marker = {"source": source, "features": digest_bytes(cached), "teachers": digest_bytes(trained)}
        write_json(done, marker, 0o600)

    def matrices(self, part: int) -> torch.Tensor:
        """The trained matrices of a part, float32 [G, rank, rank]."""
        return self._load(self._files(part)[1], part)["matrices"]

    def features(self, part: int) -> Features:
        """The cached private features of a part, all its shards together."""
        tensors = self._load(self._files(part)[0], part)
        return Features(tensors["hidden"], tensors["targets"])

    def _load(self, path: Path, part: int) -> dict[str, torch.Tensor]:
        if not path.exists():
            raise ShardError(f"part {part} of the teachers is not on disk: run again with --resume.")
        return load(path.read_bytes())
