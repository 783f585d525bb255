"""Loads the bi-LSTM as an untrained tagger on GloVe vectors, or one that was saved."""

from pathlib import Path
from typing import Any

import torch

from rayprivacy.core.errors import ConfigError
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.bilstm import BiLstmConfig, BiLstmForTokenClassification
from rayprivacy.models.glove import glove
from rayprivacy.models.quiet import no_progress_bars
from rayprivacy.models.tagger_settings import BILSTM, TaggerConfig
from rayprivacy.models.tagger_shape import describe, saved_tagger
from rayprivacy.models.trainable import START_SEED
from rayprivacy.models.word_tokenizer import BYTES, END, FIRST_WORD, START, WordTokenizer

WORDS = 50_000  # the most frequent of 400,000


def new_bilstm(config: TaggerConfig) -> Backbone:
    """A bi-LSTM with random weights of a public seed and the vectors of the most frequent words."""
    words, vectors = glove(f"model.base is '{BILSTM}', which reads GloVe vectors")
    tokenizer = WordTokenizer(words[:WORDS])
    shape = BiLstmConfig(vocab_size=len(tokenizer))
    describe(config, shape, (START, END))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(START_SEED)
        model = BiLstmForTokenClassification(shape)
    model.words.weight.data[FIRST_WORD - BYTES :] = torch.tensor(vectors[:WORDS], dtype=torch.float32)
    return _backbone(model, tokenizer)


def saved_bilstm(config: TaggerConfig) -> Backbone:
    """A bi-LSTM that was saved; refused where it was saved with other intents or slots."""
    if saved_tagger(Path(config.base)).tags != config.tags:
        raise ConfigError(f"model.base is {config.base!r}, a bi-LSTM with other intents or slots: give its own.")
    try:
        with no_progress_bars():
            model = BiLstmForTokenClassification.from_pretrained(config.base)
        return _backbone(model, WordTokenizer.from_pretrained(config.base))
    except (OSError, ValueError) as error:
        raise ConfigError(f"model.base is {config.base!r}: it could not be loaded ({type(error).__name__}).") from None


def _backbone(model: Any, tokenizer: WordTokenizer) -> Backbone:
    model.eval().requires_grad_(False)
    model.frozen_parts = [model.words]
    return Backbone(tokenizer, START, END, model=model)
