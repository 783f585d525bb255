"""Teachers that train LoRA on layers of the trunk, one teacher at a time, on states cached at the cut.

Stacking does not help here: the cost is in the layers, which every teacher has to run anew.

Privacy argument: a teacher starts from the same public tensors with a new optimizer, sees the rows of its own shard
alone, in order, and draws nothing. So it depends on its shard alone, to the last bit (on one thread, as the actors
run); and what it answers depends on its tensors and on public text.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property

import torch

from rayprivacy.models.adapters import next_token_loss
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.features import Encoded, Queries
from rayprivacy.models.layers import LoraLayers, at_cut, calls, cut_below, select
from rayprivacy.models.pretraining import descend
from rayprivacy.teachers.head_kinds import FILLED, State
from rayprivacy.teachers.settings import TeachersConfig

QUERY_ROWS = 32  # queries in one block of answers


class LoraKind:
    """LoRA of rank `teachers.width` on the last `teachers.layers` layers (all if absent); `cut` layers lie below.

    Shards hold the states at `cut`. A state has the trained tensors by their names in PEFT, [G, ...], and `filled`,
    bool [G]: which shards had text. `Queries.context` points into `public_rows`, the encoded pseudo-sentences.
    """

    def __init__(self, backbone: Backbone, config: TeachersConfig, public_rows: Encoded) -> None:
        self.cut = cut_below(backbone, config.layers)
        self._backbone, self._config, self._public_rows = backbone, config, public_rows
        self._upper = LoraLayers(backbone, self.cut, config.width)

    @cached_property
    def _public(self) -> Encoded:
        return at_cut(self._backbone, self.cut, self._public_rows)

    def train(self, shards: Sequence[Encoded]) -> State:
        """Fit one teacher to each shard, in order, read one at a time; an empty shard gets the public start."""
        teachers = [(self._fit(shard), bool(shard.predicts.any())) for shard in shards]
        state = {name: torch.stack([teacher[name] for teacher, _ in teachers]) for name in self._upper.start}
        return state | {FILLED: torch.tensor([filled for _, filled in teachers])}

    def _fit(self, shard: Encoded) -> State:
        self._upper.load(self._upper.start)
        config, head, parameters = self._config, self._backbone.head, self._upper.parameters()
        size = min(len(shard), max(1, config.batch // config.row_tokens))
        optimizer = torch.optim.AdamW(parameters, config.step_size, betas=(0.9, 0.95), weight_decay=0.0, fused=True)

        def loss(step: int) -> list[torch.Tensor]:
            rows = select(shard, (torch.arange(size) + step * size) % len(shard))
            return [next_token_loss(self._upper.states(rows), rows, head) / rows.predicts.sum()]

        descend(optimizer, map(loss, range(config.steps(int(shard.predicts.sum())))))
        return self._upper.read()

    @torch.no_grad()
    def answers(self, state: State, queries: Queries) -> Iterator[torch.Tensor]:
        """Distributions over the candidates, float32 [block, G, k], block after block of queries in order."""
        states = self._states_at_contexts(state, queries)
        for first in range(0, len(queries), QUERY_ROWS):
            index = torch.arange(first, first + QUERY_ROWS).clamp_max(len(queries) - 1)  # always QUERY_ROWS
            columns = self._backbone.head[queries.candidates[index]]
            allowed = queries.allowed[index]
            logits = torch.bmm(states[:, index].float().transpose(0, 1), columns.transpose(1, 2))
            answers = torch.softmax(logits.masked_fill(~allowed[:, None, :], -torch.inf), -1)
            yield answers[: len(queries) - first]

    def _states_at_contexts(self, state: State, queries: Queries) -> torch.Tensor:
        filled: list[bool] = state[FILLED].tolist()
        # The states the queries come with are the public model's: the answer of an empty shard costs nothing.
        states = queries.hidden.to(self._backbone.model.dtype).repeat(len(filled), 1, 1)
        for teacher in (number for number, has_text in enumerate(filled) if has_text):
            self._upper.load({name: state[name][teacher] for name in self._upper.start})
            for index, asked, place in self._calls(queries):
                states[teacher, asked] = self._upper.states(select(self._public, index))[place].to(states.dtype)
        return states

    def _calls(self, queries: Queries) -> Iterator[tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, ...]]]:
        """Rows of one call, the queries whose contexts lie in them, and where.

        Calls are fixed by the public rows and not by the queries, so that the other queries of a batch cannot change an
        answer in its last bit.
        """
        row, position = queries.context.unbind(1)
        for index in calls(self._public):
            asked = torch.nonzero((row >= index[0]) & (row <= index[-1])).squeeze(1)
            if len(asked):
                yield index, asked, (row[asked] - index[0], position[asked])
