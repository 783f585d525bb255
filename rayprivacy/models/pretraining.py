"""Pretraining of all weights of a base model on further public text, so that private steps begin nearer to their end.

    public texts, in an order that a public seed draws -> a tenth of them held out
    the others -> token ids, packed into rows of one length -> AdamW on next tokens -> the same model, other weights

Weights are trained in float32, because a step is far smaller than the spacing of bfloat16 numbers, and rounded to the
base's number format at the end; products are computed in that format. Equal inputs give equal bits on one machine.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from rayprivacy.core.counting import Told
from rayprivacy.core.errors import ConfigError
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.features import attention_bias
from rayprivacy.models.packing import PAD, Row, pack
from rayprivacy.models.public_training import Objective, endlessly, fit, held_out
from rayprivacy.models.settings import AdapterConfig, PretrainConfig
from rayprivacy.models.trainable import merged, trainable

CALL_TOKENS = 1024  # in one call of the model: 200 MB of logits with 49,152 tokens
PublicText = str | list[int]
_GROUP = 64  # documents that are packed together: time grows with the number of rows that each is offered to


def pretrained(
    backbone: Backbone, texts: Sequence[PublicText], config: PretrainConfig, held_rows: int, progress: Told
) -> tuple[Any, dict[str, float]]:
    """The model after training, in the base's number format; and its loss on held-out text before and after.

    The texts, at least two, are public: text, or token ids `start, ..., end`, without `end` where a text goes on. The
    loss is measured on at most `held_rows` rows.
    """
    most = getattr(backbone.model.config, "max_position_embeddings", None)
    if most is not None and config.max_tokens > most:
        raise ConfigError(f"pretrain.max_tokens is {config.max_tokens}, and the base model takes {most}: lower it.")
    held, others = (_rows(backbone, part, config.max_tokens) for part in held_out(texts, config.seed))
    rows = list(itertools.islice(others, config.steps * config.batch))
    model = trainable(backbone, AdapterConfig(kind="full"))
    objective = Objective(_loss_in(backbone.model.dtype), _predicted, max(1, CALL_TOKENS // config.max_tokens))
    drawn = endlessly(rows, np.random.default_rng(config.seed))
    batches = (list(itertools.islice(drawn, config.batch)) for _ in range(config.steps))
    first = list(itertools.islice(held, held_rows))
    figures = fit(model, objective, batches, first, config.learning_rate, progress, "pretrain")
    return merged(model, backbone), figures


def _rows(backbone: Backbone, texts: Iterable[PublicText], row_tokens: int) -> Iterator[Row]:
    """Packed rows, made as they are asked for."""
    documents = (
        backbone.document(text, row_tokens - 2) if isinstance(text, str) else text[:row_tokens] for text in texts
    )
    while group := list(itertools.islice(documents, _GROUP)):
        yield from pack(group, row_tokens, len(group))


def _predicts(segment: torch.Tensor) -> torch.Tensor:
    return (segment[..., 1:] == segment[..., :-1]) & (segment[..., 1:] != PAD)


def _predicted(rows: Sequence[Row]) -> int:
    return sum(int(_predicts(row.segment).sum()) for row in rows)


def _loss_in(dtype: torch.dtype) -> Any:
    """The loss of a few rows, with the products of the model computed in a number format."""

    def loss(model: Any, rows: Sequence[Row]) -> torch.Tensor:
        ids, keep = torch.stack([row.ids for row in rows]), _predicts(torch.stack([row.segment for row in rows]))
        with torch.autocast(model.device.type, dtype, enabled=dtype != torch.float32):
            logits = model(
                input_ids=ids,
                attention_mask=attention_bias(torch.stack([row.mask for row in rows]), dtype),
                position_ids=torch.stack([row.positions for row in rows]),
            ).logits
        return torch.nn.functional.cross_entropy(logits[:, :-1][keep].float(), ids[:, 1:][keep], reduction="sum")

    return loss
