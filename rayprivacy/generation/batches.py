"""Samples with a converted model a batch of prompts at a time, and several batches at once.

A small product gains nothing from a second core, and two batches do. So a batch is sampled by one thread, with a seed
of its own: its texts do not depend on what is sampled beside it, nor on how many threads there are.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from rayprivacy.core.counting import Told, nobody
from rayprivacy.generation.settings import BATCH, SamplingConfig
from rayprivacy.models.backbone import Documents


class Decoder(ABC):
    """A converted model that samples.

    Args:
        documents: the tokenizer.
        threads: batches that are sampled at once.
        told: told how many texts of a call are written.
    """

    def __init__(self, documents: Documents, threads: int = 1, told: Told = nobody) -> None:
        self._threads, self._told = threads, told
        self._prefix, self._end = documents.prefix, documents.end
        self.stops = sorted({documents.start, documents.end})

    @abstractmethod
    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        """The logits of the token after each of `ids`, float32 [ids, vocabulary]."""

    @abstractmethod
    def continued(self, prefixes: list[list[int]], config: SamplingConfig) -> list[list[int]]:
        """What is drawn after each prefix of one batch, without the token that ended it."""

    def sample(self, prompts: list[str], config: SamplingConfig, batch: int = BATCH) -> list[list[int]]:
        """Sample one continuation of every prompt; documents as of `decode.sample`."""
        prefixes = [self._prefix(prompt) for prompt in prompts]
        batches = [prefixes[at : at + batch] for at in range(0, len(prefixes), batch)]
        configs = [config.model_copy(update={"seed": config.seed + number}) for number in range(len(batches))]
        found: list[list[int]] = []
        self._told(0)
        with ThreadPoolExecutor(self._threads) as threads:
            for prefixes, drawn in zip(batches, threads.map(self.continued, batches, configs), strict=True):
                found += [self._document(*pair, config.max_tokens) for pair in zip(prefixes, drawn, strict=True)]
                self._told(len(found))
        return found

    def _document(self, prefix: list[int], new: list[int], most: int) -> list[int]:
        """A text that is shorter than it may be has ended by itself."""
        return [*prefix, *new, *([self._end] if len(new) < most else [])]
