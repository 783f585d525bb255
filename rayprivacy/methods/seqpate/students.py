"""The student, which learns from public text and released, noisy votes: here a small matrix on the head, the default.

    loss = (L_pseudo + lambda * L_votes) / (1 + lambda)          SeqPATE (Tian et al. 2022), section 3

L_votes is the cross-entropy between the noisy mean vote and the student over the candidates. It is linear in the
vote, and the noise has mean zero, so the raw vote (not clipped to zero, not renormalised) gives an unbiased gradient;
with KL the two differ by a constant in the student.

Mixing a vote with the student, (1 - lambda) p + lambda s, scales signal and noise alike, whether a teacher does it
before the noise or the student after it; so it is done here, where lambda can be changed without a new release. All of
it is post-processing of the votes.
"""

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from rayprivacy.core.console import Told, nobody
from rayprivacy.methods.seqpate.recipe import HEAD_SHAPE, VOTE_WEIGHT, StudentConfig
from rayprivacy.models.adapters import Basis, HeadAdapter, summed_cross_entropy
from rayprivacy.models.backbone import Backbone, read_head_contiguously
from rayprivacy.models.features import Encoded, Features, Queries, driver_threads
from rayprivacy.models.pretraining import descend

PSEUDO_BATCH = 32


class Student(Protocol):
    """A language model that learns from public text and released votes. Learning returns another student."""

    @property
    def backbone(self) -> Backbone:
        """The public model that it stands on."""

    def hidden(self, rows: Encoded) -> torch.Tensor:
        """States whose product with the public head are the logits, float32 [rows, row_tokens, width]."""

    def fitted(
        self, rows: Encoded, steps: int, batch: int, learning_rate: float, seed: int, told: Told = nobody
    ) -> "Student":
        """Fit to next tokens: `batch` examples a step; `told` how many steps are done."""

    def distilled(
        self, queries: Queries, targets: torch.Tensor, rows: Encoded, config: StudentConfig, told: Told = nobody
    ) -> "Student":
        """Learn from targets [queries, k] (see `targets`) and from pseudo-sentences; `told` how many steps are done."""

    def state(self) -> dict[str, torch.Tensor]:
        """What was trained."""

    def restored(self, state: dict[str, torch.Tensor]) -> "Student":
        """The student with a stored state."""

    def model(self) -> Any:
        """An ordinary Hugging Face model."""


@dataclass(frozen=True)
class HeadStudent:
    """A matrix between the public bases, on top of the frozen trunk."""

    backbone: Backbone
    adapter: HeadAdapter

    @staticmethod
    def untrained(backbone: Backbone, basis: Basis) -> "HeadStudent":
        """The public base itself."""
        rank_in, rank_out = (min(rank, len(basis.outward)) for rank in HEAD_SHAPE)
        return HeadStudent(backbone, HeadAdapter.zeros(basis, rank_in, rank_out))

    def hidden(self, rows: Encoded) -> torch.Tensor:
        """Adapted states."""
        return self.adapter(rows.hidden)

    def fitted(
        self, rows: Encoded, steps: int, batch: int, learning_rate: float, seed: int, told: Told = nobody
    ) -> "HeadStudent":
        """Fit the matrix."""
        head, options = self.backbone.head, (steps, batch, learning_rate, seed, told)
        return self._with(fit_next_token(self.adapter, rows.examples, head, *options).matrix)

    def distilled(
        self, queries: Queries, targets: torch.Tensor, rows: Encoded, config: StudentConfig, told: Told = nobody
    ) -> "HeadStudent":
        """Fit the matrix to votes."""
        head = self.backbone.head
        return self._with(distill(self.adapter, queries, targets, rows.examples, head, config, told).matrix)

    def state(self) -> dict[str, torch.Tensor]:
        """The matrix."""
        return {"matrix": self.adapter.matrix}

    def restored(self, state: dict[str, torch.Tensor]) -> "HeadStudent":
        """With this matrix."""
        return self._with(state["matrix"])

    def model(self) -> Any:
        """The adapter folded into an output head of its own."""
        return adapted_model(self.backbone, self.adapter)

    def _with(self, matrix: torch.Tensor) -> "HeadStudent":
        return HeadStudent(self.backbone, HeadAdapter(self.adapter.basis, matrix))


def fit_next_token(
    adapter: HeadAdapter,
    examples: Features,
    head: torch.Tensor,
    steps: int,
    batch: int,
    learning_rate: float,
    seed: int,
    told: Told = nobody,
) -> HeadAdapter:
    """Fit an adapter to next-token examples with the full-vocabulary cross-entropy; `told` how many steps are done."""
    draw = torch.Generator().manual_seed(seed)
    return _moved(adapter, steps, learning_rate, lambda moved: _pseudo_loss(moved, examples, head, batch, draw), told)


def distill(
    adapter: HeadAdapter,
    queries: Queries,
    votes: torch.Tensor,
    public: Features,
    head: torch.Tensor,
    config: StudentConfig,
    told: Told = nobody,
) -> HeadAdapter:
    """Train the student on released, raw votes [queries, k], and on `public` examples of the pseudo-sentences."""
    draw = torch.Generator().manual_seed(config.seed)
    pools = _pools(queries, config)

    def loss(moved: HeadAdapter) -> torch.Tensor:
        pool = next(pools)
        take = pool[torch.randint(len(pool), (config.batch,), generator=draw)]
        columns, allowed = head[queries.candidates[take]], queries.allowed[take]
        logits = torch.bmm(columns, moved(queries.hidden[take])[:, :, None]).squeeze(-1)
        of_votes = vote_loss(logits, votes[take], allowed)
        if not config.pseudo:
            return of_votes
        pseudo = _pseudo_loss(moved, public, head, PSEUDO_BATCH, draw)
        return (pseudo + VOTE_WEIGHT * of_votes) / (1 + VOTE_WEIGHT)

    return _moved(adapter, config.steps, config.step_size, loss, told)


def _pools(queries: Queries, config: StudentConfig) -> Iterator[torch.Tensor]:
    """The queries that each step draws from; a curriculum lets in those where the student is least sure last."""
    entropy = torch.special.entr(queries.centre).sum(1)
    order = entropy.argsort(stable=True) if config.curriculum else torch.arange(len(queries))
    for step in range(config.steps):
        share = (step + 1) / config.steps if config.curriculum else 1
        yield order[: max(1, math.ceil(share * len(order)))]


def vote_loss(logits: torch.Tensor, votes: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """L_votes over `allowed` candidates: the mean cross-entropy between vote and student, both [queries, k]."""
    log_student = torch.log_softmax(logits.masked_fill(~allowed, -torch.inf), -1).masked_fill(~allowed, 0.0)
    return -(votes * log_student).sum(1).mean()


def _pseudo_loss(
    adapter: HeadAdapter, examples: Features, head: torch.Tensor, batch: int, draw: torch.Generator
) -> torch.Tensor:
    take = torch.randint(len(examples), (batch,), generator=draw)
    return summed_cross_entropy(adapter(examples.hidden[take]), examples.targets[take], head, driver_threads()) / batch


def _moved(
    adapter: HeadAdapter, steps: int, learning_rate: float, loss: Callable[[HeadAdapter], torch.Tensor], told: Told
) -> HeadAdapter:
    matrix = adapter.matrix.clone().requires_grad_()
    moved = HeadAdapter(adapter.basis, matrix)
    optimizer = torch.optim.Adam([matrix], lr=learning_rate)
    descend(optimizer, ([loss(moved)] for _ in range(steps)), told, falling_over=steps)
    return HeadAdapter(adapter.basis, matrix.detach())


def adapted_model(backbone: Backbone, adapter: HeadAdapter) -> Any:
    """An ordinary Hugging Face model with the adapter folded into its output head (untied from the embedding)."""
    model = copy.deepcopy(backbone.model)
    weight = (adapter.fold(backbone.head) / backbone.head_scale).to(model.dtype)
    head = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype)
    head.weight = torch.nn.Parameter(weight, requires_grad=False)
    model.config.tie_word_embeddings = False
    model.set_output_embeddings(head)
    read_head_contiguously(model)
    return model


def bare_model(backbone: Backbone) -> Any:
    """The base itself in the shape in which a student of kind `head` is released, with an output head of its own."""
    width = backbone.width
    basis = Basis(torch.zeros(width, 1), torch.zeros(1, width), torch.zeros(0, dtype=torch.int64))
    return adapted_model(backbone, HeadAdapter.zeros(basis, 1, 1))


def vote_targets(votes: torch.Tensor, queries: Queries, centred: bool, config: StudentConfig) -> torch.Tensor:
    """What the student is fitted to from released votes, both float32 [queries, k]; entries may be negative."""
    mean = votes + queries.centre if centred else votes
    mixed = (1 - config.mix) * mean + config.mix * queries.centre
    if config.label == "vote":
        return mixed
    # All of the mass on the candidate with the largest noisy vote: SeqPATE's ablation -KL (table 3).
    best = mixed.masked_fill(~queries.allowed, -torch.inf).argmax(1)
    return torch.nn.functional.one_hot(best, mixed.shape[1]).float()
