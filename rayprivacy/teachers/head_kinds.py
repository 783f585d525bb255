"""Kinds of teachers on top of the final trunk state: one training loop, and votes for a whole stack at once.

    logits(h) = O (h' + change(h')) ,   h' = warm(h) the public student's state,   O the output head

A kind says what it trains and what `change` is, factored as `moved(teacher, h') @ outward`, so that no step touches
more than what the kind trains: the student's logits and the product of the head with `outward` are computed once.

    SquareKind      change(h) = (h P) R_j S     P [width, r] whitens public states, S [r, width] spans the output
                                                embeddings, R_j [r, r] is trained
    ResidualKind    change(h) = h A_j B_j       A [width, r] starts from a public seed, B [r, width] at zero; both are
                                                trained

P and S are the public bases of models/adapters. They come from public text, so that a square teacher is r * r numbers
and starts where public text ends. A residual is more free than a square matrix of the same size, as it finds its own
directions, and slower: its change has the full width of the state.

Teachers are trained one after the other, each by a function of its own shard and of public settings: that is what makes
"one user changes one teacher" literally true, for shards of any size, to the last bit. A step is long enough (about a
millisecond at rank 128) that a stack in one batched product would be no faster, and would wait for its largest shard.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from rayprivacy.models.adapters import HeadAdapter
from rayprivacy.models.features import Encoded, Features
from rayprivacy.models.queries import Queries
from rayprivacy.teachers.kinds import FILLED, State
from rayprivacy.teachers.settings import TeachersConfig

QUERY_ROWS = 32  # queries are answered in blocks of one size: the block of a query changes none of its bits
SEED = 20_220_611  # public, and the same for every teacher
BETAS = (0.9, 0.95)
EPSILON = 1e-8


@dataclass(frozen=True)
class _Block:
    """The public side of QUERY_ROWS queries, the same for every stack that answers them.

    Attributes:
        inward: what `moved` reads of the public student's states.
        logits: the student's logits of the candidates, float32 [QUERY_ROWS, 1, k].
        candidates: token ids, int64 [QUERY_ROWS, k].
        barred: which candidates do not count, bool [QUERY_ROWS, 1, k].
    """

    inward: torch.Tensor
    logits: torch.Tensor
    candidates: torch.Tensor
    barred: torch.Tensor


class HeadKind(ABC):
    """A kind of teacher on top of the final trunk state."""

    def __init__(self, config: TeachersConfig, warm: HeadAdapter, head: torch.Tensor) -> None:
        """Prepare what all teachers share.

        Args:
            config: public training settings.
            warm: the public student that teachers start from.
            head: output head, float32 [vocabulary, width].
        """
        self.config = config
        self.warm = warm
        self.head = head
        self.columns = self.outward(head)
        self._shortlist = warm.basis.shortlist
        self._short_head, self._short_columns = head[self._shortlist], self.columns[self._shortlist]
        self._asked: tuple[Queries, list[_Block]] | None = None

    @abstractmethod
    def start(self) -> State:
        """What a teacher trains, before its first step: a change of zero."""

    @abstractmethod
    def moved(self, teachers: State, inward: torch.Tensor) -> torch.Tensor:
        """The inner side of the change, float32 [..., rows, inner], for one teacher or [G, ...] of them."""

    @abstractmethod
    def inward(self, hidden: torch.Tensor) -> torch.Tensor:
        """What `moved` reads of the student's states [rows, width], computed once for each state."""

    @abstractmethod
    def outward(self, head: torch.Tensor) -> torch.Tensor:
        """Rows of the output head [rows, width] as `moved` meets them, float32 [rows, inner]."""

    def train(self, shards: Sequence[Encoded]) -> State:
        """Fit one teacher to each shard.

        Returns:
            What each trained, stacked [G, ...], and `filled` bool [G]: whether the shard held an example at all.
        """
        examples = (self._usable(shard.examples) for shard in shards)
        teachers = [(self._fit(own), len(own) > 0) for own in examples]
        stacked = {name: torch.stack([teacher[name] for teacher, _ in teachers]) for name in self.start()}
        return stacked | {FILLED: torch.tensor([filled for _, filled in teachers])}

    def _usable(self, examples: Features) -> Features:
        """Examples whose target is on the shortlist, with targets renumbered to shortlist positions."""
        place = torch.searchsorted(self._shortlist, examples.targets).clamp_max(len(self._shortlist) - 1)
        keep = self._shortlist[place] == examples.targets
        return Features(examples.hidden[keep], place[keep])

    def _fit(self, examples: Features) -> State:
        """AdamW on one teacher's examples, `batch` of them a step, cycling."""
        config = self.config
        teacher = self.start()
        steps = config.steps(len(examples))
        if not steps:
            return teacher
        used = min(len(examples), steps * config.batch)  # a public bound on memory, whatever the shard holds
        hidden = self.warm(examples.hidden[:used])
        targets = examples.targets[:used]
        inward = self.inward(hidden)
        public = hidden @ self._short_head.T
        columns = self._short_columns
        optimizer = Adam([tensor.requires_grad_() for tensor in teacher.values()], config.step_size)
        rows = torch.arange(config.batch, device=self.head.device)
        for step in range(steps):
            take = (rows + step * config.batch) % used
            moved = self.moved(teacher, inward[take])
            # Cross entropy has its gradient in closed form, which spares a second pass over the shortlist.
            with torch.no_grad():
                surprise = torch.addmm(public[take], moved, columns.T).softmax(-1)
                surprise[rows, targets[take]] -= 1
                slope = surprise @ columns / config.batch
            moved.backward(slope)
            optimizer.step()
        return {name: tensor.detach() for name, tensor in teacher.items()}

    @torch.no_grad()
    def answers(self, state: State, queries: Queries) -> Iterator[torch.Tensor]:
        """Distributions over the candidates, float32 [block, G, k], block after block of queries in order."""
        left = len(queries)
        for block in self._blocks(queries):
            moved = self.moved(state, block.inward).transpose(0, 1)  # [block, G, inner]
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


class SquareKind(HeadKind):
    """The tensor `matrix` is R, float32 [G, r, r]; r is `teachers.width`, or the rank of the bases if that is less."""

    def start(self) -> State:
        """R of zeros."""
        rank = min(self.config.width, len(self.warm.basis.outward))
        return {"matrix": torch.zeros(rank, rank, device=self.head.device)}

    def moved(self, teachers: State, inward: torch.Tensor) -> torch.Tensor:
        """The change in the coordinates of S, [..., rows, r]."""
        return torch.matmul(inward, teachers["matrix"])

    def inward(self, hidden: torch.Tensor) -> torch.Tensor:
        """The states in the coordinates of P, [rows, r]."""
        return hidden @ self.warm.basis.inward[:, : self.config.width]

    def outward(self, head: torch.Tensor) -> torch.Tensor:
        """Rows of the head in the coordinates of S, [rows, r]."""
        return head @ self.warm.basis.outward[: self.config.width].T


class ResidualKind(HeadKind):
    """The tensors `down` and `up` are A, float32 [G, width, r], and B, float32 [G, r, width]."""

    def start(self) -> State:
        """A drawn from the public seed, B of zeros."""
        width, rank = self.head.shape[1], self.config.width
        drawn = torch.randn(width, rank, generator=torch.Generator().manual_seed(SEED), device="cpu")
        down = drawn / math.sqrt(width)
        return {"down": down.to(self.head.device), "up": torch.zeros(rank, width, device=self.head.device)}

    def moved(self, teachers: State, inward: torch.Tensor) -> torch.Tensor:
        """The change itself, [..., rows, width]."""
        return torch.matmul(torch.matmul(inward, teachers["down"]), teachers["up"])

    def inward(self, hidden: torch.Tensor) -> torch.Tensor:
        """The states as they are."""
        return hidden

    def outward(self, head: torch.Tensor) -> torch.Tensor:
        """The head as it is."""
        return head


class Adam:
    """Adam (Kingma & Ba, 2015), which is AdamW without weight decay, for a few small tensors, moved in place.

    torch.optim does the same and imports a compiler on its way, which costs every new actor a second and a thousand
    modules before its first step; a teacher's whole training may take less.
    """

    def __init__(self, tensors: Iterable[torch.Tensor], step_size: float) -> None:
        self._moments = [(tensor, torch.zeros_like(tensor), torch.zeros_like(tensor)) for tensor in tensors]
        self._step_size = step_size
        self._steps = 0

    @torch.no_grad()
    def step(self) -> None:
        """Take one step, and forget the gradients."""
        self._steps += 1
        unbiased = [1 - beta**self._steps for beta in BETAS]
        for tensor, mean, square in self._moments:
            gradient = tensor.grad
            assert gradient is not None
            mean.lerp_(gradient, 1 - BETAS[0])
            square.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
            spread = (square / unbiased[1]).sqrt_().add_(EPSILON)
            tensor.addcdiv_(mean, spread, value=-self._step_size / unbiased[0])
            tensor.grad = None


HEAD_KINDS: dict[str, type[HeadKind]] = {"square": SquareKind, "residual": ResidualKind}
