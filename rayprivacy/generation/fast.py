"""Sample with CTranslate2, on a CPU up to twice as fast as transformers in float32, and three times in int8.

    model -> converted folder (int8 or float32 weights) -> checked against the model -> texts

The released model stays what it is: the converted folder serves sampling, and is deleted when the texts are written.
Temperature, top k and top p are applied in the order of transformers, so that both draw from one distribution, up to
the rounding of int8 weights. A finished text takes no further part in its batch.

A small product gains nothing from a second core, and two batches do. So a batch is sampled by one thread, and several
batches at once. CTranslate2 reads its seed when a thread draws for the first time; hence every batch has a generator,
and with it a thread and a seed, of its own, and its texts do not depend on what is sampled beside it.
"""

import copy
import gc
import json
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from itertools import count, repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rayprivacy.core.artifacts import digest_json
from rayprivacy.core.counting import Told, nobody
from rayprivacy.core.errors import ConfigError
from rayprivacy.generation.decode import Sampler, sample
from rayprivacy.generation.engines import PRECISIONS
from rayprivacy.generation.settings import BATCH, SamplingConfig
from rayprivacy.models.backbone import Documents, model_digest
from rayprivacy.models.memory import trim_memory
from rayprivacy.models.quiet import no_progress_bars
from rayprivacy.models.side_by_side import driver_threads

# Total variation between two next-token distributions; int8 is coarser where the processor has no VNNI.
FARTHEST = {"int8": 0.4, "float32": 0.05}
_PROBE = "The weather was"
_SEEDING = threading.Lock()


@contextmanager
def sampler_of(
    engine: str, model: Any, documents: Documents, workspace: Path, told: Told = nobody
) -> Iterator[Sampler]:
    """What samples from a model by an engine, `told` how many texts are written; other arguments as of `convert`."""
    if engine not in PRECISIONS:
        yield partial(sample, model, documents, told=told)
        return
    folder = convert(engine, model, documents, workspace)
    yield Decoder(folder, documents, driver_threads(), told).sample
    shutil.rmtree(folder)


def convert(engine: str, model: Any, documents: Documents, workspace: Path) -> Path:
    """The folder of a converted model, for the caller to delete when nothing fails; a killed run finds it again.

    Args:
        engine: one of `PRECISIONS`.
        model: a Hugging Face model; it is not changed.
        documents: its tokenizer.
        workspace: the folder in which the converted model appears, whole.

    Raises:
        ConfigError: the model cannot be converted, or comes out another one.
    """
    precision = PRECISIONS[engine]
    name = digest_json([model_digest(model), precision, version("ctranslate2")])[:16]
    folder = workspace / f"decoding-{name}"
    if folder.is_dir():
        return folder
    scratch = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        _convert(engine, model, documents, scratch).rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        trim_memory(collect=True)  # of the copies that the converter made: as much as three models
    return folder


def _convert(engine: str, model: Any, documents: Documents, scratch: Path) -> Path:
    model.config.save_pretrained(scratch)
    out, precision = scratch / "converted", PRECISIONS[engine]
    try:
        with no_progress_bars(), _little_to_collect():
            _converter(model, documents.tokenizer, scratch).convert(str(out), quantization=precision)
        _name_no_missing_token(out / "config.json")
        distance = next_token_distance(model, Decoder(out, documents), documents.prefix(_PROBE))
    except (ValueError, RuntimeError, AttributeError, LookupError) as error:
        raise ConfigError(
            f"the engine '{engine}' cannot convert the model ({type(error).__name__}): use 'transformers'."
        ) from None
    if not distance <= FARTHEST[precision]:
        raise ConfigError(
            f"the engine '{engine}' makes another model of this one (its next-token distribution is off by"
            f" {distance:.2g}): use 'transformers'."
        )
    return out


@contextmanager
def _little_to_collect() -> Iterator[None]:
    """The converter collects garbage after each layer: most of its time, if that looks at all that is in memory."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _name_no_missing_token(path: Path) -> None:
    """A tokenizer may have no token for the unknown, which CTranslate2 does not read."""
    written = json.loads(path.read_text("utf-8"))
    named = {name: value or "" for name, value in written.items() if name.endswith("_token")}
    path.write_text(json.dumps(written | named), "utf-8")


def _converter(model: Any, tokenizer: Any, folder: Path) -> Any:
    """A converter of a model in memory: nothing is looked up by name, and float32 holds bfloat16 weights exactly."""
    from ctranslate2.converters import TransformersConverter  # an optional package

    class InMemory(TransformersConverter):  # type: ignore[misc]  # it has no types
        def load_model(self, *_: Any, **__: Any) -> Any:
            return copy.deepcopy(model).float()  # the converter takes its model apart

        def load_tokenizer(self, *_: Any, **__: Any) -> Any:
            return tokenizer

    return InMemory(str(folder))


@torch.no_grad()
def next_token_distance(model: Any, decoder: "Decoder", ids: list[int]) -> float:
    """Total variation between what a model and its converted one expect after `ids`, between 0 and 1."""
    expected = torch.softmax(model(torch.tensor([ids])).logits[0, -1].float(), -1)
    found = torch.softmax(decoder.logits(ids)[-1], -1)
    return float((expected - found).abs().sum() / 2)


class Decoder:
    """A converted model.

    Args:
        folder: as `convert` leaves it.
        documents: the tokenizer.
        threads: batches that are sampled at once.
        told: told how many texts of a call are written.
    """

    def __init__(self, folder: Path, documents: Documents, threads: int = 1, told: Told = nobody) -> None:
        import ctranslate2  # an optional package

        ctranslate2.set_log_level(40)  # errors alone: it warns of number formats that we asked for
        self._folder, self._documents, self._threads, self._told = folder, documents, threads, told
        self._library: Any = ctranslate2
        self._asked: Any = None
        self._tokens: list[str] = json.loads((folder / "vocabulary.json").read_text("utf-8"))

    def sample(self, prompts: list[str], config: SamplingConfig, batch: int = BATCH) -> list[list[int]]:
        """Sample one continuation of every prompt; documents as of `decode.sample`."""
        prefixes = [self._documents.prefix(prompt) for prompt in prompts]
        batches = [prefixes[at : at + batch] for at in range(0, len(prefixes), batch)]
        found: list[list[int]] = []
        self._told(0)
        with ThreadPoolExecutor(self._threads) as threads:
            for documents in threads.map(self._continued, count(), batches, repeat(config)):
                found += documents
                self._told(len(found))
        return found

    def _continued(self, number: int, prefixes: list[list[int]], config: SamplingConfig) -> list[list[int]]:
        asked = [[self._tokens[token] for token in prefix] for prefix in prefixes]
        settings = {
            "sampling_temperature": config.temperature,
            "sampling_topk": min(config.top_k, len(self._tokens)),
            "sampling_topp": config.top_p,
            "end_token": sorted({self._documents.start, self._documents.end}),
            "include_prompt_in_result": False,
        }
        generator = self._seeded(config.seed + number, settings)
        found = generator.generate_batch(asked, max_length=config.max_tokens, **settings)
        del generator
        trim_memory()  # of a model
        return [
            self._document(prefix, each.sequences_ids[0], config.max_tokens)
            for prefix, each in zip(prefixes, found, strict=True)
        ]

    def _seeded(self, seed: int, settings: dict[str, Any]) -> Any:
        """A generator whose thread has read this seed: it has drawn once, while no other thread could set another."""
        generator, first = self._generator(), [[self._tokens[self._documents.start]]]
        with _SEEDING:
            self._library.set_random_seed(seed % (2**32 - 1))  # the largest value means a seed by chance
            generator.generate_batch(first, max_length=1, **settings)
        return generator

    def logits(self, ids: list[int]) -> torch.Tensor:
        """The logits of the token after each of `ids`, float32 [ids, vocabulary]."""
        if self._asked is None:
            self._asked = self._generator()  # it draws nothing, and may serve again
        return torch.from_numpy(np.array(self._asked.forward_batch([ids]))[0])

    def _generator(self) -> Any:
        return self._library.Generator(str(self._folder), intra_threads=1)

    def _document(self, prefix: list[int], new: list[int], most: int) -> list[int]:
        """A text that is shorter than it may be has ended by itself."""
        return [*prefix, *new, *([self._documents.end] if len(new) < most else [])]
