"""Write synthetic texts on Ray: sample from a saved model in many actors, into one Parquet file.

    prompts, in blocks -> sampling actors (Ray) -> parts, in order -> drop degenerate texts -> one Parquet file

Everything here is public: the model has paid for its privacy, and prompts hold control codes. What a block becomes
depends on the model, its prompts, the seed and the number of the block. So neither the number of actors nor a block
that is sampled again after a crash changes a byte. Threads would: with two of them a float32 product was measured to
differ in its last bits, and a coin of the sampler with it. Hence each actor has one thread unless told otherwise; use
more actors.

Ray starts an actor that died again and repeats its block. What an actor is started with is a small value, never a
reference to an object: Ray cannot restart an actor whose arguments were lost with a node, and says so on the console.
The actors of Ray Data are started with references, hence these are actors of our own.

The driver holds a part of texts (see `parts`), a row group, and the blocks that wait for an earlier one: an actor that
is far ahead of the slowest one waits. The file appears whole or not at all. Parts that a killed run has finished are
read again, and not sampled again.
"""

import importlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import ray
import torch
from ray.exceptions import RayError
from transformers import AutoConfig

from rayprivacy.core.artifacts import digest_bytes, digest_json
from rayprivacy.core.counting import Told, nobody
from rayprivacy.core.errors import ConfigError, RayPrivacyError
from rayprivacy.core.sealing import Seal
from rayprivacy.generation.decode import Sampler, sample
from rayprivacy.generation.degenerate import holds_structure, is_degenerate
from rayprivacy.generation.engines import PRECISIONS, require_engine
from rayprivacy.generation.fast import convert, decoder_of
from rayprivacy.generation.grammars import Matcher
from rayprivacy.generation.parts import Parts
from rayprivacy.generation.settings import BATCH, EngineName, SamplingConfig
from rayprivacy.generation.structured import Continue, Structure, StructuredWriter
from rayprivacy.models.backbone import Backbone, Documents, load_backbone, load_documents
from rayprivacy.models.settings import ModelConfig

ROW_GROUP = 8192
AHEAD = 4  # blocks for each actor that may be finished before an earlier one is
METADATA = b"rayprivacy.writing"
STRUCTURE = "structure"
Prompts = Sequence[tuple[int, str]]
_SEAL = Seal(RayPrivacyError, "no file was written, run again with --resume")
_STEP = "writing synthetic text"


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
        begun: whether each text begins with its prompt; not for the engine `vllm`.
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
        task = _Task(model_dir.absolute(), config, engine, threads, ready.absolute(), begun, structure, names)
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


@dataclass(frozen=True)
class _Task:
    model_dir: Path
    config: SamplingConfig
    engine: EngineName
    threads: int
    ready: Path
    begun: bool = False
    structure: Structure | None = None
    names: frozenset[str] = frozenset()

    @property
    def identity(self) -> list[Any]:
        """What decides a text beside the model and the prompt, as JSON values."""
        how = [self.config.model_dump(mode="json"), self.engine, self.threads, self.begun, repr(self.structure)]
        return [*how, *sorted(self.names)]

    def at(self, block: int) -> SamplingConfig:
        """The settings of one block. A sampler uses 32 bits of a seed, in which no two blocks of a run agree."""
        first = int(digest_bytes(f"writing {self.config.seed}".encode())[:8], 16)
        return self.config.model_copy(update={"seed": (first + block) % 2**32})


class _Sampler:
    """An actor that samples blocks of prompts."""

    def __init__(self, task: _Task) -> None:
        torch.set_num_threads(task.threads)
        self._task = task
        freely = ENGINES[task.engine](task)
        self._write = _structured(task, task.structure, freely) if task.structure else _Unstructured(freely, task.names)

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


@dataclass
class _Unstructured:
    """Texts as the model writes them; degenerate ones are dropped, and those that hold names of a structure."""

    freely: Continue
    names: frozenset[str]
    counts: Counter[str] = field(default_factory=Counter)

    def __call__(self, prompts: list[str], config: SamplingConfig) -> list[tuple[str, str | None]]:
        return [(text, self._dropped(text)) for text in self.freely(prompts, config)]

    def _dropped(self, text: str) -> str | None:
        return is_degenerate(text) or (STRUCTURE if holds_structure(text, self.names) else None)


def _all_parts(task: _Task, prompts: Prompts, actors: int, parts: Parts, told: Told) -> Iterator[pa.Table]:
    """Tables of cell, text and reason, part after part: those that are there are read, the others sampled."""
    there, done = parts.finished, 0
    blocks = [block for part in range(parts.count) if part not in there for block in parts.blocks(part)]
    told(done)
    fresh = _sampled(task, prompts, actors, blocks)
    for part in range(parts.count):
        if part in there:
            table = parts.read(part)
        else:
            sampled = []
            for block in islice(fresh, len(parts.blocks(part))):
                sampled.append(block)
                told(done + sum(map(len, sampled)))
            table = _joined(sampled)
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


def _sampled(task: _Task, prompts: Prompts, actors: int, blocks: Sequence[int]) -> Iterator[pa.Table]:
    """Tables of cell, text and reason of some blocks of prompts, in their order."""
    samplers = [_start(task) for _ in range(min(actors, len(blocks)))]
    try:
        yield from _in_order(_finished(samplers, prompts, blocks))
    except RayError as error:
        raise _SEAL.unwrap(_STEP, error) from error  # the cause may be told: nothing here is private
    finally:
        for sampler in samplers:
            ray.kill(sampler)


def _start(task: _Task) -> Any:
    sampler = ray.remote(_Sampler).options(
        num_cpus=task.threads,
        num_gpus=1 if task.engine == "vllm" else 0,
        scheduling_strategy="SPREAD",
        max_restarts=-1,
        max_task_retries=-1,
    )
    return sampler.remote(task)


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
    """Tables in the order of their numbers, which are 0, 1, 2 and so on."""
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
    if engine not in PRECISIONS:
        yield model_dir
        return
    folder = _convert_saved(engine, model_dir, workspace)
    yield folder
    shutil.rmtree(folder)


def _convert_saved(engine: EngineName, model_dir: Path, workspace: Path) -> Path:
    backbone = _load(model_dir)  # it goes when this returns: the driver keeps no model while actors sample
    return convert(engine, backbone.model, backbone, workspace)


def _structured(task: _Task, structure: Structure, freely: Continue) -> StructuredWriter:
    vocabulary = int(AutoConfig.from_pretrained(task.model_dir).vocab_size)
    documents = load_documents(task.model_dir)
    return StructuredWriter(structure, documents, vocabulary, freely, partial(_under_masks, task))


def _under_masks(task: _Task, matcher: Matcher) -> Continue:
    backbone = _loaded(task.model_dir)
    sampler = partial(sample, backbone.model, backbone, masks=matcher.masks)
    return _texts(backbone, sampler, task.begun)


def _transformers(task: _Task) -> Continue:
    backbone = _loaded(task.model_dir)
    return _texts(backbone, partial(sample, backbone.model, backbone), task.begun)


def _converted(task: _Task) -> Continue:
    documents = load_documents(task.model_dir)
    return _texts(documents, decoder_of(task.engine, task.ready, documents, task.threads).sample, task.begun)


def _texts(documents: Documents, sampler: Sampler, begun: bool) -> Continue:
    """What a sampler writes after each prompt, as text; with the prompt if the text has begun with it."""

    def continued(prompts: list[str], config: SamplingConfig) -> list[str]:
        written = zip(prompts, sampler(prompts, config), strict=True)
        return [documents.text(ids) if begun else documents.text_after(prompt, ids) for prompt, ids in written]

    return continued


def _vllm(task: _Task) -> Continue:
    """Sample with vLLM on one GPU for each actor. This was not run here: nobody had vLLM and its GPU at hand.

    Texts are other ones than with `transformers`, and may depend on the GPU and the version of vLLM.
    """
    vllm: Any = importlib.import_module("vllm")  # an optional package, imported only where it is wanted
    documents, model = load_documents(task.model_dir), vllm.LLM(model=str(task.model_dir))

    def continued(prompts: list[str], config: SamplingConfig) -> list[str]:
        asked = [{"prompt_token_ids": documents.prefix(prompt)} for prompt in prompts]
        settings = [
            vllm.SamplingParams(
                temperature=config.temperature,
                top_k=config.top_k,
                top_p=config.top_p,
                max_tokens=config.max_tokens,
                seed=(config.seed * BATCH + place) % 2**63,
                stop_token_ids=[documents.start, documents.end],
            )
            for place in range(len(prompts))
        ]
        answers = model.generate(asked, settings, use_tqdm=False)
        return [documents.text(list(answer.outputs[0].token_ids)) for answer in answers]

    return continued


ENGINES: dict[EngineName, Callable[[_Task], Continue]] = {
    "transformers": _transformers,
    "ctranslate2": _converted,
    "ctranslate2_float32": _converted,
    "onnxruntime_float32": _converted,
    "vllm": _vllm,
}


@lru_cache(maxsize=1)
def _loaded(model_dir: Path) -> Backbone:
    """The model of an actor, which may sample from it both freely and under masks."""
    return _load(model_dir)


def _load(model_dir: Path) -> Backbone:
    stored = AutoConfig.from_pretrained(model_dir).dtype
    dtype: Literal["bfloat16", "float32"] = "bfloat16" if stored == torch.bfloat16 else "float32"
    return load_backbone(ModelConfig(base=str(model_dir), dtype=dtype))


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
