"""The stages that ask questions about text which is released or public: texts, questions, the set with its formats.

    public or released text -> texts, a row group for a few documents -> actors, a row group at a time -> parts, in
                    order -> questions.parquet -> SQuAD, BEIR, ragas, pairs

What comes of a row group depends on it, the settings and the public seed: neither the number of actors nor a block
that is asked again after a crash changes a byte. Parts lie in a hidden folder, each named by what decides it, until the
set is whole; `stages.json` then has counts, and says that it is.
"""

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
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
from rayprivacy.runs.directory import CERTIFICATE, RECIPE, alone
from rayprivacy.runs.meter import Meter
from rayprivacy.runs.recipe import LOCAL, of_a_run
from rayprivacy.runs.session import ray_session
from rayprivacy.work.mapping import in_actors

TABLE, STAGES = "questions.parquet", "stages.json"
PUBLIC_ORIGIN = "made of text declared public; no privacy is claimed"
_WORK, _TEXTS = ".work", "texts.parquet"
_OPTIONS = {"source": "--public", "text": "--text", "labels": "--document"}
_SEAL = Seal(RayPrivacyError, "run again with --resume")


@dataclass(frozen=True)
class Material:
    """What is asked about."""

    texts: pa.Table  # the text, and behind it its title, if there is one
    inputs: Json  # what tells it from other material
    origin: str  # what every file says of it
    together: bool = False  # whether texts of one title are one document, of whose rest a sentence is asked
    place: str = "--out"  # what the folder of its questions is called,
    otherwise: str = "name a new folder"  # and what to do where it cannot be taken


@dataclass(frozen=True)
class Folder:
    """Where a question set is made."""

    root: Path
    material: Material
    console: Console
    seconds: dict[str, float] = field(default_factory=dict)

    def work(self, name: str) -> Path:
        """A file that is there until the set is whole."""
        return self.root / _WORK / name

    def begin(self, inputs: Json, resume: bool) -> bool:
        """Hold the folder to what the set is made of; returns whether the set is whole, and says what it must."""
        stages, otherwise = self.root / STAGES, self.material.otherwise
        if not stages.exists():
            if any(self.root.iterdir()):
                raise ConfigError(f"{self.material.place} is {self.root}, which holds other files: {otherwise}.")
            write_json(stages, {"inputs": inputs}, SHARED)
        elif not resume:
            raise ConfigError(f"{self.root} holds questions already: add --resume to finish them, or {otherwise}.")
        known = read_json(stages)
        if known["inputs"] != inputs:
            raise ConfigError(f"{self.root} holds questions about another text, or by other settings: {otherwise}.")
        return "counts" in known and known["origin"] == self.material.origin

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


def public_material(corpus: CorpusConfig) -> Material:
    """Text that its owner declares public, and that lies in no run directory."""
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
    }
    return Material(table, inputs, PUBLIC_ORIGIN, together=bool(corpus.labels))


def require_finished(root: Path) -> None:
    """Refuse a folder that is no run directory, or whose run is not finished."""
    if not (root / RECIPE).is_file():
        raise ConfigError(f"{root} is no run directory: give one that `rayprivacy run --out` made.")
    if of_a_run(root.resolve()):
        raise ConfigError(f"{root} lies in the private folder of a run, and is no release: name the run itself.")
    if not (root / CERTIFICATE).is_file():
        raise ConfigError(f"{root} holds a run that is not finished: finish it with `rayprivacy run --resume`.")


def released_material(root: Path, texts: str, labels: Sequence[str], release: str, claim: str) -> Material:
    """The text that a run released, in the file `texts`, by one of its labels or several titled."""
    path = root / texts
    if not path.is_file() or of_a_run(path.resolve()):
        raise ConfigError(f"{root} lacks its text, {texts}: let `rayprivacy run --resume` write it again.")
    titles = [name for name in labels if name in pq.read_schema(path).names]
    corpus = CorpusConfig(source=str(path.absolute()), text="text", user=None, labels=tuple(titles))
    table = public_table(corpus, {})
    if table["text"].null_count == len(table):
        raise ConfigError(f"{root} holds no text to ask about: every text that it released is empty.")
    if titles:
        between = pa.scalar(", ", pa.large_string())
        title = pc.binary_join_element_wise(*(table[name] for name in titles), between, null_handling="skip")
        table = pa.table({"text": table["text"], "title": title})
    inputs = {"release": release, "text": texts, "titles": titles, "digest": digest_file(path)}
    origin = f"made of the text of release {release}. {claim}"
    return Material(table, inputs, origin, place="the folder of questions", otherwise="move that folder away")


def make_set(
    material: Material, settings: QuestionsConfig, root: Path, *, actors: int, resume: bool, console: Console
) -> Json:
    """Ask about texts, and write what comes of it; returns the content of `stages.json`."""
    inputs = material.inputs | {"questions": settings.model_dump(mode="json")}
    with alone(made_folder(root, material.place)):
        folder = Folder(root, material, console)
        if folder.begin(inputs, resume):
            shutil.rmtree(root / _WORK, ignore_errors=True)
            return dict(read_json(root / STAGES))
        private_directory(root / _WORK)
        with folder.stage("texts"):
            write_texts(material.texts, folder.work(_TEXTS), material.together)
        texts = Texts(folder.work(_TEXTS).absolute(), settings.passages)
        asking = Asking(texts, settings, elsewhere=material.together)
        with folder.stage("questions"), ray_session(LOCAL):
            asked = pa.concat_tables([pq.read_table(part) for part in ask(asking, folder, actors)])
        with folder.stage("question set"):
            counts = write_set(asking, asked, root, material.origin)
        found = {"inputs": inputs, "origin": material.origin, "counts": counts, "seconds": folder.seconds}
        write_json(root / STAGES, found, SHARED)
        shutil.rmtree(root / _WORK)
        return found


def settled(root: Path, settings: QuestionsConfig) -> QuestionsConfig:
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


def write_set(asking: Asking, asked: pa.Table, root: Path, origin: str) -> Json:
    """Write the questions and their formats, which say what they were made of; returns counts."""
    documents = [each for group in range(asking.texts.groups) for each in asking.texts.documents(group)]
    passages = [passage for each in documents for passage in each.passages]
    texts = sum(len(each.rows) for each in documents)
    if not len(asked):
        other = ", or leave out --document, so that a sentence is asked of its own text" if asking.elsewhere else ""
        raise RayPrivacyError(f"no question came of {texts} texts: give longer ones{other}.")
    questions = finished(asked, asking.settings.seed, origin)
    _write_table(questions, root / TABLE, SHARED)
    write_formats(root, questions, passages, asking.settings.write)
    counts = {"documents": len(documents), "texts": texts, "passages": len(passages)}
    return counts | {"questions": len(questions), "kept": sum(questions["kept"].to_pylist())}


def _write_table(table: pa.Table, path: Path, mode: int = OWNER_ONLY) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    write_atomic(path, sink.getvalue().to_pybytes(), mode)
