"""What teachers are asked: a public context, and the candidate tokens they spread their vote over."""

from dataclasses import dataclass, fields
from pathlib import Path

import torch
from safetensors.torch import load_file

from rayprivacy.core.artifacts import digest_array, digest_json


@dataclass(frozen=True)
class Queries:
    """Queries; everything in them is public (pseudo-sentences and the student's own choices).

    Attributes:
        hidden: final trunk states of the contexts, float32 [queries, width].
        candidates: token ids, int64 [queries, k].
        allowed: which candidates count, bool [queries, k] (top-p keeps fewer than k); at least one each.
        centre: the student's distribution over the allowed candidates, float32 [queries, k]; what centred votes are
            measured from, and what a vote is mixed with.
        context: row and position of the context in the round's encoded pseudo-sentences, int64 [queries, 2].
    """

    hidden: torch.Tensor
    candidates: torch.Tensor
    allowed: torch.Tensor
    centre: torch.Tensor
    context: torch.Tensor

    def __len__(self) -> int:
        return len(self.candidates)

    @property
    def digest(self) -> str:
        """Names the queries by all that they hold."""
        return digest_json([digest_array(getattr(self, field.name).numpy()) for field in fields(self)])

    def rows(self, start: int, stop: int) -> "Queries":
        """A slice of the queries."""
        return Queries(*(getattr(self, field.name)[start:stop] for field in fields(self)))

    def by_context(self) -> "Queries":
        """The same queries in the order of their contexts: kinds that run whole rows then meet a row once a block."""
        order = sorted(range(len(self)), key=self.context.tolist().__getitem__)
        return Queries(*(getattr(self, field.name)[order] for field in fields(self)))

    @staticmethod
    def join(parts: list["Queries"]) -> "Queries":
        """All queries in order."""
        return Queries(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(Queries)))

    def to(self, device: torch.device) -> "Queries":
        """The same queries on a device."""
        return Queries(*(getattr(self, field.name).to(device) for field in fields(self)))

    @staticmethod
    def load(path: Path) -> "Queries":
        """Read from a safetensors file."""
        return Queries(**load_file(path))
