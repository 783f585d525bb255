"""Trunk features: documents packed into rows, and the frozen trunk run over them ONCE, its hidden states kept.

Everything trained afterwards (teachers, student, baselines) starts from these states, so the cost of the trunk does not
grow with the number of teachers. Features of private text are private.

The documents of one group (a user, or a shard) are packed into rows of one FIXED length, each document seeing only
itself: the attention mask is block-causal, and positions restart at 0. A call of the trunk takes 8, 4, 2 or 1 rows of
the SAME group, up to the last position that one of them fills. So neither the presence nor the length of other people's
text can change a group's features, not even in the last bit, and a long group runs at nearly the full speed of the
machine.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load_file

from rayprivacy.core.console import cores
from rayprivacy.core.private import digest_array, digest_json
from rayprivacy.models.backbone import Backbone

PAD = -1
_CALLS = (8, 4, 2, 1)
_STEP = 8  # the positions of a call are a multiple of it
_MOST_THREADS = 4  # each may hold a model, or 200 MB of logits: memory must not grow with the machine
Piece = TypeVar("Piece")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Row:
    """One packed row: token ids, int64 [row_tokens], and the document of each position, PAD where the row is empty."""

    ids: torch.Tensor
    segment: torch.Tensor

    @property
    def filled(self) -> int:
        """How many positions hold a token; they come first."""
        return int((self.segment != PAD).sum())

    @property
    def positions(self) -> torch.Tensor:
        """Position inside the document, int64 [row_tokens]; 0 where the row is empty.

        So no position is beyond those of the longest document. A rotary embedding of type 'dynamic' remembers the
        largest that it has met: with padding numbered on, one user's short row could change the states of others.
        """
        index = torch.arange(len(self.segment), device=self.segment.device)
        starts = torch.ones_like(self.segment, dtype=torch.bool)
        starts[1:] = self.segment[1:] != self.segment[:-1]
        places = index - torch.cummax(torch.where(starts, index, 0), 0).values
        return places.where(self.segment != PAD, 0)

    @property
    def mask(self) -> torch.Tensor:
        """May position i look at position j: bool [row_tokens, row_tokens]."""
        same = self.segment[:, None] == self.segment[None, :]
        return same & torch.ones_like(same).tril()


def pack(documents: list[list[int]], row_tokens: int, max_rows: int) -> list[Row]:
    """First-fit packing of documents, cut to a row, into at most `max_rows` (public); what does not fit is left out."""
    rows: list[list[list[int]]] = []
    for document in documents:
        piece = document[:row_tokens]
        place = next((row for row in rows if sum(map(len, row)) + len(piece) <= row_tokens), None)
        if place is None and len(rows) < max_rows:
            rows.append(place := [])
        if place is not None:
            place.append(piece)
    return [_row(row, row_tokens) for row in rows]


def _row(documents: list[list[int]], row_tokens: int) -> Row:
    ids = torch.zeros(row_tokens, dtype=torch.int64)
    segment = torch.full((row_tokens,), PAD)
    at = 0
    for number, document in enumerate(documents):
        ids[at : at + len(document)] = torch.tensor(document)
        segment[at : at + len(document)] = number
        at += len(document)
    return Row(ids, segment)


def predicts(segment: torch.Tensor) -> torch.Tensor:
    """Whether a position predicts the next one of the same document: bool [..., row_tokens - 1]."""
    return (segment[..., 1:] == segment[..., :-1]) & (segment[..., 1:] != PAD)


@dataclass(frozen=True)
class Features:
    """Next-token examples: final hidden states, bfloat16 [examples, width], and the tokens that followed, int64."""

    hidden: torch.Tensor
    targets: torch.Tensor

    def __len__(self) -> int:
        return len(self.targets)


@dataclass(frozen=True)
class Encoded:
    """Packed rows of documents and the trunk's states, final or at a cut; zero where all rows of a call are empty."""

    ids: torch.Tensor  # token ids, int64 [rows, row_tokens]
    segment: torch.Tensor  # which document of its row a position belongs to; PAD where it is empty
    hidden: torch.Tensor  # bfloat16 [rows, row_tokens, width]

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
        return predicts(self.segment)

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


def encode(
    backbone: Backbone,
    documents: list[list[int]],
    row_tokens: int,
    max_rows: int,
    trunk: Any = None,
    *,
    threads: int = 1,
) -> Encoded:
    """Pack the documents (token ids) of one group into at most `max_rows` rows, and run the trunk over them.

    The bound is public. By default the whole trunk runs, so that states are final; empty positions at the end of a call
    are left out. No bit depends on the number of threads.
    """
    return encode_rows(backbone, pack(documents, row_tokens, max_rows), row_tokens, trunk, threads=threads)


def encode_rows(
    backbone: Backbone, rows: list[Row], row_tokens: int, trunk: Any = None, *, threads: int = 1
) -> Encoded:
    """Run the trunk over packed rows, as `encode` does.

    Rows of several groups share calls here, so that the states of one may depend on another's in their last bits. Only
    what is never released, like an evaluation, may do that to private text.
    """
    states = partial(_states, trunk or backbone.model.base_model)
    return join(side_by_side(states, _calls(rows), threads), row_tokens, backbone.width)


def _calls(rows: list[Row]) -> Iterator[list[Row]]:
    at = 0
    while at < len(rows):
        size = next(size for size in _CALLS if size <= len(rows) - at)
        yield rows[at : at + size]
        at += size


@torch.no_grad()
def _states(trunk: Any, rows: list[Row]) -> Encoded:
    ids, segment = torch.stack([row.ids for row in rows]), torch.stack([row.segment for row in rows])
    # Rows are filled from their start: the states behind the last filled position are left zero.
    filled = max(row.filled for row in rows)
    end = min(segment.shape[1], -(-max(filled, 1) // _STEP) * _STEP)
    tokens, read_apart = ids[:, :end].to(trunk.device), layout(rows, trunk.dtype, trunk.device, end)
    out = trunk(input_ids=tokens, **read_apart, use_cache=False)
    hidden = torch.zeros(*ids.shape, out.last_hidden_state.shape[-1], dtype=torch.bfloat16)
    hidden[:, :end] = out.last_hidden_state
    return Encoded(ids, segment, hidden)


def layout(
    rows: Sequence[Row], dtype: torch.dtype, device: torch.device, end: int | None = None
) -> dict[str, torch.Tensor]:
    """Additive mask [rows, 1, row_tokens, row_tokens] and positions by which each packed document is read by itself."""
    mask = torch.stack([row.mask[:end, :end] for row in rows]).to(device)
    bias = torch.zeros(mask.shape, dtype=dtype, device=device).masked_fill(~mask, torch.finfo(dtype).min)
    positions = torch.stack([row.positions[:end] for row in rows]).to(device)
    return {"attention_mask": bias[:, None], "position_ids": positions}


@dataclass(frozen=True)
class Queries:
    """What teachers are asked: public contexts, candidates to vote on, and the student's distribution, the centre."""

    hidden: torch.Tensor  # final trunk states of the contexts, float32 [queries, width]
    candidates: torch.Tensor  # token ids, int64 [queries, k]
    allowed: torch.Tensor  # which candidates count, bool [queries, k] (top-p keeps fewer than k); at least one each
    centre: torch.Tensor  # float32 [queries, k]
    context: torch.Tensor  # row and position in the round's encoded pseudo-sentences, int64 [queries, 2]

    def __len__(self) -> int:
        return len(self.candidates)

    @property
    def _tensors(self) -> list[torch.Tensor]:
        return [getattr(self, field.name) for field in fields(self)]

    @property
    def digest(self) -> str:
        """Names the queries by all that they hold."""
        return digest_json([digest_array(tensor.numpy()) for tensor in self._tensors])

    def rows(self, start: int, stop: int) -> "Queries":
        """A slice of the queries."""
        return Queries(*(tensor[start:stop] for tensor in self._tensors))

    def by_context(self) -> "Queries":
        """The same queries in the order of their contexts: kinds that run whole rows then meet a row once a block."""
        order = sorted(range(len(self)), key=self.context.tolist().__getitem__)
        return Queries(*(tensor[order] for tensor in self._tensors))

    @staticmethod
    def join(parts: list["Queries"]) -> "Queries":
        """All queries in order."""
        return Queries(*map(torch.cat, zip(*(part._tensors for part in parts), strict=True)))

    def to(self, device: torch.device) -> "Queries":
        """The same queries on a device."""
        return Queries(*(tensor.to(device) for tensor in self._tensors))

    @staticmethod
    def load(path: Path) -> "Queries":
        """The queries of a safetensors file."""
        return Queries(**load_file(path))


def driver_threads() -> int:
    """How many pieces a stage of the driver works on at once."""
    return min(cores(), _MOST_THREADS)


def side_by_side(call: Callable[[Piece], Result], pieces: Iterable[Piece], threads: int) -> list[Result]:
    """The result of `call` for each piece, in order, and to the bit the same for any number of threads.

    Ray gives a driver one thread for products of matrices, and small products would gain little from a second: whole
    pieces run side by side instead. `call` must not depend on what else runs, and should spend most of its time in
    torch. All pieces are held at once. Torch has one thread for each piece, also where one follows the other: with two
    it would add up in another order.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # threads that begin now have it too
    try:
        if threads == 1:
            return [call(piece) for piece in pieces]
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(call, pieces))
    finally:
        torch.set_num_threads(before)
