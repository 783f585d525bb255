"""Sample with an engine that is faster on a CPU than transformers: ONNX Runtime, or CTranslate2.

    model -> converted folder (float32 or int8 weights) -> checked against the model -> texts

The released model stays what it is: the converted folder serves sampling, and is deleted when the texts are written.
Temperature, top k and top p do what they do in transformers, so that all draw from one distribution, up to the
rounding of int8 weights.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from rayprivacy.core.artifacts import digest_json
from rayprivacy.core.counting import Told, nobody
from rayprivacy.core.errors import ConfigError
from rayprivacy.generation.batches import Decoder
from rayprivacy.generation.ctranslate2_decoder import CTranslate2Decoder, convert_for_ctranslate2
from rayprivacy.generation.decode import Sampler, sample
from rayprivacy.generation.engines import ONNX, PRECISIONS, package_of
from rayprivacy.generation.onnx_decoder import OnnxDecoder
from rayprivacy.generation.onnx_graph import write_graph
from rayprivacy.models.backbone import Documents, model_digest
from rayprivacy.models.memory import trim_memory
from rayprivacy.models.side_by_side import driver_threads

# Total variation between two next-token distributions; int8 is coarser where the processor has no VNNI.
FARTHEST = {"int8": 0.4, "float32": 0.05}
_PROBE = "The weather was"


@contextmanager
def sampler_of(
    engine: str, model: Any, documents: Documents, workspace: Path, told: Told = nobody
) -> Iterator[Sampler]:
    """What samples from a model by an engine, `told` how many texts are written; other arguments as of `convert`."""
    if engine not in PRECISIONS:
        yield partial(sample, model, documents, told=told)
        return
    folder = convert(engine, model, documents, workspace)
    yield decoder_of(engine, folder, documents, driver_threads(), told).sample
    shutil.rmtree(folder)


def decoder_of(engine: str, folder: Path, documents: Documents, threads: int = 1, told: Told = nobody) -> Decoder:
    """The decoder of a converted model.

    Args:
        engine: that it was converted for.
        folder: as `convert` leaves it.
        documents: the tokenizer.
        threads: batches that are sampled at once.
        told: told how many texts of a call are written.
    """
    made = OnnxDecoder if engine == ONNX else CTranslate2Decoder
    return made(folder, documents, threads, told)


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
    name = digest_json([model_digest(model), engine, version(package_of(engine))])[:16]
    folder = workspace / f"decoding-{name}"
    if folder.is_dir():
        return folder
    scratch = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        _checked(engine, model, documents, scratch).rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        trim_memory(collect=True)  # of the copies that a converter made: as much as three models
    return folder


def _checked(engine: str, model: Any, documents: Documents, scratch: Path) -> Path:
    """The folder of a converted model, inside `scratch`."""
    try:
        out = _converted(engine, model, documents, scratch)
        distance = next_token_distance(model, decoder_of(engine, out, documents), documents.prefix(_PROBE))
    except (ValueError, RuntimeError, AttributeError, LookupError) as error:
        raise ConfigError(
            f"the engine '{engine}' cannot convert the model ({type(error).__name__}): use 'transformers'."
        ) from None
    if not distance <= FARTHEST[PRECISIONS[engine]]:
        raise ConfigError(
            f"the engine '{engine}' makes another model of this one (its next-token distribution is off by"
            f" {distance:.2g}): use 'transformers'."
        )
    return out


def _converted(engine: str, model: Any, documents: Documents, scratch: Path) -> Path:
    if engine == ONNX:
        return write_graph(model, scratch / "converted")
    return convert_for_ctranslate2(model, documents, scratch, PRECISIONS[engine])


@torch.no_grad()
def next_token_distance(model: Any, decoder: Decoder, ids: list[int]) -> float:
    """Total variation between what a model and its converted one expect after `ids`, between 0 and 1."""
    expected = torch.softmax(model(torch.tensor([ids])).logits[0, -1].float(), -1)
    found = torch.softmax(decoder.logits(ids)[-1], -1)
    return float((expected - found).abs().sum() / 2)
