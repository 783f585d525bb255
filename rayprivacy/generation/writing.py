"""Write synthetic texts on Ray: sample from a saved model in many actors, into one Parquet file.

    prompts, in blocks -> sampling actors (Ray Data) -> finished blocks -> in order, without degenerate texts
                       -> one Parquet file

Everything here is public: the model has paid for its privacy, and prompts hold control codes. What a block becomes
depends on the model, its prompts, the seed and the number of the block. So neither the number of actors nor a block
that is sampled again after a crash changes a byte. Threads would: with two of them a float32 product was measured to
differ in its last bits, and a coin of the sampler with it. Hence each actor has one thread unless told otherwise; use
more actors.

The driver keeps every block in a file as it is finished, in any order, and holds a row group of texts at a time. The
file appears whole or not at all. Blocks that a killed run has finished are not sampled again.
"""

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

from rayprivacy.core.console import Told, nobody
from rayprivacy.core.errors import ConfigError, RayPrivacyError
from rayprivacy.core.files import SHARED, write_atomic
from rayprivacy.core.private import Seal, digest_json
from rayprivacy.generation.fast import convert
from rayprivacy.generation.settings import BATCH, ONNX, EngineName, SamplingConfig, require_engine
from rayprivacy.generation.text_writers import Structure, WritingTask, load_saved, writer_of
from rayprivacy.models.quiet import trim_memory
from rayprivacy.work.mapping import in_actors

ROW_GROUP = 8192
METADATA = b"rayprivacy.writing"
Prompts = Sequence[tuple[int, str]]
Ready = Callable[[], Path]
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
    whole: str = "",
    ready: Ready | None = None,
    progress: Told = nobody,
) -> Written:
    """Continue every prompt, and write what came after it as `out`: the column text, and one for each label.

    Ray must be started, and all nodes see the folder of the model, which `save_model` left. Rows are in the order of
    the prompts; the counts are in the file's metadata as well.

    Prompts are (cell, prompt), context and no part of the text unless it has `begun` with its last line; `codes` labels
    cells. Of `config` neither `texts` nor `prompt_words` is used. More than one of an actor's `threads` may change
    texts. All nodes see the `workspace`, by default that of `out`, where an engine converts the model. By `source`, the
    name of model and prompts, a file of others is known again, and blocks of a killed run are taken over. Texts need a
    `structure` in place of not being degenerate; one with one of the `names` of its prompt's structure behind a
    bracket is dropped. A text that ends inside of what is `whole` ends in front of it. Several files of one model share
    what is `ready` (`made_ready`). `progress` has how many texts were sampled, dropped ones included.
    """
    if not (model_dir / "config.json").is_file():
        raise ConfigError(f"the model is '{model_dir}', which holds no config.json: train or save the model first.")
    require_engine("generation.engine", engine)
    tally = _Tally(source)
    own = made_ready(engine, model_dir, workspace or out.parent)
    with nullcontext(ready) if ready else own as folder:
        task = WritingTask(
            model_dir.absolute(), config, engine, threads, folder().absolute(), begun, structure, names, whole
        )
        blocks = Blocks(out, task, prompts, source)
        sample_blocks(task, blocks, actors, progress)
    with _whole_file(out, _schema(codes)) as writer:
        for group in _row_groups(tally.sound(block) for block in blocks.tables()):
            writer.write_table(_labelled(group, codes))
        written = tally.total()
        writer.add_key_value_metadata({METADATA: json.dumps(vars(written), sort_keys=True).encode()})
    blocks.remove()
    return written


def read_written(path: Path) -> Written:
    """The counts that a finished file carries."""
    return Written(**json.loads(pq.read_metadata(path).metadata[METADATA]))


class Blocks:
    """The blocks of prompts of one file `out`, and the texts of those that are finished, the dropped ones included.

    A finished block is a Parquet file in a hidden folder beside `out`. Its name is the digest of what decides it, so
    that a run goes on behind a killed one. Without a source no block outlives its run.
    """

    def __init__(self, out: Path, task: WritingTask, prompts: Prompts, source: str) -> None:
        self._prompts, self.texts = prompts, len(prompts)
        self._folder = out.with_name(f".{out.name}.blocks")
        blocks = range(-(-len(prompts) // BATCH))
        self._paths = [self._folder / self._name(source, task, block) for block in blocks]
        for other in {*self._folder.glob("*")} - ({*self._paths} if source else set()):
            other.unlink()

    def _name(self, source: str, task: WritingTask, block: int) -> str:
        return f"{digest_json([source, task.identity, block, self.prompts(block)])[:32]}.parquet"

    def prompts(self, block: int) -> Prompts:
        """The prompts of a block."""
        return [*self._prompts[block * BATCH : (block + 1) * BATCH]]

    def left(self) -> list[int]:
        """The blocks that are not finished."""
        finished = {*self._folder.glob("*.parquet")}
        return [block for block, path in enumerate(self._paths) if path not in finished]

    def write(self, block: int, texts: pa.Table) -> None:
        """Keep a finished block, whole or not at all."""
        self._folder.mkdir(exist_ok=True)
        sink = pa.BufferOutputStream()
        pq.write_table(texts, sink, compression="zstd")
        write_atomic(self._paths[block], sink.getvalue(), SHARED)

    def tables(self) -> Iterator[pa.Table]:
        """All blocks in their order, each as it was written, with the metadata of its schema."""
        return (pq.read_table(path, partitioning=None) for path in self._paths)

    def remove(self) -> None:
        """Delete all blocks, once the file is there."""
        shutil.rmtree(self._folder, ignore_errors=True)


def sample_blocks(task: WritingTask, blocks: Blocks, actors: int, progress: Told = nobody) -> None:
    """Sample the blocks that are not finished."""
    left = blocks.left()
    asked = ((block, blocks.prompts(block)) for block in left)
    done = blocks.texts - sum(len(blocks.prompts(block)) for block in left)
    progress(done)
    for block, texts in in_actors(Sampler, task, asked, "writing synthetic text", _SEAL, actors, task.threads):
        blocks.write(block, texts)
        done += len(texts)
        progress(done)


class Sampler:
    """What samples blocks of prompts in an actor, from a saved model."""

    def __init__(self, task: WritingTask) -> None:
        torch.set_num_threads(task.threads)
        self._task = task
        self._write = writer_of(task)

    def __call__(self, number: int, block: Prompts) -> pa.Table:
        """A table of cell, text and reason, with the counts of draws."""
        self._write.counts.clear()
        written = self._write([prompt for _, prompt in block], self._task.at(number))
        trim_memory()  # caches differ in shape by block: in forty blocks an actor came to hold three times as much
        columns = {
            "cell": pa.array([cell for cell, _ in block], pa.int64()),
            "text": pa.array([text for text, _ in written], pa.large_string()),
            "reason": pa.array([reason for _, reason in written], pa.string()),
        }
        return pa.table(columns, metadata={METADATA: json.dumps(self._write.counts).encode()})


@contextmanager
def made_ready(engine: EngineName, model_dir: Path, workspace: Path) -> Iterator[Ready]:
    """What names the folder that actors read: the model's own, or one in which it is converted when it is first asked.

    All actors and all files that are written meanwhile share it. It is deleted at the end, unless something fails.
    """

    @cache
    def converted() -> Path:
        backbone = load_saved(model_dir)  # which the driver does not keep while actors sample
        return convert(backbone.model, backbone, workspace)

    yield converted if engine == ONNX else lambda: model_dir
    if converted.cache_info().currsize:
        shutil.rmtree(converted())


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
