"""Trunk features: run the frozen trunk ONCE and keep its final hidden states.

Everything trained afterwards (teachers, student, baselines) is a small map on top of these vectors, so the cost of
the trunk does not grow with the number of teachers. Features of private text are private.
"""

from dataclasses import dataclass

import torch

from rayprivacy.models.backbone import Backbone
from rayprivacy.models.packing import Row, pack


@dataclass(frozen=True)
class Features:
    """Next-token examples.

    Attributes:
        hidden: final hidden states, bfloat16 [examples, width].
        targets: the token that followed, int64 [examples].
    """

    hidden: torch.Tensor
    targets: torch.Tensor

    def __len__(self) -> int:
        return len(self.targets)

    @staticmethod
    def empty(width: int) -> "Features":
        """No examples."""
        return Features(torch.zeros(0, width, dtype=torch.bfloat16), torch.zeros(0, dtype=torch.int64))


def concatenate(parts: list[Features], width: int) -> Features:
    """Join examples in order."""
    if not parts:
        return Features.empty(width)
    return Features(torch.cat([p.hidden for p in parts]), torch.cat([p.targets for p in parts]))


@torch.no_grad()
def trunk_features(backbone: Backbone, row: Row) -> Features:
    """Examples of one packed row: always one row of one shape per call (see packing)."""
    dtype = backbone.model.dtype
    bias = torch.zeros(row.mask.shape, dtype=dtype).masked_fill(~row.mask, torch.finfo(dtype).min)
    out = backbone.model.base_model(
        input_ids=row.ids[None], attention_mask=bias[None, None], position_ids=row.positions[None], use_cache=False
    )
    keep = row.predicts
    return Features(out.last_hidden_state[0, :-1][keep].bfloat16(), row.ids[1:][keep])


def encode_documents(backbone: Backbone, documents: list[list[int]], row_tokens: int, max_rows: int) -> Features:
    """Examples of the documents of one shard (or of public text)."""
    rows = pack(documents, row_tokens, max_rows)
    return concatenate([trunk_features(backbone, row) for row in rows], backbone.width)
