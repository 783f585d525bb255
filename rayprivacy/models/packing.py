"""Documents of many units behind each other in one row of tokens, each read by itself.

A row holds as many tokens whoever is in it, so a model has one shape for all of its products, and next to no padding.
What must not cross from one document to the next, or from one unit to the next, is taken out of the row piece by piece:
attention reads a document, the norm of a gradient is that of a unit (`models.norms`).

Each piece is computed in tensors of its own, whose shape is its own length, at the beginning of memory of their own.
Pieces of like length side by side would be quicker and are not sound: how torch's attention in bfloat16, and its sums
over the longest axis, go about one of a batch depends on how many there are. So attention and norms of a piece are
functions of this piece alone, to the bit. For a model that is no proof, since its modules may do otherwise:
`dpsgd.independence` looks at the one at hand.

Attention comes in by the interface that transformers has for it, under the name `by_document`; without `documents` it
is torch's own. Models that do not use the interface, or read across a row in another way (convolutions, recurrence),
cannot be packed: `can_be_packed` tries it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from rayprivacy.models.quiet import no_advice

BY_DOCUMENT = "by_document"
_SHORT = (3, 5, 2)  # lengths of documents that are tried beside the longest
# How far states may be from those of documents alone, relatively; the latter below float32, whose attention is coarser.
_PRECISE, _ROUNDED = 1e-3, 5e-2


@dataclass(frozen=True)
class Pieces:
    """Consecutive pieces of a row from its first token on; the tokens behind them are in none."""

    lengths: tuple[int, ...]
    tokens: int  # of the row

    @property
    def rest(self) -> int:
        """How many tokens are in no piece."""
        return self.tokens - sum(self.lengths)

    def of(self, row: Tensor) -> list[Tensor]:
        """The pieces [length, ...] of row [tokens, ...], which are views of it."""
        return list(row.split([*self.lengths, self.rest])[:-1])

    def owners(self) -> Tensor:
        """The number of the piece of each token that is in one, int64."""
        return torch.arange(len(self.lengths)).repeat_interleave(torch.tensor(self.lengths))

    def positions(self) -> Tensor:
        """The place of each token in its piece, int64 [1, tokens]; 0 for a token of none."""
        return torch.cat([*(torch.arange(length) for length in self.lengths), torch.zeros(self.rest).long()])[None]


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

    Tokens of no document get zeros. It is computed in float32 whatever the rest is computed in: on a CPU the backward
    pass of short documents takes seven times as long in bfloat16, and a step a seventh more.
    """
    if documents is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    window = options.get("sliding_window")
    found = []
    with torch.autocast(query.device.type, enabled=False):
        for sides in zip(*(documents.of(side[0].transpose(0, 1)) for side in (query, key, value)), strict=True):
            q, k, v = (side.transpose(0, 1).float().contiguous()[None] for side in sides)
            mask = _window(len(sides[0]), window, q.device) if window and window < len(sides[0]) else None
            found.append(sdpa_attention_forward(module, q, k, v, mask, **{**options, "is_causal": mask is None})[0][0])
    rest = found[0].new_zeros(documents.rest, *found[0].shape[1:])
    return torch.cat([*found, rest])[None].to(query.dtype), None


def _window(length: int, window: int, device: torch.device) -> Tensor:
    """Which tokens a token reads: itself and those before it, `window` in all; bool [1, 1, length, length]."""
    places = torch.arange(length, device=device)
    behind = places[:, None] - places
    return ((behind >= 0) & (behind < window))[None, None]


AttentionInterface.register(BY_DOCUMENT, attention_by_document)


def can_be_packed(model: Any, tokens: int) -> bool:
    """Set a causal model to read documents in one row, and say whether it does; one that does not is left as it was.

    It is tried on public tokens, on a document of `tokens` tokens among short ones, against each of them alone.
    """
    lm = causal(model)
    if getattr(lm.config, "_attn_implementation", None) != "sdpa":
        return False
    try:
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
    alone = [lm.base_model(input_ids=own, use_cache=False).last_hidden_state for own in ids[:, :-1].split(lengths, 1)]
    with no_advice():
        lm.set_attn_implementation(BY_DOCUMENT)
    pieces = Pieces(lengths, ids.shape[1])
    row = {"input_ids": ids, "position_ids": pieces.positions().to(device), "use_cache": False}
    states = lm.base_model(**row, documents=pieces).last_hidden_state[0]
    limit = _PRECISE if states.dtype == torch.float32 else _ROUNDED
    return all(
        bool((found.float() - own[0].float()).norm() <= limit * own.float().norm())
        for found, own in zip(pieces.of(states), alone, strict=True)
    )
