"""Sample with CTranslate2, in float32 or int8, from a folder that its converter wrote.

CTranslate2 reads its seed when a thread draws for the first time; hence every batch has a generator, and with it a
thread and a seed, of its own. Temperature, top k and top p are applied in the order of transformers. A finished text
takes no further part in its batch.
"""

import copy
import gc
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rayprivacy.core.counting import Told, nobody
from rayprivacy.generation.batches import Decoder
from rayprivacy.generation.settings import SamplingConfig
from rayprivacy.models.backbone import Documents
from rayprivacy.models.memory import trim_memory
from rayprivacy.models.quiet import no_progress_bars

_SEEDING = threading.Lock()


def convert_for_ctranslate2(model: Any, documents: Documents, scratch: Path, precision: str) -> Path:
    """The folder of a converted model, inside `scratch`."""
    model.config.save_pretrained(scratch)
    out = scratch / "converted"
    with no_progress_bars(), _little_to_collect():
        _converter(model, documents.tokenizer, scratch).convert(str(out), quantization=precision)
    _name_no_missing_token(out / "config.json")
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


class CTranslate2Decoder(Decoder):
    """A model that was converted for CTranslate2.

    Args:
        folder: of the converted model.
        documents: the tokenizer.
        threads: batches that are sampled at once.
        told: told how many texts of a call are written.
    """

    def __init__(self, folder: Path, documents: Documents, threads: int = 1, told: Told = nobody) -> None:
        import ctranslate2  # an optional package

        super().__init__(documents, threads, told)
        ctranslate2.set_log_level(40)  # errors alone: it warns of number formats that we asked for
        self._folder, self._start = folder, documents.start
        self._library: Any = ctranslate2
        self._asked: Any = None
        self._tokens: list[str] = json.loads((folder / "vocabulary.json").read_text("utf-8"))

    def continued(self, prefixes: list[list[int]], config: SamplingConfig) -> list[list[int]]:
        """What is drawn after each prefix of one batch, without the token that ended it."""
        asked = [[self._tokens[token] for token in prefix] for prefix in prefixes]
        settings = {
            "sampling_temperature": config.temperature,
            "sampling_topk": min(config.top_k, len(self._tokens)),
            "sampling_topp": config.top_p,
            "end_token": self.stops,
            "include_prompt_in_result": False,
        }
        generator = self._seeded(config.seed, settings)
        found = generator.generate_batch(asked, max_length=config.max_tokens, **settings)
        del generator
        trim_memory()  # of a model
        return [each.sequences_ids[0] for each in found]

    def _seeded(self, seed: int, settings: dict[str, Any]) -> Any:
        """A generator whose thread has read this seed: it has drawn once, while no other thread could set another."""
        generator, first = self._generator(), [[self._tokens[self._start]]]
        with _SEEDING:
            self._library.set_random_seed(seed % (2**32 - 1))  # the largest value means a seed by chance
            generator.generate_batch(first, max_length=1, **settings)
        return generator

    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        """The logits of the token after each of `ids`, float32 [ids, vocabulary]."""
        return torch.from_numpy(np.array(self._kept().forward_batch([list(ids)]))[0])

    def most_likely(self, prompt: str, max_tokens: int) -> list[int]:
        """The most likely continuation of one prompt, token by token, in a call of its own: it depends on nothing else.

        Document as of `decode.greedy`.
        """
        prefix = self._prefix(prompt)
        found = self._kept().generate_batch(
            [[self._tokens[token] for token in prefix]],
            max_length=max_tokens,
            sampling_topk=1,
            end_token=self.stops,
            include_prompt_in_result=False,
        )
        return self._document(prefix, found[0].sequences_ids[0], max_tokens)

    def _kept(self) -> Any:
        """A generator that draws nothing, and may serve again."""
        if self._asked is None:
            self._asked = self._generator()
        return self._asked

    def _generator(self) -> Any:
        return self._library.Generator(str(self._folder), intra_threads=1)
