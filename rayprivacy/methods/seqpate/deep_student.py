"""Students that train LoRA on the last layers of the trunk, or on all of them.

They learn by the same loss as the student on the head (see `student`). A step runs whole rows of pseudo-sentences
through the trained layers: every query in them is learnt from at once. L_pseudo is about the same rows, at no more than
PSEUDO_POSITIONS of their positions: the product with the whole vocabulary at all of them takes most of a step.
"""

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch

from rayprivacy.core.console import Told, nobody
from rayprivacy.methods.seqpate.recipe import PSEUDO_POSITIONS, VOTE_WEIGHT, StudentConfig
from rayprivacy.methods.seqpate.students import vote_loss
from rayprivacy.models.adapters import next_token_loss
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.features import Encoded, Queries, driver_threads
from rayprivacy.models.layers import ROWS, LoraLayers, calls, cut_below, select
from rayprivacy.models.pretraining import descend


@dataclass(frozen=True)
class DeepStudent:
    """A tuned upper part of the trunk, in which all students that come from one put their tensors to work."""

    backbone: Backbone
    upper: LoraLayers
    tensors: dict[str, torch.Tensor]

    @staticmethod
    def untrained(backbone: Backbone, config: StudentConfig) -> "DeepStudent":
        """The public base itself, ready to train what `layers` and `rank` say."""
        upper = LoraLayers(backbone, cut_below(backbone, config.layers), config.rank)
        return DeepStudent(backbone, upper, upper.start)

    def hidden(self, rows: Encoded) -> torch.Tensor:
        """Final states, float32 [rows, row_tokens, width]; their product with the base's head are the logits."""
        parts = [states.float() for _, states in self._states(rows)]
        return torch.cat([rows.hidden[:0].float(), *parts])

    def nll(self, rows: Encoded) -> tuple[float, int]:
        """Summed negative log-likelihood of the next tokens in nats, and how many they are."""
        total = sum(float(next_token_loss(states, few, self.backbone.head)) for few, states in self._states(rows))
        return float(total), int(rows.predicts.sum())

    @torch.no_grad()
    def _states(self, rows: Encoded) -> Iterator[tuple[Encoded, torch.Tensor]]:
        self.upper.load(self.tensors)
        below = self._below(rows)
        for index in calls(rows):
            few = select(below, index)
            yield few, self.upper.states(few)

    def fitted(
        self, rows: Encoded, steps: int, batch: int, learning_rate: float, seed: int, told: Told = nobody
    ) -> "DeepStudent":
        """Fit to next tokens; the states in `rows` are not looked at, and a batch is rounded up to whole rows."""
        examples = rows.predicts.sum(1)
        batches = list(islice(_batches(examples, batch, seed), steps))
        drawn = torch.cat([rows.ids.new_zeros(0), *batches]).unique()  # the trunk is run over no other row
        below = self._below(select(rows, drawn))

        def losses(take: torch.Tensor) -> Iterator[torch.Tensor]:
            for index in take.split(ROWS):
                few = select(below, torch.searchsorted(drawn, index))
                yield next_token_loss(self.upper.states(few), few, self.backbone.head) / examples[take].sum()

        return self._descend(batches, steps, learning_rate, losses, told)

    def distilled(
        self, queries: Queries, targets: torch.Tensor, rows: Encoded, config: StudentConfig, told: Told = nobody
    ) -> "DeepStudent":
        """Learn from votes: `batch` queries a step, rounded up to all the queries of some rows.

        Targets, float32 [queries, k], are raw: they may be negative. The contexts of the queries point into `rows`,
        whose states are not looked at.
        """
        below = self._below(rows)
        asked = torch.bincount(queries.context[:, 0], minlength=len(rows))
        pseudo = float(config.pseudo)
        draw = torch.Generator().manual_seed(config.seed)

        def losses(take: torch.Tensor) -> Iterator[torch.Tensor]:
            looked_at = _some(below.predicts[take], PSEUDO_POSITIONS, draw)
            for index, keep in zip(take.split(ROWS), looked_at.split(ROWS), strict=True):
                few = select(below, index)
                states = self.upper.states(few)
                of_votes = self._vote_loss(states, queries, targets, index) * asked[index].sum() / asked[take].sum()
                summed = next_token_loss(states, few, self.backbone.head, keep) if pseudo else 0.0
                yield (pseudo * summed / looked_at.sum() + VOTE_WEIGHT * of_votes) / (pseudo + VOTE_WEIGHT)

        batches = islice(_batches(asked, config.batch, config.seed), config.steps)
        return self._descend(batches, config.steps, config.step_size, losses, told)

    def _below(self, rows: Encoded) -> Encoded:
        return self.upper.below(self.backbone, rows, driver_threads())

    def _vote_loss(
        self, states: torch.Tensor, queries: Queries, targets: torch.Tensor, index: torch.Tensor
    ) -> torch.Tensor:
        """The mean over the queries whose contexts lie in the rows `index`, [n], with states [n, row_tokens, width]."""
        row, position = queries.context.unbind(1)
        take, place = torch.nonzero(row[:, None] == index, as_tuple=True)
        contexts = states[place, position[take]].float()
        logits = torch.bmm(self.backbone.head[queries.candidates[take]], contexts[:, :, None]).squeeze(-1)
        return vote_loss(logits, targets[take], queries.allowed[take])

    def _descend(
        self,
        batches: Iterable[torch.Tensor],
        steps: int,
        learning_rate: float,
        losses: Callable[[torch.Tensor], Iterator[torch.Tensor]],
        told: Told,
    ) -> "DeepStudent":
        self.upper.load(self.tensors)
        optimizer = torch.optim.Adam(self.upper.parameters(), lr=learning_rate)
        descend(optimizer, map(losses, batches), told, falling_over=steps)
        return replace(self, tensors=self.upper.read())

    def state(self) -> dict[str, torch.Tensor]:
        """The trained tensors by their names in PEFT."""
        return self.tensors

    def restored(self, state: dict[str, torch.Tensor]) -> "DeepStudent":
        """The student with a stored state."""
        return replace(self, tensors=state)

    def model(self) -> Any:
        """An ordinary Hugging Face model of the base's architecture, with LoRA merged into its weights."""
        self.upper.load(self.tensors)
        merged: Any = self.upper.merged()
        model = copy.deepcopy(self.backbone.model)
        for layer, tuned in zip(model.base_model.layers[self.upper.cut :], merged.layers, strict=True):
            layer.load_state_dict(tuned.state_dict())
        return model


def _some(places: torch.Tensor, most: int, draw: torch.Generator) -> torch.Tensor:
    found = places.nonzero()
    found = found[torch.randperm(len(found), generator=draw)[:most]]
    kept = torch.zeros_like(places)
    kept[tuple(found.T)] = True
    return kept


def _batches(counts: torch.Tensor, batch: int, seed: int) -> Iterator[torch.Tensor]:
    """Rows, endlessly, in shuffled passes over those where `counts`, int64 [rows], is not 0; `batch` in each take."""
    draw, least = torch.Generator().manual_seed(seed), min(batch, int(counts.sum()))
    rows = torch.nonzero(counts).squeeze(1)
    take: list[int] = []
    while len(rows):
        for row in rows[torch.randperm(len(rows), generator=draw)].tolist():
            take.append(row)
            if int(counts[take].sum()) >= least:
                yield torch.tensor(take)
                take = []
