"""Train a stack of G teachers at once, and sum their votes.

Each teacher is a square matrix R_j [r, r] between the public bases (models/adapters), fitted by AdamW to the
next-token examples of ONE shard, ranking the public shortlist. All G matrices train in one batched product.

Every tensor here has a shape fixed by public settings: a step takes `batch` examples of each teacher, cycling through
what it has. So teacher j's matrix depends on shard j alone, to the last bit, whatever its neighbours hold; that is
what makes "one user changes one teacher" literally true.
"""

import numpy as np
import numpy.typing as npt
import torch

from rayprivacy.models.adapters import Basis
from rayprivacy.models.features import Features
from rayprivacy.models.queries import Queries
from rayprivacy.release.vote import VoteMechanism
from rayprivacy.teachers.settings import TeachersConfig

QUERY_ROWS = 32


def train_stack(shards: list[Features], basis: Basis, head: torch.Tensor, config: TeachersConfig) -> torch.Tensor:
    """Fit one adapter per shard.

    Args:
        shards: private examples of each of the G shards of the stack, in teacher order.
        basis: public bases and shortlist.
        head: output head, float32 [vocabulary, width].
        config: public training settings.

    Returns:
        R, float32 [G, rank, rank]; zero (the public model) for an empty shard.
    """
    slots = [_usable(shard, basis) for shard in shards]
    filled = torch.tensor([float(len(slot) > 0) for slot in slots])
    short_head = head[basis.shortlist]
    outward = short_head @ basis.outward.T
    matrices = torch.zeros(len(shards), basis.inward.shape[1], len(basis.outward), requires_grad=True)
    optimizer = torch.optim.AdamW([matrices], lr=config.learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    for step in range(config.steps):
        hidden, targets = _minibatch(slots, step, config.batch, head.shape[1])
        logits = hidden @ short_head.T + torch.bmm(hidden @ basis.inward, matrices) @ outward.T
        losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        optimizer.zero_grad()
        (losses.view_as(targets).mean(1) * filled).sum().backward()
        optimizer.step()
    return matrices.detach() * filled[:, None, None]


def _usable(shard: Features, basis: Basis) -> Features:
    """Examples whose target is on the shortlist, with targets renumbered to shortlist positions."""
    place = torch.searchsorted(basis.shortlist, shard.targets).clamp_max(len(basis.shortlist) - 1)
    keep = basis.shortlist[place] == shard.targets
    return Features(shard.hidden[keep], place[keep])


def _minibatch(slots: list[Features], step: int, batch: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    hidden = torch.zeros(len(slots), batch, width)
    targets = torch.zeros(len(slots), batch, dtype=torch.int64)
    for row, slot in enumerate(slots):
        if len(slot):
            take = (torch.arange(batch) + step * batch) % len(slot)
            hidden[row] = slot.hidden[take].float()
            targets[row] = slot.targets[take]
    return hidden, targets


@torch.no_grad()
def summed_votes(
    matrices: torch.Tensor, basis: Basis, head: torch.Tensor, queries: Queries, mechanism: VoteMechanism
) -> npt.NDArray[np.int64]:
    """Sum over the stack of the teachers' distributions over the candidates, in fixed point, int64 [queries, k].

    Integers make the sum independent of the order and grouping of teachers. Queries are answered in blocks of one
    fixed size, so that the block a query falls into does not change its last bit.
    """
    padded = _padded(queries, -len(queries) % QUERY_ROWS)
    blocks = range(0, len(padded), QUERY_ROWS)
    sums = [_block(matrices, basis, head, padded.rows(at, at + QUERY_ROWS), mechanism) for at in blocks]
    return np.concatenate(sums)[: len(queries)]


def _padded(queries: Queries, rows: int) -> Queries:
    pad = torch.nn.functional.pad
    return Queries(
        pad(queries.hidden, (0, 0, 0, rows)),
        pad(queries.candidates, (0, 0, 0, rows)),
        pad(queries.allowed, (0, 0, 0, rows), value=True),
    )


def _block(
    matrices: torch.Tensor, basis: Basis, head: torch.Tensor, queries: Queries, mechanism: VoteMechanism
) -> npt.NDArray[np.int64]:
    columns = head[queries.candidates]  # [block, k, width]
    public = torch.bmm(columns, queries.hidden[:, :, None]).transpose(1, 2)  # [block, 1, k]
    moved = torch.matmul((queries.hidden @ basis.inward)[None], matrices).transpose(0, 1)  # [block, G, rank]
    logits = public + torch.bmm(moved, (columns @ basis.outward.T).transpose(1, 2))  # [block, G, k]
    logits = logits.masked_fill(~queries.allowed[:, None, :], -torch.inf)
    sums: npt.NDArray[np.int64] = mechanism.quantise(torch.softmax(logits, -1).numpy()).sum(1)
    return sums
