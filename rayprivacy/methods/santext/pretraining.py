"""Sanitisation-aware pretraining (Yue et al., 2021, section 5): a public model learns to read sanitised text.

    public text -> sanitised by the same table -> the model reads it and predicts the ORIGINAL next words

The paper predicts the original word at a masked place of a sanitised sentence with BERT. This is the same for a causal
model: after each sanitised word it predicts the first piece of the original next word. Only public text is read, so the
model costs nothing; what it has learnt of the table helps whatever is trained on the sanitised corpus afterwards.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from rayprivacy.core.console import Told
from rayprivacy.core.errors import ConfigError
from rayprivacy.core.keys import Key
from rayprivacy.core.written import read_text
from rayprivacy.methods.santext.mechanisms import Planned
from rayprivacy.methods.santext.recipe import READER_BATCH, READER_WORDS, PretrainingConfig
from rayprivacy.models import pretraining, settings, trainable
from rayprivacy.models.backbone import Backbone
from rayprivacy.sanitize import documents, mechanism

IGNORED = -100
LEARNING_RATE = 3e-4  # of AdamW
ADAPTER = settings.AdapterConfig(kind="lora", rank=8)


@dataclass(frozen=True)
class Example:
    """Sanitised pieces; the first piece of the original next word behind each word, `IGNORED` elsewhere."""

    ids: list[int]
    targets: list[int]


def pretrained(
    backbone: Backbone, found: Planned, config: PretrainingConfig, told: Told
) -> tuple[Any, dict[str, float]]:
    """The model, and its loss on held-out public text before and after, in nats for each word."""
    every = examples(backbone, found, public_texts(Path(config.text)))
    held = max(1, int(pretraining.HELD_OUT * len(every)))
    if len(every) - held < READER_BATCH:
        raise ConfigError(f"pretraining.text is {config.text!r}, which has {len(every)} texts: give more of them.")
    model = trainable.trainable(backbone, ADAPTER)
    batches = itertools.islice(_batches(every[held:], READER_BATCH), config.steps)
    objective = pretraining.Objective(_loss, _predicted, READER_BATCH)
    figures = pretraining.fit(model, objective, batches, every[:held], LEARNING_RATE, told, "pretraining")
    return trainable.merged(model, backbone), figures


def public_texts(path: Path) -> list[str]:
    """The column `text` of a Parquet file, or the lines of any other."""
    remedy = "give a Parquet file with the column 'text', or lines of text in UTF-8"
    if path.suffix != ".parquet":
        return [line.strip() for line in read_text(path, "pretraining.text", remedy).split("\n") if line.strip()]
    try:
        return [str(text) for text in pq.read_table(path, columns=["text"])["text"].to_pylist() if text]
    except (OSError, KeyError, pa.ArrowInvalid) as error:
        kind = type(error).__name__
        raise ConfigError(f"pretraining.text is {str(path)!r}, which cannot be read ({kind}): {remedy}.") from None


def examples(backbone: Backbone, found: Planned, texts: Sequence[str]) -> list[Example]:
    """Public texts, sanitised by the table of the release with public coins, beside their original words."""
    words = documents.Words(found.vocabulary.words)
    ids, lengths = words.ids([documents.tidy(text) for text in texts], READER_WORDS)
    ids = np.minimum(ids, words.unknown)
    coins = mechanism.Coins(Key.for_tests(), "public text", "0")
    tags = np.repeat(np.arange(len(lengths), dtype=np.uint64), lengths)
    after, ends = found.mechanism.draw(ids, tags, documents.places_in(lengths), coins), np.cumsum(lengths)[:-1]
    pieces = [backbone.ids(f" {word}") for word in found.vocabulary.words]
    pairs = zip(np.split(ids, ends), np.split(after, ends), strict=True)
    return [_example(backbone.start, pieces, *pair) for pair in pairs if len(pair[0]) > 1]


def _example(start: int, pieces: list[list[int]], before: Any, after: Any) -> Example:
    ids, targets = [start], [IGNORED]
    for original, sanitised in zip(before.tolist(), after.tolist(), strict=True):
        targets[-1] = pieces[original][0] if original < len(pieces) else IGNORED
        ids += pieces[sanitised]
        targets += [IGNORED] * len(pieces[sanitised])
    return Example(ids, targets)


def _predicted(examples: Sequence[Example]) -> int:
    return sum(target != IGNORED for example in examples for target in example.targets)


def _loss(model: Any, batch: Sequence[Example]) -> torch.Tensor:
    longest = max(len(example.ids) for example in batch)
    ids = torch.tensor([example.ids + [0] * (longest - len(example.ids)) for example in batch])
    targets = torch.tensor([example.targets + [IGNORED] * (longest - len(example.targets)) for example in batch])
    logits = model(ids).logits.float().flatten(0, 1)
    return torch.nn.functional.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED, reduction="sum")


def _batches(every: Sequence[Example], size: int) -> Iterator[list[Example]]:
    """Batches of texts of about one length, endlessly, in an order that a public seed draws."""
    order = sorted(range(len(every)), key=lambda place: len(every[place].ids))
    batches = [order[start : start + size] for start in range(0, len(order) - size + 1, size)]
    for places in pretraining.endlessly(batches, np.random.default_rng(0)):
        yield [every[place] for place in places]
