"""The stages that ask questions about text which is released or public: texts, questions, the set with its formats.

    a public source -> texts, a row group for a few documents -> actors, a row group at a time -> parts, in order
                    -> questions.parquet -> SQuAD, BEIR, ragas, pairs

What comes of a row group depends on it, the settings and the public seed: neither the number of actors nor a block
that is asked again after a crash changes a byte. Parts lie in a hidden folder, each named by what decides it, until the
set is whole; `stages.json` then has counts, and says that it is.
"""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from rayprivacy.core.errors import ConfigError, RayPrivacyError
from rayprivacy.core.files import (
    OWNER_ONLY,
    SHARED,
    Json,
    made_folder,
    private_directory,
    read_json,
    write_atomic,
    write_json,
)
from rayprivacy.core.private import Seal, digest_file, digest_json
from rayprivacy.core.uris import shown
from rayprivacy.corpus.public import public_table
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.corpus.sources import check_source
from rayprivacy.questions.asking import Asker, Asking
from rayprivacy.questions.settings import QuestionsConfig
from rayprivacy.questions.table import finished, write_formats
from rayprivacy.questions.texts import Texts, write_texts
from rayprivacy.runs.checks import require_no_run
from rayprivacy.runs.directory import alone
from rayprivacy.runs.meter import Meter
from rayprivacy.runs.recipe import LOCAL
from rayprivacy.runs.session import ray_session
from rayprivacy.work.mapping import in_actors

QUESTIONS, STAGES = "questions.parquet", "stages.json"
PUBLIC_ORIGIN = "made of text declared public; no privacy is claimed"
_WORK, _TEXTS = ".work", "texts.parquet"
_OPTIONS = {"source": "--public", "text": "--text", "labels": "--document"}
_SEAL = Seal(RayPrivacyError, "run again with --resume")


@dataclass(frozen=True)
class Folder:
    """Where a question set is made."""

    root: Path
    console: Console
    seconds: dict[str, float] = field(default_factory=dict)

    def work(self, name: str) -> Path:
        """A file that is there until the set is whole."""
        return self.root / _WORK / name

    def begin(self, inputs: Json, resume: bool) -> bool:
        """Hold the folder to what the set is made of; returns whether the set is whole already."""
        stages = self.root / STAGES
        if not stages.exists():
            if any(self.root.iterdir()):
                raise ConfigError(f"--out is {self.root}, which holds other files: name a new folder.")
            write_json(stages, {"inputs": inputs}, SHARED)
        elif not resume:
            raise ConfigError(
                f"{self.root} holds questions already: add --resume to finish them, or choose another --out."
            )
        known = read_json(stages)
        if known["inputs"] != inputs:
            raise ConfigError(
                f"{self.root} holds questions about another text, or by other settings: choose another --out."
            )
        return "counts" in known

    @cached_property
    def meter(self) -> Meter:
        """Says how far the stage that goes on has come."""
        return Meter(self.console, lambda stage, figures: None)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Show and time a stage."""
        began = time.perf_counter()
        with self.meter.stage(name):
            yield
        self.seconds[name] = round(time.perf_counter() - began, 3)
        self.console.print(f"  {name:<34}{self.seconds[name]:7.1f} s", highlight=False)


def public_source(source: str, text: str, document: str | None) -> CorpusConfig:
    """Text that its owner declares public, and the column that says which document a row is of."""
    if document == text:
        raise ConfigError(f"--document is '{document}', which is --text too: name another column, or leave it out.")
    labels = [document] if document is not None else []
    return CorpusConfig.parse({"source": source, "text": text, "user": None, "labels": labels})


def ask_public(
    corpus: CorpusConfig, settings: QuestionsConfig, root: Path, *, actors: int, resume: bool, console: Console
) -> Json:
    """Ask about public text, and write what comes of it; returns the content of `stages.json`."""
    settings = _settled(root, settings)
    with _named():
        require_no_run(corpus)
        stamp = check_source(corpus)
    table = public_table(corpus, _OPTIONS)
    if table["text"].null_count == len(table):
        raise ConfigError(f"--public has no text in the column '{corpus.text}': name another with --text.")
    inputs = {
        "source": shown(corpus.source),
        "text": corpus.text,
        "document": next(iter(corpus.labels), None),
        "stamp": stamp,
        "questions": settings.model_dump(mode="json"),
    }
    with alone(made_folder(root, "--out")):
        folder = Folder(root, console)
        if folder.begin(inputs, resume):
            shutil.rmtree(root / _WORK, ignore_errors=True)
            return dict(read_json(root / STAGES))
        private_directory(root / _WORK)
        with folder.stage("texts"):
            write_texts(table, folder.work(_TEXTS))
        texts = Texts(folder.work(_TEXTS).absolute(), settings.passages)
        asking = Asking(texts, settings, elsewhere=bool(corpus.labels))
        with folder.stage("questions"), ray_session(LOCAL):
            asked = pa.concat_tables([pq.read_table(part) for part in ask(asking, folder, actors)])
        with folder.stage("question set"):
            counts = write_set(asking, asked, root)
        found = {"inputs": inputs, "origin": PUBLIC_ORIGIN, "counts": counts, "seconds": folder.seconds}
        write_json(root / STAGES, found, SHARED)
        shutil.rmtree(root / _WORK)
        return found


def _settled(root: Path, settings: QuestionsConfig) -> QuestionsConfig:
    """Settings that leave nothing to the machine: as a set that was begun in the folder has them, or decided now."""
    stages = root / STAGES
    if settings.entities == "auto" and stages.is_file():
        settings = settings.model_copy(update={"entities": read_json(stages)["inputs"]["questions"]["entities"]})
    return settings.decided()


@contextmanager
def _named() -> Iterator[None]:
    """Errors of the corpus layer name keys of a recipe: here they name the options of the command."""
    try:
        yield
    except RayPrivacyError as error:
        message = str(error)
    else:
        return
    for key, option in _OPTIONS.items():
        message = message.replace(f"corpus.{key}", option)
    raise ConfigError(message)


def ask(asking: Asking, folder: Folder, actors: int) -> list[Path]:
    """Ask about every row group whose part is not there yet; returns the parts in their order."""
    groups = asking.texts.groups
    decided: list[Any] = [digest_file(asking.texts.path), asking.settings.model_dump(mode="json"), asking.elsewhere]
    parts = [folder.work(f"{digest_json([*decided, group])[:32]}.parquet") for group in range(groups)]
    left = [(group, group) for group, part in enumerate(parts) if not part.exists()]
    done = groups - len(left)
    folder.meter.count("blocks", done, groups)
    for group, table in in_actors(Asker, asking, left, "asking questions", _SEAL, actors):
        _write_table(table, parts[group])
        done += 1
        folder.meter.count("blocks", done, groups)
    return parts


def write_set(asking: Asking, asked: pa.Table, root: Path) -> Json:
    """Write the questions and their formats; returns counts."""
    documents = [each for group in range(asking.texts.groups) for each in asking.texts.documents(group)]
    passages = [passage for each in documents for passage in each.passages]
    texts = sum(len(each.rows) for each in documents)
    if not len(asked):
        other = ", or leave out --document, so that a sentence is asked of its own text" if asking.elsewhere else ""
        raise RayPrivacyError(f"no question came of {texts} texts: give longer ones{other}.")
    questions = finished(asked, asking.settings.seed, PUBLIC_ORIGIN)
    _write_table(questions, root / QUESTIONS, SHARED)
    write_formats(root, questions, passages, asking.settings.write)
    counts = {"documents": len(documents), "texts": texts, "passages": len(passages)}
    return counts | {"questions": len(questions), "kept": sum(questions["kept"].to_pylist())}


def _write_table(table: pa.Table, path: Path, mode: int = OWNER_ONLY) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    write_atomic(path, sink.getvalue().to_pybytes(), mode)
