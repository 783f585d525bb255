"""What one stack of teachers leaves on disk, so that a killed run goes on where it stopped.

A part is finished when its marker is there; the marker names the digests of the teachers and of what they were trained
from. Everything in the folder is private: mode 0600 in a 0700 directory.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load, save

from rayprivacy.core.artifacts import digest_bytes, digest_file, digest_json
from rayprivacy.core.errors import ShardError
from rayprivacy.core.files import private_directory, read_json, write_atomic, write_json


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

    def _files(self, part: int) -> tuple[Path, Path]:
        stem = f"part-{part:05d}"
        return self.root / f"{stem}.teachers.safetensors", self.root / f"{stem}.done"

    def input_digest(self, shard_file: Path) -> str:
        """Digest of a part's private input together with the public recipe."""
        return digest_json([self.recipe, digest_file(shard_file)])

    def finished(self, part: int, source: str) -> bool:
        """Whether this part was trained from this very input and its file is intact."""
        teachers, done = self._files(part)
        if not (teachers.exists() and done.exists()):
            return False
        return bool(read_json(done) == {"source": source, "teachers": digest_file(teachers)})

    def write(self, part: int, source: str, state: dict[str, torch.Tensor]) -> None:
        """Store the trained teachers of a part, [G, ...] by name; the marker comes last."""
        trained = save({name: tensor.contiguous() for name, tensor in state.items()})
        teachers, done = self._files(part)
        write_atomic(teachers, trained)
        write_json(done, {"source": source, "teachers": digest_bytes(trained)})

    def read(self, part: int) -> dict[str, torch.Tensor]:
        """The trained teachers of a part, [G, ...] by name.

        Raises:
            ShardError: the part was not trained.
        """
        path = self._files(part)[0]
        if not path.exists():
            raise ShardError(f"part {part} of the teachers is not on disk: run again with --resume.")
        return load(path.read_bytes())
