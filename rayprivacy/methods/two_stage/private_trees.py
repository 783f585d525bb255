"""Where the trees of private text come from: a column of the corpus, or a parser that learnt from public pairs alone.

    public pairs -> the parser                                                                     (public)
    corpus -> shards without trees -> the parser, record by record (`parser`) -> shards with trees        (private)

What a parser gets wrong is a matter of quality: a tree is a function of its own record, whatever it says.

Each part is a Ray task, which notes each tree in a private file as it is found; one that is killed goes on from there.
Records are noted by their place, so notes are kept apart by corpus: where somebody was deleted, all later records have
other places. Only part numbers travel, of all parts, also of empty ones. The new shards have digests of their own,
trees included: so with another parser the corpus is another input, with other charges, coins and noise.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from rayprivacy.core import errors, files, keys, private
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus import manifest
from rayprivacy.corpus.layout import HOLDOUT
from rayprivacy.methods.two_stage import plan, public_side
from rayprivacy.methods.two_stage.parser import Parser, kept_parser
from rayprivacy.methods.two_stage.recipe import TwoStageRecipe
from rayprivacy.models.asked import split_pairs
from rayprivacy.models.backbone import load_backbone
from rayprivacy.models.settings import ModelConfig, ParserConfig
from rayprivacy.runs.context import RunContext
from rayprivacy.structures.grammar import Grammar
from rayprivacy.work.mapping import on_numbers

_STEP = "reading trees off private text"
_SEAL = private.Seal(errors.ReleaseError, "nothing was charged or released, run again with --resume")
HOW = "A semantic parser, trained on public pairs alone. No private text was read, and nothing is claimed."
CHECKED = 16  # held-out public pairs that the parser reads, at most
Context = RunContext[TwoStageRecipe]


def shard_with_trees(context: Context) -> Mapping[str, Any]:
    """Shard the corpus, with the trees that a parser reads off it where the recipe has one; public figures of that."""
    config = context.recipe.parser
    if config is None:
        context.shard()
        return {}
    with context.stage(plan.PARSER):
        job, figures = _trained(context, config)
    context.shard(folder=job.source)
    with context.stage(plan.PARSING):
        found = begin(job, context.key)
        if found is None:
            for _ in context.track(parse_parts(job, context.plan.parts), plan.PARTS_PARSED):
                pass
            found = finish(job, context.key)
        context.corpus = found
    return {"parser": figures}


def _trained(context: Context, config: ParserConfig) -> tuple["ParsingJob", dict[str, float]]:
    """The parser, trained or found trained, and how it does on public pairs; the run is held to both."""
    run, recipe, base = context.run, context.recipe, context.base
    assert base is not None, "load_model comes before"
    pairs, tokens = public_side.parser_pairs(recipe), recipe.parses.max_tokens
    run.bind(parser_pairs=private.digest_json(pairs))
    told = context.counter(plan.PARSER_STEPS)
    folder = kept_parser(base, pairs, config, tokens, told, run.root / "public", recipe.release_id, HOW)
    loaded = ModelConfig(base=str(folder), dtype=recipe.model.dtype)
    backbone, grammar = load_backbone(loaded, released=True), public_side.grammar_of(recipe)
    run.bind(parser=backbone.digest)
    figures = files.read_json(folder.with_suffix(".json"))
    if "exact" not in figures:  # read off public text first: what is broken shows here, and not on private text
        parser = Parser(backbone, config.max_tokens, tokens, grammar)
        held = split_pairs(pairs)[0][:CHECKED]
        figures["exact"] = sum(parser.read(utterance) == tree for utterance, tree in held) / len(held)
        files.write_json(folder.with_suffix(".json"), figures)
    job = ParsingJob(
        model=loaded,
        digest=backbone.digest,
        text_tokens=config.max_tokens,
        tree_tokens=tokens,
        grammar=grammar,
        column=recipe.parses.column,
        unit=recipe.privacy.unit,
        source=run.private("unparsed"),
        out=context.shards,
        notes=run.private("parsing"),
        key_path=context.key_path,
    )
    return job, figures


@dataclass(frozen=True)
class ParsingJob:
    """What a task needs to know; holds no row of the corpus, and no secret.

    Model, digest, bounds and grammar are the parser's. Shards without trees lie in `source`, and those with trees, in
    a `column` of that name, in `out`; `notes` has what unfinished tasks have found.
    """

    model: ModelConfig
    digest: str
    text_tokens: int
    tree_tokens: int
    grammar: Grammar | None
    column: str
    unit: PrivacyUnit
    source: Path
    out: Path
    notes: Path
    key_path: Path

    @property
    def public(self) -> str:
        """Digest of all that a tree depends on besides its record."""
        rules = self.grammar.text if self.grammar else None
        return private.digest_json([self.digest, self.text_tokens, self.tree_tokens, rules, self.column])


@_SEAL.around(_STEP)
def begin(job: ParsingJob, key: keys.Key) -> manifest.ShardManifest | None:
    """The shards with trees if they are there and whole; otherwise none, and their folder is ready for them."""
    mark = _mark(job, key)
    if (job.out / manifest.MANIFEST).is_file() and (found := manifest.read_manifest(job.out)).config == mark:
        found.check_files(job.out)
        return found
    manifest.clear_parts(job.out) if job.out.is_dir() else files.private_directory(job.out)
    notes = _notes(job, key)
    for other in files.private_directory(job.notes).iterdir():
        if other != notes:
            shutil.rmtree(other)
    files.private_directory(notes)
    return None


def parse_parts(job: ParsingJob, parts: int) -> Iterator[int]:
    """Read the trees of all parts and of the held-out users on Ray; yields each part once, as it is finished."""
    yield from (part for part, _ in on_numbers(_parse_part, job, (*range(parts), HOLDOUT), _STEP, _SEAL))


@_SEAL.around(_STEP)
def finish(job: ParsingJob, key: keys.Key) -> manifest.ShardManifest:
    """The manifest of the shards with trees, written last."""
    found = manifest.read_manifest(job.source)
    parts, more = (tuple(_entry(job, key, entry) for entry in entries) for entries in (found.parts, found.more))
    holdout = _entry(job, key, found.holdout)
    parsed = replace(found, config=_mark(job, key), parts=parts, holdout=holdout, more=more)
    parsed.write(job.out)
    shutil.rmtree(job.notes)
    return parsed


@_SEAL.around(_STEP)
def _parse_part(job: ParsingJob, part: int) -> None:
    torch.set_num_threads(1)  # the order of floating-point sums must not depend on the machine's cores
    parser, key = _parser(job), keys.load_key(job.key_path)
    for number, rows in enumerate(manifest.part_tables(job.source, part)):
        notes = _notes(job, key) / f"{part}-{number}"
        trees = _noted(notes)
        for place, utterance in enumerate(rows["text"].to_pylist()):
            if place not in trees:
                trees[place] = parser(utterance)
                files.append_line(notes, json.dumps([place, trees[place]]))
        column = pa.array([trees[place] for place in range(len(rows))], pa.string())
        manifest.write_part(rows.append_column(job.column, column), part, key, job.out, job.unit, number)


@lru_cache(maxsize=1)
def _parser(job: ParsingJob) -> Parser:
    return Parser(load_backbone(job.model, released=True), job.text_tokens, job.tree_tokens, job.grammar)


def _noted(path: Path) -> dict[int, str]:
    """The trees that tasks which were killed had found, by the place of their record.

    Each line names its record, because a task that Ray has given up may still write beside the one that replaced it.
    What one of them did not finish is no line.
    """
    found: dict[int, str] = {}
    for line in path.read_text("utf-8").splitlines() if path.exists() else ():
        with suppress(ValueError, TypeError):
            place, tree = json.loads(line)
            found[place] = tree
    return found


def _entry(job: ParsingJob, key: keys.Key, entry: manifest.FileEntry) -> manifest.FileEntry:
    """The entry of a finished file: it is written once more, as the task wrote it, and says what it holds."""
    number = [path.name for path in manifest.part_paths(job.source, entry.part)].index(entry.file)
    rows = pq.read_table(job.out / entry.file, partitioning=None)
    return manifest.write_part(rows, entry.part, key, job.out, job.unit, number)


def _notes(job: ParsingJob, key: keys.Key) -> Path:
    return job.notes / _mark(job, key)[:16]


def _mark(job: ParsingJob, key: keys.Key) -> str:
    """Keyed digest of the shards, byte for byte, and of what reads trees off them.

    `config` is left out: it changes with the time stamp of a source file, and trees take hours to read.
    """
    found = replace(manifest.read_manifest(job.source), config="")
    return key.digest("parsed", private.digest_json(asdict(found)), job.public)
