"""Pack short documents into rows of a FIXED length, each document seeing only itself.

A row holds several documents with a block-causal attention mask and positions that restart at 0. Two properties matter
for privacy: a row is made from the documents of one shard only, and every row has the same shape, so that neither the
presence nor the length of another user's text can change a shard's features, not even in the last bit.
"""

from dataclasses import dataclass

import torch

PAD = -1


@dataclass(frozen=True)
class Row:
    """One packed row.

    Attributes:
        ids: token ids, int64 [row_tokens].
        segment: which document a position belongs to, int64 [row_tokens]; PAD where the row is empty.
    """

    ids: torch.Tensor
    segment: torch.Tensor

    @property
    def filled(self) -> int:
        """How many positions hold a token; they come first."""
        return int((self.segment != PAD).sum())

    @property
    def positions(self) -> torch.Tensor:
        """Position inside the document, int64 [row_tokens]."""
        index = torch.arange(len(self.segment), device=self.segment.device)
        starts = torch.ones_like(self.segment, dtype=torch.bool)
        starts[1:] = self.segment[1:] != self.segment[:-1]
        return index - torch.cummax(torch.where(starts, index, 0), 0).values

    @property
    def mask(self) -> torch.Tensor:
        """May position i look at position j: bool [row_tokens, row_tokens]."""
        same = self.segment[:, None] == self.segment[None, :]
        return same & torch.ones_like(same).tril()


def pack(documents: list[list[int]], row_tokens: int, max_rows: int) -> list[Row]:
    """First-fit packing of documents (token ids), in the given order, into at most `max_rows` rows.

    The bound is public. Documents longer than a row are cut, and those that do not fit are left out.
    """
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
