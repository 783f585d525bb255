"""Documents of many units behind each other in one row of tokens, each read by itself.

A row holds as many tokens whoever is in it, so a model has one shape for all of its products, and next to no padding.
What must not cross from one document to the next, or from one unit to the next, is taken out of the row piece by piece:
attention reads a document, the norm of a gradient is that of a unit (`models.norms`).

`Pieces` takes them out: pieces of like length side by side in one rectangle. How wide the rectangle is that a piece is
in depends on the length of this piece alone, and what a product of batches of matrices computes of one matrix does not
depend on how many there are. So attention and norms of a piece are functions of this piece alone, to the bit. For a
model that is no proof, since its modules may do otherwise: `dpsgd.independence` looks at the one at hand.

Attention comes in by the interface that transformers has for it, under the name `by_document`; without `documents` it
is torch's own. Models that do not use the interface, or read across a row in another way (convolutions, recurrence),
cannot be packed: `can_be_packed` tries it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from rayprivacy.models.quiet import no_advice

BY_DOCUMENT = "by_document"
_LEAST_WIDTH = 16
_CPU = torch.device("cpu")
_SHORT = (3, 5, 2)  # lengths of documents that are tried beside the longest
_PRECISE, _ROUNDED = (
    1e-3,
    2e-2,
)  # how far states may be from those of documents alone, relatively; the latter below float32


@dataclass(frozen=True, repr=False, eq=False)
class Pieces:
    """Consecutive pieces of a row from its first token on; the row has at least one token that is in none.

    The pieces are ordered by their widths wherever they are in a tensor of one entry for each of them (`order`).
    """

    lengths: tuple[int, ...]
    tokens: int  # of the row
    device: torch.device = _CPU

    @cached_property
    def order(self) -> list[int]:
        """The numbers of the pieces as `groups` has them, one after the other."""
        return sorted(range(len(self.lengths)), key=lambda number: width_of(self.lengths[number]))

    @cached_property
    def groups(self) -> list[Tensor]:
        """Places of the tokens of pieces of one width, int64 [pieces, width]; behind a piece, the last token's."""
        lengths = np.asarray(self.lengths)
        ends, found = lengths.cumsum(), []
        for width, numbers in groupby(self.order, key=lambda number: width_of(self.lengths[number])):
            same = list(numbers)
            stops = ends[same][:, None]
            places = stops - lengths[same][:, None] + np.arange(width)
            found.append(torch.from_numpy(np.where(places < stops, places, self.tokens - 1)).to(self.device))
        return found

    @cached_property
    def back(self) -> Tensor:
        """Where each token is in all groups in turn, int64 [tokens]; for a token of no piece, behind their end."""
        every = torch.cat([group.flatten() for group in self.groups])
        found = torch.full((self.tokens,), len(every), dtype=torch.int64, device=self.device)
        found[every] = torch.arange(len(every), device=self.device)
        found[self.tokens - 1] = len(every)
        return found

    @cached_property
    def owner(self) -> Tensor:
        """The piece of each token, by its place in `order`, int64 [tokens]; for a token of none, how many there are."""
        ranks = np.empty(len(self.lengths) + 1, np.int64)
        ranks[[*self.order, len(self.lengths)]] = np.arange(len(ranks))
        rest = self.tokens - sum(self.lengths)
        return torch.from_numpy(ranks.repeat([*self.lengths, rest])).to(self.device)

    def to(self, device: torch.device) -> "Pieces":
        """The same pieces of a row on a device."""
        return self if device == self.device else Pieces(self.lengths, self.tokens, device)


def width_of(length: int) -> int:
    """The width of the rectangle that a piece is put into: a power of two, or one and a half of one."""
    width = _LEAST_WIDTH
    while width < length:
        width += width // 2 if width & (width - 1) == 0 else width // 3
    return width


def rectangles(row: Tensor, pieces: Pieces) -> Iterator[Tensor]:
    """The pieces of row [tokens, ...], group by group: [pieces, width, ...]; filled up with the row's last token."""
    for places in pieces.groups:
        yield row.index_select(0, places.flatten()).unflatten(0, places.shape)


def attention_by_document(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    documents: Pieces | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Causal attention [1, tokens, heads, width] within each document of a row, from [1, heads, tokens, width].

    Tokens of no document get zeros, and nothing of their own comes in: the row's last token fills up groups, and the
    gradient of one document that is not finite would reach all others by it.
    """
    if documents is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    if (window := options.get("sliding_window")) and window < max(documents.lengths):
        raise ValueError("a document is longer than the window in which a token reads")
    sides = [rectangles(_last_is_zero(side[0].transpose(0, 1)), documents) for side in (query, key, value)]
    parts = []
    for sides_of_one in zip(*sides, strict=True):
        q, k, v = (side.transpose(1, 2) for side in sides_of_one)
        found, _ = sdpa_attention_forward(module, q, k, v, None, **{**options, "is_causal": True})
        parts.append(found.flatten(0, 1))
    every = F.pad(torch.cat(parts), (0, 0, 0, 0, 0, 1))
    return every.index_select(0, documents.back)[None], None


def _last_is_zero(row: Tensor) -> Tensor:
    return torch.cat([row[:-1], row.new_zeros(1, *row.shape[1:])])


AttentionInterface.register(BY_DOCUMENT, attention_by_document)


def can_be_packed(model: Any, tokens: int) -> bool:
    """Set a causal model to read documents in one row, and say whether it does; one that does not is left as it was.

    It is tried on public tokens, on a document of `tokens` tokens among short ones, against each of them alone.
    """
    lm = causal(model)
    if getattr(lm.config, "_attn_implementation", None) != "sdpa":
        return False
    try:
        with no_advice():
            lm.set_attn_implementation(BY_DOCUMENT)
            found = _reads_by_document(lm, tokens)
    except (AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError):
        found = False
    if not found:
        unpacked(model)
    return found


def unpacked(model: Any) -> None:
    """Set a model back to torch's own attention."""
    with no_advice():
        causal(model).set_attn_implementation("sdpa")


def causal(model: Any) -> Any:
    """The causal model itself, without what PEFT puts around it."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


@torch.no_grad()
def _reads_by_document(lm: Any, tokens: int) -> bool:
    device = next(lm.parameters()).device
    lengths = (*_SHORT[:2], tokens, *_SHORT[2:])
    vocabulary = lm.get_input_embeddings().num_embeddings
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, vocabulary, (1, sum(lengths) + 1))).to(device)
    pieces = Pieces(lengths, ids.shape[1], device)
    row = {"input_ids": ids, "position_ids": positions_of(pieces), "use_cache": False}
    states = lm.base_model(**row, documents=pieces).last_hidden_state[:, :-1]
    alone = [lm.base_model(input_ids=own, use_cache=False).last_hidden_state for own in ids[:, :-1].split(lengths, 1)]
    expected = torch.cat(alone, 1).float()
    limit = _PRECISE if states.dtype == torch.float32 else _ROUNDED
    return all(
        bool((found - own).norm() <= limit * own.norm())
        for found, own in zip(states.float().split(lengths, 1), expected.split(lengths, 1), strict=True)
    )


def positions_of(documents: Pieces) -> Tensor:
    """The place of each token in its document, int64 [1, tokens]; 0 for a token of none."""
    rest = documents.tokens - sum(documents.lengths)
    own = [np.arange(length) for length in documents.lengths]
    return torch.from_numpy(np.concatenate([*own, np.zeros(rest, np.int64)]))[None].to(documents.device)
