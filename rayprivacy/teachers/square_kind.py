"""Teachers on top of the final trunk state: one training loop, and votes for a whole stack at once.

    logits(h) = O (h' + (h' P) R_j S) ,   h' = warm(h) the public student's state,   O the output head

P [width, r] whitens public states, S [r, width] spans the output embeddings, and the square R_j [r, r] is trained.
P and S are the public bases of models/adapters: they come from public text, so that a teacher is r * r numbers and
starts where public text ends. No step touches more than R_j: the student's logits and the product of O with S are
computed once.

Teachers are trained one after the other, each by a function of its own shard and of public settings: that is what makes
"one user changes one teacher" literally true, for shards of any size, to the last bit. A step is long enough (about a
millisecond at rank 128) that a stack in one batched product would be no faster, and would wait for its largest shard.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from rayprivacy.models.adapters import HeadAdapter
from rayprivacy.models.features import Encoded, Features, Queries
from rayprivacy.teachers.head_kinds import FILLED, State
from rayprivacy.teachers.settings import TeachersConfig

QUERY_ROWS = 32  # queries are answered in blocks of one size: the block of a query changes none of its bits
BETAS = (0.9, 0.95)
EPSILON = 1e-8


@dataclass(frozen=True)
class _Block:
    """The public side of QUERY_ROWS queries, the same for every stack that answers them."""

    inward: torch.Tensor  # the public student's states in the coordinates of P, float32 [QUERY_ROWS, r]
    logits: torch.Tensor  # the student's logits of the candidates, float32 [QUERY_ROWS, 1, k]
    candidates: torch.Tensor  # token ids, int64 [QUERY_ROWS, k]
    barred: torch.Tensor  # which candidates do not count, bool [QUERY_ROWS, 1, k]


class SquareKind:
    """A state holds `matrix`, R, float32 [G, r, r]; r is `teachers.width`, or the rank of the bases if that is less."""

    def __init__(self, config: TeachersConfig, warm: HeadAdapter, head: torch.Tensor) -> None:
        self.config, self.warm, self.head = config, warm, head  # all teachers start from `warm`, the public student
        self.columns = head @ warm.basis.outward[: config.width].T
        self._shortlist = warm.basis.shortlist
        self._short_head, self._short_columns = head[self._shortlist], self.columns[self._shortlist]
        self._asked: tuple[Queries, list[_Block]] | None = None

    def start(self) -> torch.Tensor:
        """R of zeros: the change of a teacher before its first step."""
        rank = min(self.config.width, len(self.warm.basis.outward))
        return torch.zeros(rank, rank, device=self.head.device)

    def inward(self, hidden: torch.Tensor) -> torch.Tensor:
        """The student's states [rows, width] in the coordinates of P, [rows, r]; computed once for each state."""
        return hidden @ self.warm.basis.inward[:, : self.config.width]

    def train(self, shards: Sequence[Encoded]) -> State:
        """Fit one teacher to each shard: matrices [G, r, r], and `filled` bool [G], whether a shard held an example."""
        examples = (self._usable(shard.examples) for shard in shards)
        teachers = [(self._fit(own), len(own) > 0) for own in examples]
        return {
            "matrix": torch.stack([matrix for matrix, _ in teachers]),
            FILLED: torch.tensor([filled for _, filled in teachers]),
        }

    def _usable(self, examples: Features) -> Features:
        place = torch.searchsorted(self._shortlist, examples.targets).clamp_max(len(self._shortlist) - 1)
        keep = self._shortlist[place] == examples.targets
        return Features(examples.hidden[keep], place[keep])

    def _fit(self, examples: Features) -> torch.Tensor:
        """AdamW on one teacher's examples, `batch` of them a step, cycling."""
        config = self.config
        matrix = self.start()
        steps = config.steps(len(examples))
        if not steps:
            return matrix
        used = min(len(examples), steps * config.batch)  # a public bound on memory, whatever the shard holds
        hidden, targets = self.warm(examples.hidden[:used]), examples.targets[:used]
        inward, public, columns = self.inward(hidden), hidden @ self._short_head.T, self._short_columns
        optimizer = Adam(matrix.requires_grad_(), config.step_size)
        rows = torch.arange(config.batch, device=self.head.device)
        for step in range(steps):
            take = (rows + step * config.batch) % used
            moved = torch.matmul(inward[take], matrix)
            # Cross entropy has its gradient in closed form, which spares a second pass over the shortlist.
            with torch.no_grad():
                surprise = torch.addmm(public[take], moved, columns.T).softmax(-1)
                surprise[rows, targets[take]] -= 1
                slope = surprise @ columns / config.batch
            moved.backward(slope)
            optimizer.step()
        return matrix.detach()

    @torch.no_grad()
    def answers(self, state: State, queries: Queries) -> Iterator[torch.Tensor]:
        """Distributions over the candidates, float32 [block, G, k], block after block of queries in order."""
        left = len(queries)
        for block in self._blocks(queries):
            moved = torch.matmul(block.inward, state["matrix"]).transpose(0, 1)  # [block, G, r]
            logits = torch.baddbmm(block.logits, moved, self.columns[block.candidates].mT)
            yield logits.masked_fill_(block.barred, -torch.inf).softmax(-1)[:left]
            left -= QUERY_ROWS

    def _blocks(self, queries: Queries) -> list[_Block]:
        """Prepared once for all blocks of teachers that answer the same queries one after the other."""
        if self._asked is None or self._asked[0] is not queries:
            padded = Queries.join([queries, *[queries.rows(0, 1)] * (-len(queries) % QUERY_ROWS)])
            starts = range(0, len(padded), QUERY_ROWS)
            self._asked = queries, [self._block(padded.rows(at, at + QUERY_ROWS)) for at in starts]
        return self._asked[1]

    def _block(self, queries: Queries) -> _Block:
        hidden = self.warm(queries.hidden)
        logits = (self.head[queries.candidates] * hidden[:, None]).sum(-1)
        return _Block(self.inward(hidden), logits[:, None], queries.candidates, ~queries.allowed[:, None])


class Adam:
    """Adam (Kingma & Ba, 2015), which is AdamW without weight decay, for one small tensor, moved in place.

    torch.optim does the same and imports a compiler on its way, which costs every new actor a second and a thousand
    modules before its first step; a teacher's whole training may take less.
    """

    def __init__(self, tensor: torch.Tensor, step_size: float) -> None:
        self._tensor = tensor
        self._mean, self._square = torch.zeros_like(tensor), torch.zeros_like(tensor)
        self._step_size, self._steps = step_size, 0

    @torch.no_grad()
    def step(self) -> None:
        """Take one step, and forget the gradient."""
        self._steps += 1
        unbiased = [1 - beta**self._steps for beta in BETAS]
        gradient = self._tensor.grad
        assert gradient is not None
        self._mean.lerp_(gradient, 1 - BETAS[0])
        self._square.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
        spread = (self._square / unbiased[1]).sqrt_().add_(EPSILON)
        self._tensor.addcdiv_(self._mean, spread, value=-self._step_size / unbiased[0])
        self._tensor.grad = None
