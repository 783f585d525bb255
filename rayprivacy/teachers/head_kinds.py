"""What every kind of teacher offers: train G teachers, and answer queries with all of them.

Privacy argument, the same for all kinds: teacher j depends on shard j alone, to the last bit, whatever the teachers
beside it hold. A kind that breaks this breaks the sensitivity of the vote.

Teachers answer in blocks of VOTERS, which the number of a teacher fixes: a product of matrices may differ in its last
bits with the number of its rows. So how teachers are dealt out changes no answer.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch

from rayprivacy.models.features import Encoded, Queries

State = dict[str, torch.Tensor]  # every tensor is [G, ...]
VOTERS = 10  # a block of one is two to three times as slow, and one of 50 a twentieth faster
FILLED = "filled"  # bool [G], in every state: whether the teacher had anything to learn from


def on(state: State, device: torch.device | str) -> State:
    """Teachers on a device."""
    return {name: tensor.to(device) for name, tensor in state.items()}


class TeacherKind(Protocol):
    """One kind of teacher over one public base."""

    def train(self, shards: Sequence[Encoded]) -> State:
        """Fit G teachers, one to each shard, in order; where there is nothing to learn, `filled` is False."""
        ...

    def answers(self, state: State, queries: Queries) -> Iterator[torch.Tensor]:
        """Distributions over the candidates, float32 [block, G, k], block after block of queries in order."""
        ...
