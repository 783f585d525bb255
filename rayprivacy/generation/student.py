"""The student: a head adapter that learns from public text and from released, noisy votes.

    loss = (L_pseudo + lambda * L_votes) / (1 + lambda)          SeqPATE (Tian et al. 2022), section 3

L_votes is the cross-entropy between the noisy mean vote and the student over the candidates. It is linear in the
vote, and the noise has mean zero, so the raw vote (not clipped to zero, not renormalised) gives an unbiased gradient;
with KL the two differ by a constant in the student.
"""

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from pydantic import Field, model_validator

from rayprivacy.core.config import Config
from rayprivacy.models.adapters import HeadAdapter
from rayprivacy.models.backbone import Backbone, read_head_contiguously
from rayprivacy.models.features import Features
from rayprivacy.models.queries import Queries

LEARNING_RATES = {"head": 5e-3, "lora": 2e-3, "full": 3e-5}
WARM_LEARNING_RATES = {"head": 1e-3, "lora": 1e-3, "full": 3e-5}


class StudentConfig(Config):
    """How the student is trained.

    Attributes:
        kind: `head` trains a matrix on the head, `lora` adapters in the last layers (or all), `full` all weights.
        layers: for `lora`: how many of the last layers; all if absent.
        rank: for `lora`.
        rank_in, rank_out: for `head`: size of its matrix.
        warm_steps, warm_batch, warm_learning_rate: on pseudo-sentences, before the votes.
        steps, batch, learning_rate: on the votes; learning rates are by default ones that suit the kind.
        weight: lambda, the weight of the votes against the pseudo-sentences.
        pseudo: whether the votes are learnt together with the pseudo-sentences (L_pseudo).
        label: learn the whole `vote`, or the candidate with the most votes (`top1`).
        mix: share of the student's own distribution in what it learns from a vote.
        curriculum: begin with the queries that surprise the student least, and take in the others step by step.
        seed: public seed of the order of examples.
    """

    kind: Literal["head", "lora", "full"] = "head"
    layers: int | None = Field(default=None, ge=1)
    rank: int = Field(default=8, ge=1)
    rank_in: int = Field(default=32, ge=1)
    rank_out: int = Field(default=128, ge=1)
    warm_steps: int = Field(default=60, ge=0)
    warm_batch: int = Field(default=128, ge=1)
    warm_learning_rate: float | None = Field(default=None, gt=0)
    steps: int = Field(default=300, ge=1)
    batch: int = Field(default=256, ge=1)
    learning_rate: float | None = Field(default=None, gt=0)
    weight: float = Field(default=20.0, ge=0)
    pseudo: bool = True
    label: Literal["vote", "top1"] = "vote"
    mix: float = Field(default=0.0, ge=0, lt=1)
    curriculum: bool = False
    seed: int = 0

    @property
    def step_size(self) -> float:
        """The learning rate on votes, or the default one of the kind."""
        return self.learning_rate or LEARNING_RATES[self.kind]

    @property
    def warm_step_size(self) -> float:
        """The learning rate on pseudo-sentences, or the default one of the kind."""
        return self.warm_learning_rate or WARM_LEARNING_RATES[self.kind]

    @model_validator(mode="after")
    def _options_of_the_kind(self) -> "StudentConfig":
        if self.layers is not None and self.kind != "lora":
            raise ValueError(f"layers is {self.layers} and kind is '{self.kind}': remove layers, or choose kind 'lora'")
        if not self.pseudo and not self.weight:
            raise ValueError("pseudo is false and weight is 0: there is nothing left to learn from, set one of them")
        if self.curriculum and self.kind != "head":
            raise ValueError(f"curriculum is set and kind is '{self.kind}': remove it, or choose kind 'head'")
        return self


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
        return (pseudo + config.weight * of_votes) / (1 + config.weight)

    return _descend(adapter, config.steps, config.step_size, loss)


def _pools(queries: Queries, config: StudentConfig) -> Iterator[torch.Tensor]:
    """The queries that each step draws from; a curriculum lets in those where the student is least sure last."""
    entropy = torch.special.entr(queries.centre).sum(1)
    order = entropy.argsort(stable=True) if config.curriculum else torch.arange(len(queries))
    for step in range(config.steps):
        share = (step + 1) / config.steps if config.curriculum else 1
        yield order[: max(1, math.ceil(share * len(order)))]


def vote_loss(logits: torch.Tensor, votes: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """L_votes, a scalar: the mean over queries of the cross-entropy between the vote and the student.

    Args:
        logits: the student's, float32 [queries, k].
        votes: released mean votes, float32 [queries, k], raw (they may be negative).
        allowed: which candidates count, bool [queries, k].
    """
    log_student = torch.log_softmax(logits.masked_fill(~allowed, -torch.inf), -1).masked_fill(~allowed, 0.0)
    return -(votes * log_student).sum(1).mean()


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
