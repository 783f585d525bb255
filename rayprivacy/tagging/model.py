"""A tagger: a public BERT or causal model with an intent head on the mean of its states and a word head on some.

Both heads are rows of one matrix, so that the model is an ordinary `AutoModelForTokenClassification`, which anybody
loads; a softmax runs over the rows of one head. The word head may have a CRF on top (`tagging.crf`). Heads and CRF
start from small random numbers of a public seed. A bi-LSTM (`tagging.bilstm`) is a tagger too.

A BERT looks both ways, and a word's label is read at its first token, as is usual. A causal model has seen the whole
word only at its last token, so it is read there; what stands behind a word is never seen.

A saved tagger is one of these, with the lists of what it can say, and how it is read (`tagger`), in its configuration.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForTokenClassification

from rayprivacy.core.errors import ConfigError
from rayprivacy.models import loading
from rayprivacy.models.backbone import Backbone, Documents, fast_format
from rayprivacy.models.settings import AUTO
from rayprivacy.models.sources import glove, resolve_base
from rayprivacy.models.trainable import START_SEED
from rayprivacy.tagging import bilstm
from rayprivacy.tagging.crf import WITH_CRF
from rayprivacy.tagging.settings import BILSTM, TaggerConfig, Tags

HEADS = ("classifier", "score", "crf")  # of which a public base has none
CAUSAL = ("llama", "gpt2")
ENCODER = "bert"
NUMBERS = 2**31  # that a token with its label may take
WORDS = 50_000  # the most frequent of 400,000, which the bi-LSTM knows


def _describe(config: TaggerConfig, shape: Any, marks: tuple[int, int]) -> None:
    """Write how a tagger is read into a configuration; the marks are the tokens before and behind a text."""
    names = config.tags.names
    shape.num_hidden_layers = config.layers or shape.num_hidden_layers
    shape.id2label, shape.label2id = dict(enumerate(names)), {name: at for at, name in enumerate(names)}
    shape.use_cache = False
    shape.tagger = {
        "start": marks[0],
        "end": marks[1],
        "read_words_at": "last token" if shape.model_type in CAUSAL else "first token",
        "crf": config.crf,
        "words": len(config.tags.all_words),
    }


def saved_tagger(folder: Path) -> TaggerConfig:
    """How a saved tagger is loaded again: with the lists, and the number format, that it was saved with."""
    config = _saved(folder)
    try:
        names = config["id2label"]
        tags, crf = Tags.of([names[str(at)] for at in range(len(names))]), bool(config["tagger"]["crf"])
        return TaggerConfig(base=str(folder), dtype=config["dtype"], crf=crf, intents=tags.intents, slots=tags.slots)
    except (ValueError, LookupError, TypeError) as error:
        raise ConfigError(
            f"{folder} holds no tagger that can be read ({type(error).__name__}): name another."
        ) from None


def is_tagger(folder: Path) -> bool:
    """Whether a saved model is a tagger, by its configuration."""
    return "tagger" in _saved(folder)


def _saved(folder: Path) -> Mapping[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def is_causal(model: Any) -> bool:
    """Whether a tagger sees no further than the token that it is at."""
    return bool(model.config.model_type in CAUSAL)


def _new_bilstm(config: TaggerConfig) -> Backbone:
    """A bi-LSTM with random weights of a public seed and the vectors of the most frequent words."""
    words, vectors = glove(f"model.base is '{BILSTM}', which reads GloVe vectors")
    tokenizer = bilstm.WordTokenizer(words[:WORDS])
    shape = bilstm.BiLstmConfig(vocab_size=len(tokenizer))
    _describe(config, shape, (bilstm.START, bilstm.END))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(START_SEED)
        model = bilstm.BiLstmForTokenClassification(shape)
    known = model.words.weight.data[bilstm.FIRST_WORD - bilstm.BYTES :]
    known[:] = torch.tensor(vectors[:WORDS], dtype=torch.float32)
    return _backbone(model, tokenizer)


def _saved_bilstm(config: TaggerConfig) -> Backbone:
    """A bi-LSTM that was saved; refused where it was saved with other intents or slots."""
    if saved_tagger(Path(config.base)).tags != config.tags:
        raise ConfigError(f"model.base is {config.base!r}, a bi-LSTM with other intents or slots: give its own.")
    with loading.telling(config.base):
        model = loading.load_weights(config.base, bilstm.BiLstmForTokenClassification, config.base)
        return _backbone(model, bilstm.WordTokenizer.from_pretrained(config.base))


def _backbone(model: Any, tokenizer: bilstm.WordTokenizer) -> Backbone:
    model.eval().requires_grad_(False)
    model.frozen_parts = [model.words]
    return Backbone(tokenizer, bilstm.START, bilstm.END, model=model)


def load(config: TaggerConfig, device: torch.device | str) -> Backbone:
    """Load the base of a recipe; whatever the device, on the CPU."""
    return load_tagger(config)


look = loading.check_model


def load_tagger(config: TaggerConfig) -> Backbone:
    """Load the base of a recipe as an untrained tagger, or a saved tagger as it is."""
    if config.base == BILSTM:
        return _new_bilstm(config)
    if _saved(Path(os.path.expanduser(config.base))).get("model_type") == bilstm.MODEL_TYPE:
        return _saved_bilstm(config)
    dtype = fast_format() if config.dtype == AUTO else config.dtype
    with loading.telling(config.base):
        source = resolve_base(config.base)
        shape = AutoConfig.from_pretrained(source, trust_remote_code=False)
        _check(config, shape)
        tokenizer = loading.load_tokenizer(source)
        marks = _marks(tokenizer, shape)
        _describe(config, shape, marks)
        loader = WITH_CRF[shape.model_type] if config.crf else AutoModelForTokenClassification
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(START_SEED)
            options = {"config": shape, "dtype": getattr(torch, dtype), "attn_implementation": "sdpa"}
            model = loading.load_weights(config.base, loader, source, new=HEADS, **options)
    model.heads = [each for name, each in model.named_children() if name in HEADS]
    model.frozen_parts = {"all": [], "layers": _embeddings(model), "heads": [model.base_model]}[config.trained]
    return Backbone(tokenizer, *marks, model=model)


def _check(config: TaggerConfig, shape: Any) -> None:
    if shape.model_type not in WITH_CRF:
        raise ConfigError(
            f"model.base is {config.base!r}, a '{shape.model_type}': a tagger takes a BERT, a Llama or a GPT-2, so name"
            " one."
        )
    if config.layers is not None and config.layers > shape.num_hidden_layers:
        depth = shape.num_hidden_layers
        raise ConfigError(f"model.layers is {config.layers} and the base has {depth}: give at most {depth}.")
    if shape.vocab_size * (len(config.tags.names) + 1) > NUMBERS:
        raise ConfigError(f"model.slots has {len(config.slots)} names, too many for the vocabulary: give fewer.")


def _marks(tokenizer: Any, shape: Any) -> tuple[int, int]:
    """The tokens before and behind a text."""
    if not tokenizer.is_fast:
        raise ConfigError("model.base has a tokenizer that does not say where its tokens stand: choose another base.")
    if shape.model_type == ENCODER:
        return tokenizer.cls_token_id, tokenizer.sep_token_id
    documents = Documents.of(tokenizer)
    return documents.start, documents.end


def _embeddings(model: Any) -> list[nn.Module]:
    if model.config.model_type == ENCODER:
        return [model.bert.embeddings]
    return [each for each in model.base_model.modules() if isinstance(each, nn.Embedding)]


def most_tokens(model: Any) -> int:
    """Tokens of the longest text that has positions for all, with its marks and padded to a multiple of 8."""
    return int(model.config.max_position_embeddings) // 8 * 8 - 2


def check_length(model: Any, max_tokens: int) -> None:
    """Refuse texts of more tokens than the model has positions for."""
    most = most_tokens(model)
    if max_tokens > most:
        raise ConfigError(f"training.max_tokens is {max_tokens} and model.base takes {most}: give at most {most}.")
