"""What every kind of teacher offers: train a stack of G teachers at once, and answer queries with all of them.

Privacy argument, the same for all kinds: teacher j of a stack depends on shard j alone, to the last bit, whatever its
neighbours in the stack hold. A kind that breaks this breaks the sensitivity of the vote.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch

from rayprivacy.models.features import Encoded
from rayprivacy.models.queries import Queries

State = dict[str, torch.Tensor]  # every tensor is [G, ...]
FILLED = "filled"  # bool [G], in every state: whether the teacher had anything to learn from


class TeacherKind(Protocol):
    """One kind of teacher over one public base."""

    def train(self, shards: Sequence[Encoded]) -> State:
        """Fit G teachers, one to each shard, in order; where there is nothing to learn, `filled` is False."""
        ...

    def answers(self, state: State, queries: Queries) -> Iterator[torch.Tensor]:
        """Distributions over the candidates, float32 [block, G, k], block after block of queries in order."""
        ...
