"""Trunk features: run the frozen trunk ONCE and keep its hidden states.

Everything trained afterwards (teachers, student, baselines) starts from these states, so the cost of the trunk does not
grow with the number of teachers. Features of private text are private.

The documents of one group (a user, or a shard) are packed into rows of one length, and a call of the trunk takes 8, 4,
2 or 1 rows of the SAME group, up to the last position that one of them fills. Other people's text can therefore not
change a group's features, not even in the last bit, and a long group runs at nearly the full speed of the machine.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from rayprivacy.models.backbone import Backbone
from rayprivacy.models.packing import PAD, Row, pack
from rayprivacy.models.side_by_side import side_by_side

CALLS = (8, 4, 2, 1)
_STEP = 8  # the positions of a call are a multiple of it


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


@dataclass(frozen=True)
class Encoded:
    """Packed rows of documents and the trunk's state at every position.

    Attributes:
        ids: token ids, int64 [rows, row_tokens].
        segment: which document of its row a position belongs to, int64 [rows, row_tokens]; PAD where it is empty.
        hidden: the states, bfloat16 [rows, row_tokens, width]: final ones, or those at the cut of a teacher kind; zero
            where all rows of a call are empty.
    """

    ids: torch.Tensor
    segment: torch.Tensor
    hidden: torch.Tensor

    def __len__(self) -> int:
        return len(self.ids)

    @staticmethod
    def empty(row_tokens: int, width: int) -> "Encoded":
        """No rows."""
        none = torch.zeros(0, row_tokens, dtype=torch.int64)
        return Encoded(none, none.clone(), torch.zeros(0, row_tokens, width, dtype=torch.bfloat16))

    def to(self, device: torch.device) -> "Encoded":
        """The same rows on a device."""
        return Encoded(self.ids.to(device), self.segment.to(device), self.hidden.to(device))

    @property
    def predicts(self) -> torch.Tensor:
        """Whether a position predicts the next one of the same document: bool [rows, row_tokens - 1]."""
        return (self.segment[:, 1:] == self.segment[:, :-1]) & (self.segment[:, 1:] != PAD)

    @property
    def examples(self) -> Features:
        """The next-token examples, row by row."""
        keep = self.predicts
        return Features(self.hidden[:, :-1][keep], self.ids[:, 1:][keep])


def join(parts: list[Encoded], row_tokens: int, width: int) -> Encoded:
    """All rows in order."""
    if not parts:
        return Encoded.empty(row_tokens, width)
    names = ("ids", "segment", "hidden")
    return Encoded(*(torch.cat([getattr(part, name) for part in parts]) for name in names))


def concatenate(parts: list[Features], width: int) -> Features:
    """Join examples in order."""
    if not parts:
        return Features.empty(width)
    return Features(torch.cat([p.hidden for p in parts]), torch.cat([p.targets for p in parts]))


def encode(
    backbone: Backbone,
    documents: list[list[int]],
    row_tokens: int,
    max_rows: int,
    trunk: Any = None,
    *,
    whole: bool = False,
    threads: int = 1,
) -> Encoded:
    """Pack the documents (token ids) of one group into at most `max_rows` rows, and run the trunk over them.

    The bound is public. By default the whole trunk runs, so that states are final. With `whole` it runs on empty
    positions too, and states may differ in their last bits. No bit depends on the number of threads.
    """
    return encode_rows(backbone, pack(documents, row_tokens, max_rows), row_tokens, trunk, whole=whole, threads=threads)


def encode_rows(
    backbone: Backbone,
    rows: list[Row],
    row_tokens: int,
    trunk: Any = None,
    *,
    whole: bool = False,
    threads: int = 1,
) -> Encoded:
    """Run the trunk over packed rows, as `encode` does.

    Rows of several groups share calls here, so that the states of one may depend on another's in their last bits. Only
    what is never released, like an evaluation, may do that to private text.
    """
    states = partial(_states, trunk or backbone.model.base_model, whole=whole)
    parts = side_by_side(states, _calls(rows), threads)
    return join(parts, row_tokens, backbone.width)


def _calls(rows: list[Row]) -> Iterator[list[Row]]:
    at = 0
    while at < len(rows):
        size = next(size for size in CALLS if size <= len(rows) - at)
        yield rows[at : at + size]
        at += size


@torch.no_grad()
def _states(trunk: Any, rows: list[Row], whole: bool) -> Encoded:
    ids, segment = torch.stack([row.ids for row in rows]), torch.stack([row.segment for row in rows])
    end = segment.shape[1] if whole else _end(segment)
    mask = torch.stack([row.mask for row in rows])
    out = trunk(
        input_ids=ids[:, :end].to(trunk.device),
        attention_mask=attention_bias(mask[:, :end, :end].to(trunk.device), trunk.dtype),
        position_ids=torch.stack([row.positions for row in rows])[:, :end].to(trunk.device),
        use_cache=False,
    )
    hidden = torch.zeros(*ids.shape, out.last_hidden_state.shape[-1], dtype=torch.bfloat16)
    hidden[:, :end] = out.last_hidden_state
    return Encoded(ids, segment, hidden)


def _end(segment: torch.Tensor) -> int:
    """After which position all rows are empty, rounded up; the states there are left zero."""
    filled = int((segment != PAD).any(0).sum())  # rows are filled from their start
    return min(segment.shape[1], -(-max(filled, 1) // _STEP) * _STEP)


def attention_bias(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Additive attention mask [rows, 1, row_tokens, row_tokens] of a boolean one [rows, row_tokens, row_tokens]."""
    bias = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, torch.finfo(dtype).min)
    return bias[:, None]


def encode_documents(backbone: Backbone, documents: list[list[int]], row_tokens: int, max_rows: int) -> Features:
    """Next-token examples of the documents of one group, or of public text."""
    return encode(backbone, documents, row_tokens, max_rows).examples
