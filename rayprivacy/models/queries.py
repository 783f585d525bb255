"""What teachers are asked: a public context, and the candidate tokens they spread their vote over."""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file


@dataclass(frozen=True)
class Queries:
    """Queries; everything in them is public (pseudo-sentences and the student's own choices).

    Attributes:
        hidden: trunk features of the contexts, float32 [queries, width].
        candidates: token ids, int64 [queries, k].
        allowed: which candidates count, bool [queries, k] (top-p keeps fewer than k); at least one each.
    """

    hidden: torch.Tensor
    candidates: torch.Tensor
    allowed: torch.Tensor

    def __len__(self) -> int:
        return len(self.candidates)

    def rows(self, start: int, stop: int) -> "Queries":
        """A slice of the queries."""
        return Queries(self.hidden[start:stop], self.candidates[start:stop], self.allowed[start:stop])

    @staticmethod
    def load(path: Path) -> "Queries":
        """Read from a safetensors file."""
        return Queries(**load_file(path))
