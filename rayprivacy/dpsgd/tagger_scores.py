"""What attacks read of a tagger: its loss on documents, and how certain it is of what it says of them.

Shokri et al. (2017) attack a classifier by its sorted scores: a model is surer of what it has seen. Here these are the
highest probabilities of intents, and in the mean over words those of word labels, as logarithms.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rayprivacy.dpsgd.batches import Document
from rayprivacy.dpsgd.tagger_loss import TaggerLoss, Unpacked, Words, in_order, logits_of, pooled
from rayprivacy.models.tags import Tags

Array = npt.NDArray[np.float64]
HIGHEST = 3  # scores of each head, at most
_LEAST = 1e-12


@torch.no_grad()
def losses(model: Any, tags: Tags, documents: Sequence[Document]) -> Array:
    """The loss of each document in nats, [documents]."""
    loss = TaggerLoss(len(tags.all_intents), len(tags.names))
    batches = in_order(documents, next(model.parameters()).device)
    return _together([loss(model, batch) for batch in batches])


@torch.no_grad()
def sorted_scores(model: Any, tags: Tags, documents: Sequence[Document]) -> Array:
    """Logarithms of the highest probabilities of intents, then of word labels in the mean over words; highest first.

    The shape is [documents, scores]. A CRF has no part in them.
    """
    found, intents = [], len(tags.all_intents)
    for batch in in_order(documents, next(model.parameters()).device):
        read = Unpacked.of(batch, len(tags.names))
        logits = logits_of(model, read)
        words = Words.of(logits, read, intents)
        there = torch.arange(words.labels.shape[1], device=logits.device) < words.lengths[:, None]
        of_words = torch.where(there[..., None], _highest(words.emissions), 0).sum(1)
        means = of_words / words.lengths.clamp(min=1)[:, None]
        found.append(torch.cat([_highest(pooled(logits, read)[:, :intents]), means], 1).clamp(min=_LEAST).log())
    return _together(found)


def _highest(logits: torch.Tensor) -> torch.Tensor:
    return logits.softmax(-1).topk(min(HIGHEST, logits.shape[-1])).values


def _together(batches: list[torch.Tensor]) -> Array:
    return np.asarray(torch.cat(batches).double().cpu().numpy())
