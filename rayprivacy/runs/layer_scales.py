"""The scales of layers of a training: made once from public inputs, kept in the public folder of the run, and named.

A run is held to them: they are among the inputs that charges, coins and noise are named by, so that other scales are
another training with another charge.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from rayprivacy.core.artifacts import digest_json
from rayprivacy.core.errors import ConfigError
from rayprivacy.core.files import read_json, write_json
from rayprivacy.corpus.public_texts import public_texts
from rayprivacy.dpsgd.batches import Batch, Document, packed
from rayprivacy.dpsgd.layer_scale import scales_of_gradients, scales_of_weights
from rayprivacy.dpsgd.losses import RowLoss, own_losses, row_losses
from rayprivacy.dpsgd.settings import DpSgdConfig, LayerScaleConfig
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.settings import AdapterConfig
from rayprivacy.models.trainable import trainable
from rayprivacy.runs.context import RunContext

BLOCK = "training.layer_scale"
TEXTS = 64  # of public text that gradients are taken of, at most


def layer_scales(
    context: RunContext[Any], stage: str, settings: DpSgdConfig, adapter: AdapterConfig, loss: RowLoss | None
) -> dict[str, float]:
    """The scale of every trained parameter by name; none where the recipe has no `layer_scale` block.

    Args:
        context: of the run, with its base model loaded.
        stage: that trains.
        settings: of the training.
        adapter: what of the base model is trained.
        loss: the user's own; None is the model's negative log-likelihood.

    Raises:
        ConfigError: the public text cannot be read or has no text, or no scale is positive and finite.
    """
    config = settings.layer_scale
    if config is None:
        return {}
    assert context.backbone is not None, "load_model comes before train"
    texts = [] if config.source is None else public_texts(config.source, config.text, BLOCK)[:TEXTS]
    if config.source is not None and not texts:
        raise ConfigError(f"{BLOCK}.source has no text in column '{config.text}': name public text, or from 'weights'.")
    inputs = digest_json([context.backbone.digest, adapter.model_dump(), settings.max_tokens, texts, config.origin])
    kept = context.run.public(f"layer-scales-{inputs[:16]}.json")
    if not kept.exists():
        write_json(kept, _made(context.backbone, config, settings, adapter, texts, loss))
    scales = {str(name): float(scale) for name, scale in read_json(kept).items()}
    text = f" of text with digest {digest_json(texts)}" if texts else ""
    context.layer_scales[stage] = f"{digest_json(scales)}, from {config.origin}{text}"
    return scales


def _made(
    backbone: Backbone,
    config: LayerScaleConfig,
    settings: DpSgdConfig,
    adapter: AdapterConfig,
    texts: list[str],
    loss: RowLoss | None,
) -> dict[str, float]:
    model = trainable(backbone, adapter)
    if config.origin == "weights":
        return scales_of_weights(model)
    units = [[_document(backbone, text, settings.max_tokens)] for text in texts]
    losses: Callable[[Any, Batch], Tensor] = partial(own_losses, loss=loss) if loss else row_losses
    return scales_of_gradients(
        model, packed(units, settings.max_tokens * 8, backbone.end, settings.token_decay), losses
    )


def _document(backbone: Backbone, text: str, max_tokens: int) -> Document:
    return Document(np.array(backbone.document(text, max_tokens), dtype=np.int32), 1)
