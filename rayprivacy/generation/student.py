"""The student: a head adapter that learns from public text and from released, noisy votes.

    loss = (L_pseudo + lambda * L_votes) / (1 + lambda)          SeqPATE (Tian et al. 2022), section 3

L_votes is the cross-entropy between the noisy mean vote and the student over the candidates. It is linear in the
vote, and the noise has mean zero, so the raw vote (not clipped to zero, not renormalised) gives an unbiased gradient;
with KL the two differ by a constant in the student.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from pydantic import Field

from rayprivacy.core.config import Config
from rayprivacy.models.adapters import HeadAdapter
from rayprivacy.models.backbone import Backbone, read_head_contiguously
from rayprivacy.models.features import Features
from rayprivacy.models.queries import Queries


class StudentConfig(Config):
    """How the student is trained.

    Attributes:
        rank_in, rank_out: size of its matrix.
        warm_steps, warm_batch, warm_learning_rate: on pseudo-sentences, before the votes.
        steps, batch, learning_rate: on the votes.
        weight: lambda, the weight of the votes against the pseudo-sentences.
        seed: public seed of the order of examples.
    """

    rank_in: int = Field(default=32, ge=1)
    rank_out: int = Field(default=128, ge=1)
    warm_steps: int = Field(default=60, ge=0)
    warm_batch: int = Field(default=128, ge=1)
    warm_learning_rate: float = Field(default=1e-3, gt=0)
    steps: int = Field(default=60, ge=1)
    batch: int = Field(default=256, ge=1)
    learning_rate: float = Field(default=2e-3, gt=0)
    weight: float = Field(default=20.0, ge=0)
    seed: int = 0


PSEUDO_BATCH = 32


def fit_next_token(
    adapter: HeadAdapter,
    examples: Features,
    head: torch.Tensor,
    steps: int,
    batch: int,
    learning_rate: float,
    seed: int,
) -> HeadAdapter:
    """Fit an adapter to next-token examples with the full-vocabulary cross-entropy."""
    draw = torch.Generator().manual_seed(seed)
    return _descend(adapter, steps, learning_rate, lambda moved: _pseudo_loss(moved, examples, head, batch, draw))


def distill(
    adapter: HeadAdapter,
    queries: Queries,
    votes: torch.Tensor,
    public: Features,
    head: torch.Tensor,
    config: StudentConfig,
) -> HeadAdapter:
    """Train the student on released votes.

    Args:
        adapter: the warm-started student.
        queries: contexts and candidates, public.
        votes: released mean votes, float32 [queries, k], raw (they may be negative).
        public: next-token examples of the pseudo-sentences, for L_pseudo.
        head: output head, float32 [vocabulary, width].
        config: training settings.
    """
    draw = torch.Generator().manual_seed(config.seed)

    def loss(moved: HeadAdapter) -> torch.Tensor:
        take = torch.randint(len(queries), (config.batch,), generator=draw)
        columns, allowed = head[queries.candidates[take]], queries.allowed[take]
        logits = torch.bmm(columns, moved(queries.hidden[take])[:, :, None]).squeeze(-1)
        log_student = torch.log_softmax(logits.masked_fill(~allowed, -torch.inf), -1).masked_fill(~allowed, 0.0)
        of_votes = -(votes[take] * log_student).sum(1).mean()
        pseudo = _pseudo_loss(moved, public, head, PSEUDO_BATCH, draw)
        return (pseudo + config.weight * of_votes) / (1 + config.weight)

    return _descend(adapter, config.steps, config.learning_rate, loss)


def _pseudo_loss(
    adapter: HeadAdapter, examples: Features, head: torch.Tensor, batch: int, draw: torch.Generator
) -> torch.Tensor:
    take = torch.randint(len(examples), (batch,), generator=draw)
    return torch.nn.functional.cross_entropy(adapter(examples.hidden[take]) @ head.T, examples.targets[take])


def _descend(
    adapter: HeadAdapter, steps: int, learning_rate: float, loss: Callable[[HeadAdapter], torch.Tensor]
) -> HeadAdapter:
    """Adam with a linearly falling step size."""
    matrix = adapter.matrix.clone().requires_grad_()
    optimizer = torch.optim.Adam([matrix], lr=learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / max(1, steps))
    for _ in range(steps):
        optimizer.zero_grad()
        loss(HeadAdapter(adapter.basis, matrix)).backward()
        optimizer.step()
        schedule.step()
    return HeadAdapter(adapter.basis, matrix.detach())


def adapted_model(backbone: Backbone, adapter: HeadAdapter) -> Any:
    """An ordinary Hugging Face model with the adapter folded into its output head (untied from the embedding)."""
    model = copy.deepcopy(backbone.model)
    weight = adapter.fold(backbone.head).to(model.dtype)
    head = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype)
    head.weight = torch.nn.Parameter(weight, requires_grad=False)
    model.config.tie_word_embeddings = False
    model.set_output_embeddings(head)
    read_head_contiguously(model)
    return model
