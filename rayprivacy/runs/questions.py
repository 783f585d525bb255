"""Question sets: what they are made of, public text or what a run released, and their making from end to end.

    public or released text -> passages -> questions -> answers -> what is known of each -> those that are kept
                            -> questions.parquet -> SQuAD, BEIR, ragas, pairs

What comes of a text depends on it, the settings and the public seed: neither the number of actors nor a block that is
made again after a crash changes a byte.
"""

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console

from rayprivacy.core.errors import ConfigError, renamed
from rayprivacy.core.files import SHARED, Json, made_folder, private_directory, read_json, write_json
from rayprivacy.core.private import digest_file
from rayprivacy.core.uris import shown
from rayprivacy.corpus.public import public_table
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.corpus.sources import check_source
from rayprivacy.questions.settings import QuestionsConfig
from rayprivacy.runs.checks import require_no_run
from rayprivacy.runs.decide import best_engine_for
from rayprivacy.runs.directory import CERTIFICATE, QUESTIONS, RECIPE, alone
from rayprivacy.runs.meter import Meter
from rayprivacy.runs.questions_folder import TABLE, WORK, Counted, Folder, Material
from rayprivacy.runs.questions_plan import STAGES, begun_with
from rayprivacy.runs.questions_stages import Making
from rayprivacy.runs.recipe import LOCAL, of_a_run
from rayprivacy.runs.session import ray_session

PUBLIC_ORIGIN = "made of text declared public; no privacy is claimed"
_OPTIONS = {"source": "--public", "text": "--text", "labels": "--document"}


def public_source(source: str, text: str, document: str | None) -> CorpusConfig:
    """Text that its owner declares public, and the column that says which document a row is of."""
    if document == text:
        raise ConfigError(f"--document is '{document}', which is --text too: name another column, or leave it out.")
    labels = [document] if document is not None else []
    return CorpusConfig.parse({"source": source, "text": text, "user": None, "labels": labels})


def public_material(corpus: CorpusConfig) -> Material:
    """Text that its owner declares public, and that lies in no run directory."""
    with renamed({f"corpus.{key}": option for key, option in _OPTIONS.items()}):
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


def whole_set(root: Path) -> Path:
    """The table of questions about a run's text; ConfigError where there is none, or it is not whole."""
    folder = root / QUESTIONS
    if not ((folder / STAGES).is_file() and "counts" in read_json(folder / STAGES)):
        raise ConfigError(f"{root} holds no finished questions: ask them with `rayprivacy questions {root} --resume`.")
    return folder / TABLE


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
    material: Material,
    settings: QuestionsConfig,
    root: Path,
    *,
    base: str,
    actors: int,
    resume: bool,
    console: Console,
) -> Json:
    """Ask about texts, and write what comes of it, on a Ray of our own; returns the content of `stages.json`."""
    meter = Meter(console, lambda stage, figures: None)

    @contextmanager
    def stage(name: str) -> Iterator[None]:
        began = time.perf_counter()
        with meter.stage(name):
            yield
        console.print(f"  {name:<34}{time.perf_counter() - began:7.1f} s", highlight=False)

    return write_questions(
        material, settings, root, base=base, actors=actors, resume=resume, stage=stage, count=meter.count
    )


def write_questions(
    material: Material,
    settings: QuestionsConfig,
    root: Path,
    *,
    base: str,
    actors: int,
    resume: bool,
    stage: Callable[[str], AbstractContextManager[None]],
    count: Counted,
) -> Json:
    """The same for a caller that shows stages and counts itself, and on its Ray, if it has one.

    Args:
        material: what is asked about.
        settings: that leave nothing to the machine (`settled`), and that `check_questions` has looked at.
        root: folder of the set.
        base: the public model that learns to ask, where the settings name none.
        actors: processes that work at once; they change nothing in what is written.
        resume: whether a set that was begun there is finished.
        stage: shows a stage, one of `question_stages`, while it goes on.
        count: is told of pieces of work.
    """
    if settings.pairs is not None:
        asker = settings.asker.model_copy(update={"base": settings.asker.base or base})
        settings = settings.model_copy(update={"asker": asker})
    with alone(made_folder(root, material.place)):
        folder = Folder(root.absolute(), actors, stage, count)
        if folder.begin(material, {"questions": settings.model_dump(mode="json")}, resume):
            return dict(read_json(root / STAGES))
        private_directory(root / WORK)
        with ray_session(LOCAL):
            found = Making(material, settings, folder).whole()
        inputs = read_json(root / STAGES)["inputs"]
        found = {"inputs": inputs, "origin": material.origin, **found, "seconds": folder.seconds}
        write_json(root / STAGES, found, SHARED)
        if settings.pairs is None and settings.judge is None:
            shutil.rmtree(root / WORK)
        return found


def settled(root: Path, settings: QuestionsConfig, base: str) -> QuestionsConfig:
    """Settings that leave nothing to the machine: as a set that was begun in the folder has them, or decided now."""
    known = begun_with(root).get("questions", {})
    if settings.entities == "auto" and "entities" in known:
        settings = settings.model_copy(update={"entities": known["entities"]})
    asker = settings.asker
    if settings.pairs is not None and asker.engine == "auto":
        engine = known.get("asker", {}).get("engine", "auto")
        engine = best_engine_for(asker.base or base) if engine == "auto" else engine
        settings = settings.model_copy(update={"asker": asker.model_copy(update={"engine": engine})})
    return settings.decided()
