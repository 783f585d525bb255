"""Sample with ONNX Runtime, which is faster on a CPU than transformers.

    model -> converted folder (a graph and float32 weights) -> checked against the model -> texts

The released model stays what it is: the converted folder serves sampling, and is deleted when the texts are written.
Temperature, top k and top p do what they do in transformers, so that both draw from one distribution.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from rayprivacy.core.console import Told, nobody
from rayprivacy.core.errors import ConfigError
from rayprivacy.core.private import digest_json
from rayprivacy.generation.decode import Sampler, sample
from rayprivacy.generation.onnx import OnnxDecoder, write_graph
from rayprivacy.generation.settings import ONNX
from rayprivacy.models.backbone import Documents, model_digest
from rayprivacy.models.features import driver_threads
from rayprivacy.models.quiet import trim_memory

FARTHEST = 0.05  # total variation between two next-token distributions
_PROBE = "The weather was"


@contextmanager
def sampler_of(
    engine: str, model: Any, documents: Documents, workspace: Path, progress: Told = nobody
) -> Iterator[Sampler]:
    """A sampler from a model by an engine; `progress` is called with the number of texts written."""
    if engine != ONNX:
        yield partial(sample, model, documents, progress=progress)
        return
    folder = convert(model, documents, workspace)
    yield OnnxDecoder(folder, documents, driver_threads(), progress).sample
    shutil.rmtree(folder)


def convert(model: Any, documents: Documents, workspace: Path) -> Path:
    """The folder of a converted model, whole, for the caller to delete; a killed run finds it again."""
    name = digest_json([model_digest(model), ONNX, version("onnxruntime")])[:16]
    folder = workspace / f"decoding-{name}"
    if folder.is_dir():
        return folder
    scratch = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        _checked(model, documents, scratch).rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        trim_memory(collect=True)  # of the copies that were made: as much as three models
    return folder


def _checked(model: Any, documents: Documents, scratch: Path) -> Path:
    try:
        out = write_graph(model, scratch / "converted")
        distance = next_token_distance(model, OnnxDecoder(out, documents, packed=False), documents.prefix(_PROBE))
    except (ValueError, RuntimeError, AttributeError, LookupError) as error:
        raise ConfigError(
            f"the engine '{ONNX}' cannot convert the model ({type(error).__name__}): use 'transformers'."
        ) from None
    if not distance <= FARTHEST:
        raise ConfigError(
            f"the engine '{ONNX}' makes another model of this one (its next-token distribution is off by"
            f" {distance:.2g}): use 'transformers'."
        )
    return out


@torch.no_grad()
def next_token_distance(model: Any, decoder: OnnxDecoder, ids: list[int]) -> float:
    """Total variation between what a model and its converted one expect after `ids`, between 0 and 1."""
    expected = torch.softmax(model(torch.tensor([ids])).logits[0, -1].float(), -1)
    found = torch.softmax(decoder.logits(ids)[-1], -1)
    return float((expected - found).abs().sum() / 2)
