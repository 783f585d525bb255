"""Write synthetic texts on Ray: sample from a saved model in many actors, into one Parquet file.

    prompts, in blocks -> sampling actors (Ray) -> parts, in order -> drop degenerate texts -> one Parquet file

Everything here is public: the model has paid for its privacy, and prompts hold control codes. What a block becomes
depends on the model, its prompts, the seed and the number of the block. So neither the number of actors nor a block
that is sampled again after a crash changes a byte. Threads would: with two of them a float32 product was measured to
differ in its last bits, and a coin of the sampler with it. Hence each actor has one thread unless told otherwise; use
more actors.

The driver holds a part of texts, a row group, and the blocks that wait for an earlier one: an actor that is far ahead
of the slowest one waits. The file appears whole or not at all. Parts that a killed run has finished are read again, and
not sampled again.
"""

import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import ray
import torch
from ray.exceptions import RayError

from rayprivacy.core.console import Told, nobody
from rayprivacy.core.errors import ConfigError, RayPrivacyError
from rayprivacy.core.files import SHARED, write_atomic
from rayprivacy.core.private import Seal, digest_json
from rayprivacy.generation.fast import convert
from rayprivacy.generation.settings import BATCH, ONNX, EngineName, SamplingConfig, require_engine
from rayprivacy.generation.text_writers import Structure, WritingTask, load_saved, writer_of

PART_BLOCKS = 64
AHEAD = 4  # blocks for each actor that may be finished before an earlier one is
ROW_GROUP = 8192
METADATA = b"rayprivacy.writing"
Prompts = Sequence[tuple[int, str]]
_SEAL = Seal(RayPrivacyError, "no file was written, run again with --resume")


class Labels(Protocol):
    """The labels of synthetic texts, by the numbers of their prompts' cells; `Codes` are such."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the file behind the text."""

    def labels(self, cell: int) -> dict[str, str]:
        """The values of a cell, by column."""


@dataclass(frozen=True)
class Written:
    """What came of the prompts; reasons and kinds are those of `text_writers`."""

    texts: int  # rows of the file
    degenerate: dict[str, int]  # texts that were dropped, by reason
    source: str = ""  # the caller's name of the model and the prompts
    draws: dict[str, int] = field(default_factory=dict)  # of structured texts, by kind


def write_samples(
    model_dir: Path,
    prompts: Prompts,
    config: SamplingConfig,
    codes: Labels,
    out: Path,
    actors: int,
    *,
    threads: int = 1,
    engine: EngineName = "transformers",
    workspace: Path | None = None,
    source: str = "",
    begun: bool = False,
    structure: Structure | None = None,
    names: frozenset[str] = frozenset(),
    progress: Told = nobody,
) -> Written:
    """Continue every prompt, and write what came after it as `out`: the column text, and one for each label.

    Ray must be started, and all nodes see the folder of the model, which `save_model` left. Rows are in the order of
    the prompts; the counts are in the file's metadata as well.

    Prompts are (cell, prompt), context and no part of the text unless it has `begun` with it; `codes` labels cells. Of
    `config` neither `texts` nor `prompt_words` is used. More than one of an actor's `threads` may change texts. All
    nodes see the `workspace`, by default that of `out`, where an engine converts the model. By `source`, the name of
    model and prompts, a file of others is known again, and parts of a killed run are taken over. Texts need a
    `structure` in place of not being degenerate; one with one of the `names` of its prompt's structure behind a
    bracket is dropped. `progress` has how many texts were sampled, dropped ones included.
    """
    if not (model_dir / "config.json").is_file():
        raise ConfigError(f"the model is '{model_dir}', which holds no config.json: train or save the model first.")
    require_engine("generation.engine", engine)
    tally = _Tally(source)
    with _made_ready(engine, model_dir, workspace or out.parent) as ready, _whole_file(out, _schema(codes)) as writer:
        task = WritingTask(model_dir.absolute(), config, engine, threads, ready.absolute(), begun, structure, names)
        parts = Parts(out, source and digest_json([source, task.identity]), len(prompts))
        for group in _row_groups(tally.sound(part) for part in _all_parts(task, prompts, actors, parts, progress)):
            writer.write_table(_labelled(group, codes))
        written = tally.total()
        writer.add_key_value_metadata({METADATA: json.dumps(vars(written), sort_keys=True).encode()})
    parts.remove()
    return written


def read_written(path: Path) -> Written:
    """The counts that a finished file carries."""
    return Written(**json.loads(pq.read_metadata(path).metadata[METADATA]))


class Parts:
    """The `count` parts of one file `out`: a run that is killed goes on behind the last part it finished.

    A part is a Parquet file of the texts of PART_BLOCKS blocks of prompts, the dropped ones included, with counts.
    Parts lie in a hidden folder beside the file, which is named by `source`, the digest of what decides the texts;
    folders of other texts for the same file are removed. Without a source no part outlives its run.
    """

    def __init__(self, out: Path, source: str, prompts: int) -> None:
        self._folder = out.with_name(f".{out.name}.{source[:32]}.parts")
        self._blocks = -(-prompts // BATCH)
        self.count = -(-self._blocks // PART_BLOCKS)
        for other in out.parent.glob(f".{out.name}.*.parts"):
            if other != self._folder or not source:
                shutil.rmtree(other)

    @property
    def finished(self) -> set[int]:
        """The parts that are there."""
        names = (re.fullmatch(r"(\d+)\.parquet", path.name) for path in self._folder.glob("*.parquet"))
        return {int(name[1]) for name in names if name}

    def blocks(self, part: int) -> range:
        """The blocks of prompts of one part."""
        return range(self._blocks)[part * PART_BLOCKS : (part + 1) * PART_BLOCKS]

    def write(self, part: int, texts: pa.Table) -> None:
        """Keep a part, whole or not at all."""
        self._folder.mkdir(exist_ok=True)
        sink = pa.BufferOutputStream()
        pq.write_table(texts, sink, compression="zstd")
        write_atomic(self._path(part), sink.getvalue(), SHARED)

    def read(self, part: int) -> pa.Table:
        """A part as it was written, with the metadata of its schema."""
        return pq.read_table(self._path(part), partitioning=None)

    def remove(self) -> None:
        """Delete all parts, once the file is there."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, part: int) -> Path:
        return self._folder / f"{part:06d}.parquet"


def _all_parts(task: WritingTask, prompts: Prompts, actors: int, parts: Parts, progress: Told) -> Iterator[pa.Table]:
    """Tables of cell, text and reason, part after part: those that are there are read, the others sampled."""
    there, done = parts.finished, 0
    blocks = [block for part in range(parts.count) if part not in there for block in parts.blocks(part)]
    progress(done)
    fresh = sampled(task, prompts, actors, blocks)
    for part in range(parts.count):
        if part in there:
            table = parts.read(part)
        else:
            written = []
            for block in islice(fresh, len(parts.blocks(part))):
                written.append(block)
                progress(done + sum(map(len, written)))
            table = _joined(written)
            parts.write(part, table)
        done += len(table)
        progress(done)
        yield table


def _joined(blocks: Sequence[pa.Table]) -> pa.Table:
    draws: Counter[str] = Counter()
    for block in blocks:
        draws.update(json.loads(block.schema.metadata[METADATA]))
    return pa.concat_tables(blocks).replace_schema_metadata({METADATA: json.dumps(draws).encode()})


class SamplingActor:
    """An actor that samples blocks of prompts from a saved model.

    Ray starts an actor that died again and repeats its block. What it is started with is a small value, never a
    reference to an object: Ray cannot restart an actor whose arguments were lost with a node. The actors of Ray Data
    are started with references, hence these are actors of our own.
    """

    def __init__(self, task: WritingTask) -> None:
        torch.set_num_threads(task.threads)
        self._task = task
        self._write = writer_of(task)

    def ready(self) -> None:
        """Answer, to say that the model is loaded."""

    def sample(self, number: int, block: Prompts) -> tuple[int, pa.Table]:
        """The number of the block, and a table of cell, text and reason, with the counts of draws."""
        self._write.counts.clear()
        written = self._write([prompt for _, prompt in block], self._task.at(number))
        columns = {
            "cell": pa.array([cell for cell, _ in block], pa.int64()),
            "text": pa.array([text for text, _ in written], pa.large_string()),
            "reason": pa.array([reason for _, reason in written], pa.string()),
        }
        return number, pa.table(columns, metadata={METADATA: json.dumps(self._write.counts).encode()})


def sampled(task: WritingTask, prompts: Prompts, actors: int, blocks: Sequence[int]) -> Iterator[pa.Table]:
    """Tables of cell, text and reason of some blocks of prompts, in their order."""
    actor: Any = ray.remote(SamplingActor).options(
        num_cpus=task.threads, scheduling_strategy="SPREAD", max_restarts=-1, max_task_retries=-1
    )
    samplers = [actor.remote(task) for _ in range(min(actors, len(blocks)))]
    try:
        yield from _in_order(_finished(samplers, prompts, blocks))
    except RayError as error:
        raise _SEAL.unwrap("writing synthetic text", error) from error  # the cause may be told: nothing here is private
    finally:
        for sampler in samplers:
            ray.kill(sampler)


def _finished(samplers: Sequence[Any], prompts: Prompts, blocks: Sequence[int]) -> Iterator[tuple[int, pa.Table]]:
    """Every block by its place among `blocks`, as it is finished; an actor gets one block at a time.

    An actor gets none before it has started, so that one that the cluster has no room for yet delays no block; and none
    that is far ahead of the oldest one that is out, so that few blocks wait for it.
    """
    out: dict[Any, int] = {}  # calls, and the place of the block
    actor_of = {sampler.ready.remote(): sampler for sampler in samplers}
    idle: list[Any] = []
    given, missing = 0, len(blocks)
    while missing:
        call = ray.wait(list(actor_of), num_returns=1)[0][0]
        idle.append(actor_of.pop(call))
        answer = ray.get(call)
        place = out.pop(call, None)
        while idle and given < len(blocks) and given - min(out.values(), default=given) < AHEAD * len(samplers):
            sampler, block = idle.pop(), blocks[given]
            own = sampler.sample.remote(block, prompts[block * BATCH : (block + 1) * BATCH])
            actor_of[own], out[own] = sampler, given
            given += 1
        if place is not None:
            missing -= 1
            yield place, answer[1]


def _in_order(finished: Iterable[tuple[int, pa.Table]]) -> Iterator[pa.Table]:
    held: dict[int, pa.Table] = {}
    following = 0
    for number, table in finished:
        held[number] = table
        while following in held:
            yield held.pop(following)
            following += 1


@contextmanager
def _made_ready(engine: EngineName, model_dir: Path, workspace: Path) -> Iterator[Path]:
    """The folder that actors read, made once for all of them: the model's own, or a converted one."""
    if engine != ONNX:
        yield model_dir
        return
    backbone = load_saved(model_dir)
    folder = convert(backbone.model, backbone, workspace)
    del backbone  # the driver keeps no model while actors sample
    yield folder
    shutil.rmtree(folder)


@dataclass
class _Tally:
    source: str
    texts: int = 0
    degenerate: Counter[str] = field(default_factory=Counter)
    draws: Counter[str] = field(default_factory=Counter)

    def sound(self, block: pa.Table) -> pa.Table:
        """The rows worth keeping; all are counted."""
        self.draws.update(json.loads(block.schema.metadata[METADATA]))
        self.degenerate.update(reason for reason in block["reason"].to_pylist() if reason)
        kept = block.filter(pc.is_null(block["reason"])).drop_columns(["reason"]).replace_schema_metadata()
        self.texts += len(kept)
        return kept

    def total(self) -> Written:
        return Written(self.texts, dict(sorted(self.degenerate.items())), self.source, dict(sorted(self.draws.items())))


def _row_groups(blocks: Iterator[pa.Table]) -> Iterator[pa.Table]:
    held: list[pa.Table] = []
    for block in blocks:
        held.append(block)
        if sum(map(len, held)) >= ROW_GROUP:
            yield pa.concat_tables(held)
            held = []
    if held:
        yield pa.concat_tables(held)


def _schema(codes: Labels) -> pa.Schema:
    return pa.schema([("text", pa.large_string()), *((name, pa.string()) for name in codes.columns)])


def _labelled(rows: pa.Table, codes: Labels) -> pa.Table:
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
