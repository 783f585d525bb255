"""Write synthetic texts on Ray: sample from a saved model in many actors, into one Parquet file.

    prompts, in blocks -> sampling actors (Ray) -> parts, in order -> drop degenerate texts -> one Parquet file

Everything here is public: the model has paid for its privacy, and prompts hold control codes. What a block becomes
depends on the model, its prompts, the seed and the number of the block. So neither the number of actors nor a block
that is sampled again after a crash changes a byte. Threads would: with two of them a float32 product was measured to
differ in its last bits, and a coin of the sampler with it. Hence each actor has one thread unless told otherwise; use
more actors.

The driver holds a part of texts (see `parts`), a row group, and the blocks that wait for an earlier one: an actor that
is far ahead of the slowest one waits. The file appears whole or not at all. Parts that a killed run has finished are
read again, and not sampled again.
"""

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rayprivacy.core.artifacts import digest_json
from rayprivacy.core.counting import Told, nobody
from rayprivacy.core.errors import ConfigError
from rayprivacy.generation.engines import ONNX, require_engine
from rayprivacy.generation.fast import convert
from rayprivacy.generation.parts import Parts
from rayprivacy.generation.sampling_actors import METADATA, Prompts, sampled
from rayprivacy.generation.settings import EngineName, SamplingConfig
from rayprivacy.generation.structured import Structure
from rayprivacy.generation.text_writers import WritingTask, load_saved

ROW_GROUP = 8192


class Labels(Protocol):
    """The labels of synthetic texts, by the numbers of their prompts' cells; `Codes` are such."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the file behind the text."""

    def labels(self, cell: int) -> dict[str, str]:
        """The values of a cell, by column."""


@dataclass(frozen=True)
class Written:
    """What came of the prompts.

    Attributes:
        texts: rows of the file.
        degenerate: texts that were dropped, by reason (see `degenerate`, `structured`).
        source: the caller's name of the model and the prompts.
        draws: of structured texts, by kind (see `structured`).
    """

    texts: int
    degenerate: dict[str, int]
    source: str = ""
    draws: dict[str, int] = field(default_factory=dict)


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
    told: Told = nobody,
) -> Written:
    """Continue every prompt, and write what came after it as `out`: the column text, and one for each label.

    Ray must be started, and `model_dir` be on a file system that all nodes see. Rows are in the order of the prompts;
    the counts are in the file's metadata as well.

    Args:
        model_dir: a model as `save_model` leaves it.
        prompts: (cell, prompt); the prompt, e.g. `codes.text(cell)`, is context and no part of the text, unless
            it has `begun` with it.
        config: filters, seed and length; `texts` and `prompt_words` are not used.
        codes: control codes, or other labels: names the columns and the labels of each cell.
        out: the Parquet file.
        actors: processes that sample, each with a model of its own.
        threads: of each actor, and the CPUs it asks for; more than one may change texts (see above).
        engine: what samples.
        workspace: a folder that all nodes see, for what an engine makes of the model; by default that of `out`.
        source: names model and prompts; it is kept with the counts, so that a file of others is known again, and parts
            of a killed run are taken over. Without a name they are not.
        begun: whether each text begins with its prompt.
        structure: what is asked of the texts in place of not being degenerate; they are parse trees, say.
        names: of a structure that the prompts are written in; a text with one behind a bracket is dropped, since it
            goes on with the structure.
        told: told how many texts were sampled, with those that were dropped.

    Raises:
        ConfigError: there is no model in the folder, or the engine is not installed, or cannot convert the model.
        RayPrivacyError: sampling stopped; no file was written.
    """
    if not (model_dir / "config.json").is_file():
        raise ConfigError(f"the model is '{model_dir}', which holds no config.json: train or save the model first.")
    require_engine("generation.engine", engine)
    tally = _Tally(source)
    with _made_ready(engine, model_dir, workspace or out.parent) as ready, _whole_file(out, _schema(codes)) as writer:
        task = WritingTask(model_dir.absolute(), config, engine, threads, ready.absolute(), begun, structure, names)
        parts = Parts(out, source and digest_json([source, task.identity]), len(prompts))
        for group in _row_groups(tally.sound(part) for part in _all_parts(task, prompts, actors, parts, told)):
            writer.write_table(_labelled(group, codes))
        written = tally.total()
        writer.add_key_value_metadata({METADATA: json.dumps(vars(written), sort_keys=True).encode()})
    parts.remove()
    return written


def read_written(path: Path) -> Written:
    """The counts that a finished file carries."""
    return Written(**json.loads(pq.read_metadata(path).metadata[METADATA]))


def _all_parts(task: WritingTask, prompts: Prompts, actors: int, parts: Parts, told: Told) -> Iterator[pa.Table]:
    """Tables of cell, text and reason, part after part: those that are there are read, the others sampled."""
    there, done = parts.finished, 0
    blocks = [block for part in range(parts.count) if part not in there for block in parts.blocks(part)]
    told(done)
    fresh = sampled(task, prompts, actors, blocks)
    for part in range(parts.count):
        if part in there:
            table = parts.read(part)
        else:
            written = []
            for block in islice(fresh, len(parts.blocks(part))):
                written.append(block)
                told(done + sum(map(len, written)))
            table = _joined(written)
            parts.write(part, table)
        done += len(table)
        told(done)
        yield table


def _joined(blocks: Sequence[pa.Table]) -> pa.Table:
    """The rows of blocks, and the sums of their counts of draws."""
    draws: Counter[str] = Counter()
    for block in blocks:
        draws.update(json.loads(block.schema.metadata[METADATA]))
    return pa.concat_tables(blocks).replace_schema_metadata({METADATA: json.dumps(draws).encode()})


@contextmanager
def _made_ready(engine: EngineName, model_dir: Path, workspace: Path) -> Iterator[Path]:
    """The folder that actors read, made once for all of them: the model's own, or a converted one."""
    if engine != ONNX:
        yield model_dir
        return
    folder = _convert_saved(model_dir, workspace)
    yield folder
    shutil.rmtree(folder)


def _convert_saved(model_dir: Path, workspace: Path) -> Path:
    backbone = load_saved(model_dir)  # it goes when this returns: the driver keeps no model while actors sample
    return convert(backbone.model, backbone, workspace)


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
    """The same rows in tables of at least `ROW_GROUP`, but for the last one."""
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
