"""Sample with ONNX Runtime in float32, from a graph that `onnx_graph` wrote.

    prompts of a batch -> logits of the last tokens -> top k -> temperature -> top p -> draw -> finished texts leave -+
                                 ^                                                                                  |
                                 +---- the new tokens, one for each text that goes on <------------------------------+

The runtime computes logits, with the attention cache in our arrays, and no more. Tokens are drawn here, by a generator
of the batch, with the filters of transformers. All batches share one copy of the weights.

A small product gains nothing from a second core, and two batches do. So a batch is sampled by one thread, with a seed
of its own: its texts do not depend on what is sampled beside it, nor on how many threads there are.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rayprivacy.core.counting import Told, nobody
from rayprivacy.generation.onnx_graph import GRAPH, LENGTHS, LOGITS, LONGEST, PLACES, TOKENS, past
from rayprivacy.generation.settings import BATCH, SamplingConfig
from rayprivacy.models.backbone import Documents

Array = npt.NDArray[Any]


def draw(logits: torch.Tensor, config: SamplingConfig, generator: torch.Generator) -> torch.Tensor:
    """A token for each row of logits, drawn as transformers draws with these filters."""
    highest, tokens = logits.topk(min(config.top_k, logits.shape[1]))
    shares = torch.softmax(highest / config.temperature, -1)
    if config.top_p < 1:
        likelier = shares.cumsum(-1) - shares
        shares = shares.where(likelier < config.top_p, 0.0)
    return tokens.gather(1, torch.multinomial(shares, 1, generator=generator))[:, 0]


@dataclass
class _Texts:
    """Texts of one batch that have not ended.

    Attributes:
        numbers: of the texts within their batch.
        tokens: what the model reads next, int64 [texts, width]; behind a shorter text stands anything.
        lengths: tokens of each text, with those.
        places: of the last token of each text, among `tokens` row by row.
        cache: keys and values of tokens that were read.
    """

    numbers: Array
    tokens: Array
    lengths: Array
    places: Array
    cache: dict[str, Array]

    def further(self, drawn: torch.Tensor, going: torch.Tensor) -> "_Texts":
        """The texts that go on, each with its new token."""
        kept = going.numpy()
        cache = self.cache if kept.all() else {name: each[kept] for name, each in self.cache.items()}
        tokens = drawn.numpy()[kept, None]
        return _Texts(self.numbers[kept], tokens, self.lengths[kept] + 1, np.arange(len(tokens)), cache)


class OnnxDecoder:
    """A model as an ONNX graph, which samples.

    Args:
        folder: as `write_graph` leaves it.
        documents: the tokenizer.
        threads: batches that are sampled at once.
        told: told how many texts of a call are written.
    """

    def __init__(self, folder: Path, documents: Documents, threads: int = 1, told: Told = nobody) -> None:
        self._threads, self._told = threads, told
        self._prefix, self._end = documents.prefix, documents.end
        self._stops = torch.tensor(sorted({documents.start, documents.end}))
        self._session = _session(folder / GRAPH)
        shapes = {each.name: each.shape for each in self._session.get_outputs()}
        self._vocabulary: int = shapes.pop(LOGITS)[1]
        self._cache: dict[str, list[Any]] = shapes

    def sample(self, prompts: list[str], config: SamplingConfig, batch: int = BATCH) -> list[list[int]]:
        """Sample one continuation of every prompt; documents as `decode.sample` returns them."""
        prefixes = [self._prefix(prompt) for prompt in prompts]
        batches = [prefixes[at : at + batch] for at in range(0, len(prefixes), batch)]
        configs = [config.model_copy(update={"seed": config.seed + number}) for number in range(len(batches))]
        found: list[list[int]] = []
        self._told(0)
        with ThreadPoolExecutor(self._threads) as threads:
            for prefixes, drawn in zip(batches, threads.map(self.continued, batches, configs), strict=True):
                for prefix, new in zip(prefixes, drawn, strict=True):
                    ended = len(new) < config.max_tokens  # by itself
                    found.append([*prefix, *new, *([self._end] if ended else [])])
                self._told(len(found))
        return found

    def continued(self, prefixes: list[list[int]], config: SamplingConfig) -> list[list[int]]:
        """What is drawn after each prefix of one batch, without the token that ended it."""
        generator = torch.Generator().manual_seed(config.seed)
        found: list[list[int]] = [[] for _ in prefixes]
        texts = self._begun(prefixes, config.max_tokens)
        for _ in range(config.max_tokens):
            drawn = draw(self._logits(texts), config, generator)
            texts = texts.further(drawn, ~torch.isin(drawn, self._stops))
            for number, (token,) in zip(texts.numbers, texts.tokens.tolist(), strict=True):
                found[number].append(token)
            if not len(texts.numbers):
                break
        return found

    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        """The logits of the token after each of `ids`, float32 [ids, vocabulary]."""
        text = self._begun([list(ids)], 0)
        text.places = np.arange(len(ids))
        return self._logits(text)

    def _begun(self, prefixes: list[list[int]], more: int) -> _Texts:
        """Texts that were not read yet, with room for `more` tokens behind the longest."""
        lengths = np.array([len(prefix) for prefix in prefixes])
        texts, width = len(prefixes), int(lengths.max())
        tokens = np.zeros((texts, width), np.int64)
        for row, prefix in zip(tokens, prefixes, strict=True):
            row[: len(prefix)] = prefix
        cache = {
            name: np.zeros((texts, heads, width + more, size), np.float32)
            for name, (_, heads, _, size) in self._cache.items()
        }
        return _Texts(np.arange(texts), tokens, lengths, np.arange(texts) * width + lengths - 1, cache)

    def _logits(self, texts: _Texts) -> torch.Tensor:
        """The logits of the tokens after `places`, float32 [places, vocabulary]; keys and values enter the cache."""
        logits = np.empty((len(texts.places), self._vocabulary), np.float32)
        read: dict[str, Array] = {
            TOKENS: texts.tokens,
            LENGTHS: (texts.lengths - 1).astype(np.int32),
            LONGEST: texts.lengths.max(keepdims=True).astype(np.int32),
            PLACES: texts.places,
        }
        binding = self._session.io_binding()
        for name, array in (read | {past(name): array for name, array in texts.cache.items()}).items():
            binding.bind_input(*_bound(name, array))
        for name, array in ({LOGITS: logits} | texts.cache).items():
            binding.bind_output(*_bound(name, array))
        self._session.run_with_iobinding(binding)
        return torch.from_numpy(logits)


def _bound(name: str, array: Array) -> tuple[Any, ...]:
    """What a binding asks for: the runtime reads and writes the array where it lies."""
    if not array.flags.c_contiguous:
        raise ValueError(f"{name} does not lie row by row")
    return name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data


def _session(path: Path) -> Any:
    import onnxruntime  # an optional package

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # other batches have the other cores
    options.log_severity_level = 3  # errors alone
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
