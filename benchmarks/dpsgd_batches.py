"""What a batch shape of one's own costs: a step over chat in ours, and in batches packed for the least padding.

Part of `dpsgd.py`. A step is 100 users of the chat with up to 4 sentences each, as `jobs/generator/chat.yaml` samples
them; lengths are real, tokens are not. `packed` is how version 0.1 cut batches: users of one number of sentences,
sorted by length, as many as fit into 2,048 padded tokens, all as wide as the longest. In bfloat16 that let one user
move the others. `own` is `physical_batches`: a user's own width, and the same number of rows for
each shape. `ordinary` is a step without clipping over the packed batches.
"""

import gc
import statistics
import time
from collections.abc import Callable
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import nn

from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.corpus.sources import read_share
from rayprivacy.dpsgd.batches import Batch, Document, physical_batches
from rayprivacy.dpsgd.clipping import BookKeeping, Clipping
from rayprivacy.dpsgd.losses import row_losses
from rayprivacy.dpsgd.settings import CPU_BATCH_TOKENS

USERS, SENTENCES, LONGEST, PACKED_TOKENS, PAD = 100, 4, 64, 2048, 0
ARMS = ("ordinary", "packed", "own")
Units = list[list[Document]]
Times = dict[str, list[tuple[float, float]]]


def batch_times(adapter: str, rounds: int, model_of: Callable[[str], nn.Module]) -> Times:
    """CPU and wall-clock seconds of a step by each arm, in turns; the first round warms up."""
    torch.set_num_threads(1)
    model = model_of(adapter)
    units = _sampled(model.config.vocab_size)  # type: ignore[union-attr, arg-type]
    gradients = BookKeeping(model, Clipping(1.0))
    packed, own = _packed(units), physical_batches(units, CPU_BATCH_TOKENS, PAD)
    batches = {"ordinary": packed, "packed": packed, "own": own}
    found: Times = {arm: [] for arm in ARMS}
    for turn in range(rounds + 1):
        for arm in ARMS if turn % 2 else ARMS[::-1]:
            gc.collect()
            cpu, wall = time.process_time(), time.perf_counter()
            for batch in batches[arm]:
                _ordinary(model, batch) if arm == "ordinary" else _clipped(model, gradients, batch)
            spent = time.process_time() - cpu, time.perf_counter() - wall
            if turn:
                found[arm].append(spent)
    return found


def ratios(times: Times) -> dict[str, float]:
    """Medians of paired CPU ratios."""

    def ratio(arm: str, other: str) -> float:
        pairs = zip(times[arm], times[other], strict=True)
        return round(statistics.median(mine[0] / his[0] for mine, his in pairs), 3)

    pairs = (("packed", "ordinary"), ("own", "ordinary"), ("own", "packed"))
    return {f"{arm}_over_{other}": ratio(arm, other) for arm, other in pairs}


def padding() -> dict[str, float]:
    """Tokens that each arm computes, for one real token."""
    units = _sampled(1000)
    real = sum(len(document.ids) for unit in units for document in unit)
    arms = {"packed": _packed(units), "own": physical_batches(units, CPU_BATCH_TOKENS, PAD)}
    return {arm: round(sum(batch.ids.numel() for batch in batches) / real, 2) for arm, batches in arms.items()}


def _sampled(vocabulary: int) -> Units:
    """Documents of the first users of the chat: a token for each word and a mark at both ends."""
    random, units = np.random.default_rng(0), []
    table = pa.concat_tables(read_share(CorpusConfig(), 0, 1, ""))
    talk: dict[str, list[str]] = {}
    for user, text in zip(table["user"].to_pylist(), table["text"].to_pylist(), strict=True):
        talk.setdefault(user, []).append(text)
    for texts in list(talk.values())[:USERS]:
        lengths = [min(LONGEST, len(text.split()) + 2) for text in texts[:SENTENCES]]
        units.append([Document(random.integers(1, vocabulary, length).astype(np.int32), 1) for length in lengths])
    return units


def _packed(units: Units) -> list[Batch]:
    def longest(unit: list[Document]) -> int:
        return max(len(document.ids) for document in unit)

    found = []
    for rows, same in groupby(sorted(units, key=lambda unit: (len(unit), longest(unit)), reverse=True), key=len):
        held = list(same)
        while held:
            width = -(-longest(held[0]) // 8) * 8
            count = max(1, PACKED_TOKENS // (rows * width))
            found.append(_wide(held[:count], width))
            held = held[count:]
    return found


def _wide(units: Units, width: int) -> Batch:
    """One batch of all, at the width of the first."""
    rows = [document for unit in units for document in unit]
    ids = torch.full((len(rows), width), PAD, dtype=torch.int64)
    weights = torch.zeros(len(rows), width)
    for row, document in enumerate(rows):
        ids[row, : len(document.ids)] = torch.from_numpy(document.ids.astype(np.int64))
        weights[row, 1 : len(document.ids)] = 1 / (len(document.ids) * len(units[0]))
    return Batch(ids, weights, len(units[0]))


def _ordinary(model: nn.Module, batch: Batch) -> None:
    row_losses(model, batch).sum().backward()
    model.zero_grad(set_to_none=True)


def _clipped(model: nn.Module, gradients: BookKeeping, batch: Batch) -> None:
    sums: Any = gradients(lambda: row_losses(model, batch), batch.rows_per_unit)
    while sums:
        sums.popitem()[1]()
