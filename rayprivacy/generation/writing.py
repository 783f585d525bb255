"""Write synthetic texts on Ray: sample from a saved model in many actors, into one Parquet file.

    prompts, in blocks -> sampling actors (Ray Data) -> in order -> drop degenerate texts -> one Parquet file

Everything here is public: the model has paid for its privacy, and prompts hold control codes. What a block becomes
depends on the model, its prompts, the seed and the number of the block. So neither the number of actors nor a block
that is sampled again after a crash changes a byte. Threads would: with two of them a float32 product was measured to
differ in its last bits, and a coin of the sampler with it. Hence each actor has one thread unless told otherwise; use
more actors.

The driver holds the prompts and one row group of texts, however many are written. The file appears whole or not at all.
"""

import importlib.util
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import ray.data
import torch
from transformers import AutoConfig

from rayprivacy.core.artifacts import digest_bytes
from rayprivacy.core.errors import ConfigError, RayPrivacyError
from rayprivacy.core.sealing import Seal
from rayprivacy.generation.codes import Codes
from rayprivacy.generation.decode import BATCH, continuations
from rayprivacy.generation.degenerate import is_degenerate
from rayprivacy.generation.settings import SamplingConfig
from rayprivacy.models.backbone import Backbone, load_backbone
from rayprivacy.models.settings import ModelConfig

ROW_GROUP = 8192
METADATA = b"rayprivacy.writing"
EngineName = Literal["transformers", "vllm"]
Continue = Callable[[list[str], SamplingConfig], list[str]]
_SEAL = Seal(RayPrivacyError, "no file was written, run again with --resume")
_STEP = "writing synthetic text"


@dataclass(frozen=True)
class Written:
    """What came of the prompts.

    Attributes:
        texts: rows of the file.
        degenerate: texts that were dropped, by reason (see `degenerate`).
        source: the caller's name of the model and the prompts.
    """

    texts: int
    degenerate: dict[str, int]
    source: str = ""


def write_samples(
    model_dir: Path,
    prompts: Sequence[tuple[int, str]],
    config: SamplingConfig,
    codes: Codes,
    out: Path,
    actors: int,
    *,
    threads: int = 1,
    engine: EngineName = "transformers",
    source: str = "",
) -> Written:
    """Continue every prompt, and write what came after it as `out`: the column text, and one for each label.

    Ray must be started, and `model_dir` be on a file system that all nodes see. Rows are in the order of the prompts;
    the counts are in the file's metadata as well.

    Args:
        model_dir: a model as `save_model` leaves it.
        prompts: (cell, prompt); the prompt, e.g. `codes.text(cell)`, is context and no part of the text.
        config: filters, seed and length; `texts` and `prompt_words` are not used.
        codes: names the columns and the labels of each cell.
        out: the Parquet file.
        actors: processes that sample, each with a model of its own.
        threads: of each actor, and the CPUs it asks for; more than one may change texts (see above).
        engine: what samples.
        source: names model and prompts; it is kept with the counts, so that a file of others is known again.

    Raises:
        ConfigError: there is no model in the folder, or the engine is not installed.
        RayPrivacyError: sampling stopped; no file was written.
    """
    if not (model_dir / "config.json").is_file():
        raise ConfigError(f"the model is '{model_dir}', which holds no config.json: train or save the model first.")
    if engine == "vllm":
        _need_vllm()
    tally = _Tally(source)
    with _whole_file(out, _schema(codes)) as writer:
        blocks = _sampled(_Task(model_dir.absolute(), config, engine, threads), prompts, actors)
        for group in _row_groups(tally.sound(block) for block in blocks):
            writer.write_table(_labelled(group, codes))
        written = tally.total()
        writer.add_key_value_metadata({METADATA: json.dumps(vars(written), sort_keys=True).encode()})
    return written


def read_written(path: Path) -> Written:
    """The counts that a finished file carries."""
    return Written(**json.loads(pq.read_metadata(path).metadata[METADATA]))


@dataclass(frozen=True)
class _Task:
    model_dir: Path
    config: SamplingConfig
    engine: EngineName
    threads: int

    def at(self, block: int) -> SamplingConfig:
        """The settings of one block. The generator keeps 32 bits of a seed, in which no two blocks of a run agree."""
        first = int(digest_bytes(f"writing {self.config.seed}".encode())[:8], 16)
        return self.config.model_copy(update={"seed": (first + block) % 2**32})


class _Sampler:
    """An actor that samples blocks of prompts."""

    def __init__(self, task: _Task) -> None:
        torch.set_num_threads(task.threads)
        self._task = task
        self._continue = ENGINES[task.engine](task.model_dir)

    def __call__(self, batch: pa.Table) -> pa.Table:
        rows: dict[str, list[Any]] = {"cell": [], "text": [], "reason": []}
        for row in batch.to_pylist():
            texts = self._continue(row["prompts"], self._task.at(row["block"]))
            rows["cell"] += row["cells"]
            rows["text"] += texts
            rows["reason"] += map(is_degenerate, texts)
        types = (pa.int64(), pa.large_string(), pa.string())
        return pa.table([pa.array(rows[name], kind) for name, kind in zip(rows, types, strict=True)], names=list(rows))


def _sampled(task: _Task, prompts: Sequence[tuple[int, str]], actors: int) -> Iterator[pa.Table]:
    """Tables of cell, text and reason, in the order of the prompts."""
    pieces = [prompts[at : at + BATCH] for at in range(0, len(prompts), BATCH)]
    if not pieces:
        return
    blocks = [
        {"block": number, "cells": [cell for cell, _ in piece], "prompts": [prompt for _, prompt in piece]}
        for number, piece in enumerate(pieces)
    ]
    with ray.data.DataContext.current(_context()):
        # One block of Ray for each of ours: whoever is free takes the next one.
        done = ray.data.from_items(blocks, override_num_blocks=len(blocks)).map_batches(
            _Sampler,
            fn_constructor_args=(task,),
            batch_size=1,
            batch_format="pyarrow",
            compute=ray.data.ActorPoolStrategy(size=min(actors, len(blocks))),
            num_cpus=task.threads,
            num_gpus=1 if task.engine == "vllm" else 0,
        )
    try:
        yield from done.iter_batches(batch_size=None, batch_format="pyarrow")
    except Exception as error:
        raise _SEAL.unwrap(_STEP, error) from error  # the cause may be told: nothing here is private


def _context() -> Any:
    context = ray.data.DataContext.get_current().copy()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.max_errored_blocks = 0
    context.execution_options.preserve_order = True
    return context


def _transformers(model_dir: Path) -> Continue:
    backbone = _load(model_dir)
    return lambda prompts, config: continuations(backbone.model, backbone, prompts, config)


def _vllm(model_dir: Path) -> Continue:
    """Sample with vLLM on one GPU for each actor. This was not run here: nobody had vLLM and its GPU at hand.

    Texts are other ones than with `transformers`, and may depend on the GPU and the version of vLLM.
    """
    _need_vllm()
    vllm: Any = importlib.import_module("vllm")  # an optional package, imported only where it is wanted
    backbone, model = _load(model_dir), vllm.LLM(model=str(model_dir))

    def continued(prompts: list[str], config: SamplingConfig) -> list[str]:
        asked = [{"prompt_token_ids": backbone.prefix(prompt)} for prompt in prompts]
        settings = [
            vllm.SamplingParams(
                temperature=config.temperature,
                top_k=config.top_k,
                top_p=config.top_p,
                max_tokens=config.max_tokens,
                seed=(config.seed * BATCH + place) % 2**63,
                stop_token_ids=[backbone.start, backbone.end],
            )
            for place in range(len(prompts))
        ]
        answers = model.generate(asked, settings, use_tqdm=False)
        return [backbone.text(list(answer.outputs[0].token_ids)) for answer in answers]

    return continued


ENGINES: dict[EngineName, Callable[[Path], Continue]] = {"transformers": _transformers, "vllm": _vllm}


def _need_vllm() -> None:
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError(
            "generation.engine is 'vllm', which is not installed: run pip install vllm, or use 'transformers'."
        )


def _load(model_dir: Path) -> Backbone:
    stored = AutoConfig.from_pretrained(model_dir).dtype
    dtype: Literal["bfloat16", "float32"] = "bfloat16" if stored == torch.bfloat16 else "float32"
    return load_backbone(ModelConfig(base=str(model_dir), dtype=dtype))


@dataclass
class _Tally:
    source: str
    texts: int = 0
    degenerate: Counter[str] = field(default_factory=Counter)

    def sound(self, block: pa.Table) -> pa.Table:
        """The rows worth keeping; all are counted."""
        self.degenerate.update(reason for reason in block["reason"].to_pylist() if reason)
        kept = block.filter(pc.is_null(block["reason"])).drop_columns(["reason"])
        self.texts += len(kept)
        return kept

    def total(self) -> Written:
        return Written(self.texts, dict(sorted(self.degenerate.items())), self.source)


def _row_groups(blocks: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in tables of at least `ROW_GROUP`, but for the last one."""
    held: list[pa.Table] = []
    for block in blocks:
        held.append(block)
        if sum(map(len, held)) >= ROW_GROUP:
            yield pa.concat_tables(held)
            held = []
    if held:
        yield pa.concat_tables(held)


def _schema(codes: Codes) -> pa.Schema:
    return pa.schema([("text", pa.large_string()), *((name, pa.string()) for name in codes.columns)])


def _labelled(rows: pa.Table, codes: Codes) -> pa.Table:
    cells = [codes.labels(cell) for cell in rows["cell"].to_pylist()]
    labels = [pa.array([values[name] for values in cells], pa.string()) for name in codes.columns]
    return pa.table([rows["text"], *labels], schema=_schema(codes))


@contextmanager
def _whole_file(out: Path, schema: pa.Schema) -> Iterator[pq.ParquetWriter]:
    """A writer to a scratch name beside `out`, which takes its place at the end, or is removed."""
    scratch = out.with_name(f".{out.name}.tmp")
    try:
        with scratch.open("wb") as file:
            with pq.ParquetWriter(file, schema, compression="zstd") as writer:
                yield writer
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(out)
    finally:
        scratch.unlink(missing_ok=True)
