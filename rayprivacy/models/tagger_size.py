"""How large a tagger is, without loading it: the layers that are used, and the heads. Imports no torch."""

from dataclasses import replace

from rayprivacy.models.size import ModelSize, size_of
from rayprivacy.models.tagger_settings import BILSTM, TaggerConfig

_OF_AN_LSTM = 8 * 384 * (80 + 384 + 768 + 384)  # weights of two layers in both directions, see `models.bilstm`
_TOKENS_OF_A_WORD = 6  # itself and its letters, among which it is read once


def tagger_size(config: TaggerConfig, heads_alone: bool) -> ModelSize | None:
    """What its parameters multiply with for each token; None where the base's size is not known.

    Embeddings are looked up and no output head is multiplied, so neither counts.

    Args:
        config: of the tagger.
        heads_alone: whether nothing of the base is trained.
    """
    if config.base == BILSTM:
        return ModelSize(_OF_AN_LSTM // _TOKENS_OF_A_WORD, 0, 0, 2)
    base = size_of(config.base)
    if base is None:
        return None
    used = (base.parameters - base.vocabulary * base.width) * min(config.layers or base.layers, base.layers)
    layers = used // base.layers
    return replace(base, parameters=layers + len(config.tags.names) * base.width, frozen=layers if heads_alone else 0)
