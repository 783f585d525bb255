"""The whole words among the tokens of a public model, with their input embeddings."""

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from rayprivacy.models.backbone import load_backbone
from rayprivacy.models.settings import ModelConfig

_WORD = re.compile(r"[^\W_]+|[^\w\s]")


def word_embeddings(base: str) -> tuple[list[str], npt.NDArray[np.float32]]:
    """Words and vectors [words, width], in the order of the model's tokens.

    A word is a token with the space before it, or a mark of punctuation; pieces of words are left out.
    """
    backbone = load_backbone(ModelConfig(base=base, dtype="float32"))
    tokenizer: Any = backbone.tokenizer
    found: dict[str, int] = {}
    for token in range(len(tokenizer)):
        text = tokenizer.decode([token])
        word = text[1:] if text.startswith(" ") else text if not text[:1].isalnum() else ""
        if _WORD.fullmatch(word):
            found.setdefault(word.lower(), token)
    vectors = backbone.model.get_input_embeddings().weight.detach()[list(found.values())].float().numpy()
    return list(found), vectors
