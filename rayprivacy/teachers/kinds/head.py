"""What kinds on top of the final trunk state share: one training loop, and votes for a whole stack at once.

    logits(h) = O (h' + change(h')) ,   h' = warm(h) the public student's state,   O the output head

A kind says what it trains and what `change` is, factored as `moved(teacher, h') @ outward`, so that no step touches
more than what the kind trains: the student's logits and the product of the head with `outward` are computed once.

Teachers are trained one after the other, each by a function of its own shard and of public settings: that is what makes
"one user changes one teacher" literally true, for shards of any size, to the last bit. A step is long enough (about a
millisecond at rank 128) that a stack in one batched product would be no faster, and would wait for its largest shard.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from rayprivacy.models.adapters import HeadAdapter
from rayprivacy.models.features import Encoded, Features
from rayprivacy.models.queries import Queries
from rayprivacy.teachers.kinds.adam import Adam
from rayprivacy.teachers.kinds.kind import FILLED, State
from rayprivacy.teachers.settings import TeachersConfig

QUERY_ROWS = 32  # queries are answered in blocks of one size: the block a query falls into changes none of its bits


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
        self.config, self.warm, self.head = config, warm, head
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
        config, teacher = self.config, self.start()
        steps = config.steps(len(examples))
        if not steps:
            return teacher
        used = min(len(examples), steps * config.batch)  # a public bound on memory, whatever the shard holds
        hidden, targets = self.warm(examples.hidden[:used]), examples.targets[:used]
        inward, public, columns = self.inward(hidden), hidden @ self._short_head.T, self._short_columns
        optimizer = Adam([tensor.requires_grad_() for tensor in teacher.values()], config.step_size)
        rows = torch.arange(config.batch)
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
        """Prepared once for all stacks that answer the same queries one after the other."""
        if self._asked is None or self._asked[0] is not queries:
            padded = Queries.join([queries, *[queries.rows(0, 1)] * (-len(queries) % QUERY_ROWS)])
            starts = range(0, len(padded), QUERY_ROWS)
            self._asked = queries, [self._block(padded.rows(at, at + QUERY_ROWS)) for at in starts]
        return self._asked[1]

    def _block(self, queries: Queries) -> _Block:
        hidden = self.warm(queries.hidden)
        logits = (self.head[queries.candidates] * hidden[:, None]).sum(-1)
        return _Block(self.inward(hidden), logits[:, None], queries.candidates, ~queries.allowed[:, None])
