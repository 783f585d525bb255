"""The run directory: where the stages of a run leave their results, so that a killed run goes on where it stopped.

Public and released files lie on top, beside internal ones (mode 0600); everything computed from private text lies in
`private/`. The directory is its owner's alone (mode 0700): copy what may leave it. A stage is finished when its file is
there (files appear whole, by rename). A run directory in object storage is worked on in a local folder, and mirrored at
the end of every stage. `run.log` is JSON Lines of stages, seconds and public counts: it never holds text of the corpus,
nor counts of its users or rows.
"""

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

from rich.console import Console

from rayprivacy.core.errors import ConfigError, KeyFileError, RayPrivacyError
from rayprivacy.core.files import Json, append_line, made_folder, private_directory, read_json, write_atomic, write_json
from rayprivacy.core.storage import Mirror
from rayprivacy.runs import decide, files
from rayprivacy.runs.meter import Meter
from rayprivacy.runs.recipe import Recipe

LEDGER_HEAD = "ledger_head"
INPUTS, CALIBRATED = "inputs.json", "calibrated.json"
RECIPE, CERTIFICATE, METRICS = "recipe.yaml", "certificate.json", "metrics.json"
MODEL = "model"
QUESTIONS = "questions"  # folder of what was asked about the released text
EVIDENCE = "evidence"  # folder of forms for reviewers
RUN_LOG = "run.log"
FOUND = "found"  # an event of the log: the work of a stage had been done by another run
PREPARING = (BASE_MODEL, COPY, CORPUS_BY) = ("base model", "copy of the corpus", "corpus by")
# Names of what the run put among its private files.
_MADE = "made"
_PATIENCE = 2.0  # seconds, in which a process that was killed lets go
R = TypeVar("R", bound=Recipe)


@dataclass(frozen=True)
class Run(Generic[R]):
    """One run of one recipe."""

    root: Path  # the run directory
    recipe: R  # the resolved recipe
    console: Console = field(default_factory=lambda: Console(stderr=True))  # where progress is shown
    # whether metrics.json is written, with its internal figures on held-out private text; not in a search
    measured: bool = True
    mirror: Mirror | None = None  # where a copy of the run directory is kept, if anywhere

    @staticmethod
    def find(
        root: Path,
        recipe: R,
        *,
        resume: bool,
        console: Console | None = None,
        measured: bool = True,
        mirror: Mirror | None = None,
    ) -> "Run[R]":
        """A run that is there, or that may be begun: nothing is written.

        The recipe leaves nothing to the machines (see `decide`). Refused are the run of another recipe, any run without
        `resume`, and (KeyFileError) a run that has begun and whose key is not here.
        """
        run, stored = Run(root.absolute(), recipe, console or Console(stderr=True), measured, mirror), root / RECIPE
        if stored.exists():
            if not resume:
                raise ConfigError(f"{root} holds a run already: add --resume to finish it, or choose another --out.")
            if not _is_of(stored, recipe):
                raise ConfigError(
                    f"{root} holds a run of another recipe: resume it with its own, or choose another --out."
                )
            key = Path(recipe.privacy.key)
            if (run.root / RUN_LOG).exists() and not key.exists():  # another key would be another release, and charge
                raise KeyFileError(
                    f"privacy.key is {key}, which does not exist, and this run began with it: bring the key here, or"
                    " choose another --out for a new release."
                )
        return run

    def begin(self, calibrated: Json | None = None) -> "Run[R]":
        """Keep the recipe, and what it was calibrated to, in the run directory, which may be there."""
        for folder in (self.root, self.root / "public", self.root / "private"):
            private_directory(folder)
        if calibrated is not None:
            write_json(self.public(CALIBRATED), calibrated)
        write_atomic(self.root / RECIPE, files.dump_recipe(self.recipe).encode())
        return self

    @staticmethod
    def open(root: Path, recipe: R, *, resume: bool, console: Console | None = None, measured: bool = True) -> "Run[R]":
        """Find a run and begin it; errors as in `find`."""
        return Run.find(root, recipe, resume=resume, console=console, measured=measured).begin()

    def public(self, name: str) -> Path:
        """A file computed from public text, or from released votes."""
        return self.root / "public" / name

    def private(self, name: str) -> Path:
        """A file or folder computed from the private corpus; its name is noted, so that `clean` deletes it."""
        return note_private(self.root, name)

    def bind(self, **digests: str) -> None:
        """Hold the run to the digests of public inputs with which it began: files of two would be a mixture."""
        path = self.public(INPUTS)
        bound = _object_of(path)
        for name, digest in digests.items():
            if bound.get(name, digest) != digest:
                raise ConfigError(
                    f"the {name.replace('_', ' ')} of {self.root} changed since the run began: bring the former back,"
                    " or choose another --out."
                )
        write_json(path, bound | digests)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Show, time and log a stage; a mirror has its files when it ends."""
        self.log(name, "start")
        began = time.perf_counter()
        with self.meter.stage(name):
            yield
        seconds = time.perf_counter() - began
        self.log(name, "done", seconds=round(seconds, 3))
        self.console.print(f"  {name:<34}{seconds:7.1f} s", highlight=False)
        if self.mirror:
            self.mirror.push()

    @cached_property
    def meter(self) -> Meter:
        """Says how far the stage that goes on has come."""
        return Meter(self.console, lambda stage, figures: self.log(stage, "progress", **figures))

    def log(self, stage: str, event: str, **figures: Any) -> None:
        """Append one line to run.log; nothing private may be passed in."""
        entry = {"time": round(time.time(), 3), "stage": stage, "event": event, **figures}
        append_line(self.root / RUN_LOG, json.dumps(entry))

    def keep_ledger_head(self, head: str) -> None:
        """Remember how far the ledger had come."""
        write_atomic(self.root / LEDGER_HEAD, f"{head}\n".encode())

    def ledger_head(self) -> str | None:
        """How far the ledger had come when this run last charged it; None before that."""
        path = self.root / LEDGER_HEAD
        return path.read_text().strip() if path.exists() else None

    def timings(self) -> dict[str, float]:
        """Seconds of every finished stage, over all attempts."""
        total: dict[str, float] = {}
        for entry in log_entries(self.root):
            if "seconds" in entry:
                total[entry["stage"]] = round(total.get(entry["stage"], 0.0) + entry["seconds"], 3)
        return total


def stored_recipe(root: Path) -> Json | None:
    """The keys of the recipe that a run directory holds; None where no run has begun."""
    stored = root / RECIPE
    return files.read_mapping(stored, "recipe") if stored.is_file() else None


def calibrated(root: Path) -> Json:
    """What the run in a directory was calibrated to (see `calibration`); empty where none has begun."""
    return _object_of(root / "public" / CALIBRATED)


def _object_of(path: Path) -> Json:
    """What a JSON file of a run holds; empty where there is none."""
    found = None
    with suppress(ValueError):
        found = read_json(path) if path.exists() else {}
    if not isinstance(found, dict):
        raise ConfigError(f"{path} is damaged: bring it back, or choose another --out for a new release.")
    return found


@contextmanager
def attempt(root: Path, is_charged: Callable[[], bool]) -> Iterator[None]:
    """Be alone in a run directory, which is made, and leave nothing there if a run is refused before it has worked.

    What is removed is what was made here: in the directory, and the folders around it. The file of the key stays, for
    another run may have taken it up meanwhile. A run has worked when it was charged, or when one of its own stages has
    ended.
    """
    missing = [folder for folder in (root, *root.parents) if not folder.exists()]
    made_folder(root, "the run directory (--out)")
    with alone(private_directory(root)):
        there = {*root.iterdir()}
        try:
            yield
        except RayPrivacyError:
            if not (root / RECIPE in there or is_charged() or _has_worked(root)):
                _remove({*root.iterdir()} - there, missing)
            raise


def _has_worked(root: Path) -> bool:
    return (root / RUN_LOG).exists() and any(
        entry["event"] == "done" and not entry["stage"].startswith(PREPARING) for entry in log_entries(root)
    )


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """Refuse a second process in a folder; the lock goes with the process. Where a file system has none, do without."""
    handle, until = os.open(root, os.O_RDONLY), time.monotonic() + _PATIENCE
    try:
        while not _locks(handle):
            if time.monotonic() > until:
                raise ConfigError(f"another process works in {root}: wait until it has ended, or choose another --out.")
            time.sleep(0.1)
        yield
    finally:
        os.close(handle)


def _locks(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _remove(made: Iterable[Path], folders: Iterable[Path]) -> None:
    """Delete files and folders, and of further folders those that are empty then."""
    for path in made:
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()


def log_entries(root: Path) -> Iterator[Json]:
    """The lines of run.log, without those that a full disk has torn."""
    for line in (root / RUN_LOG).read_text(errors="replace").splitlines():
        with suppress(ValueError):
            if isinstance(entry := json.loads(line), dict) and {"stage", "event"} <= entry.keys():
                yield entry


def note_private(root: Path, name: str) -> Path:
    """The path of a private file or folder of a run, after noting (the first part of its name) that the run made it."""
    folder, top = root / "private", name.partition("/")[0]
    if top not in noted_private(root):
        private_directory(folder)
        append_line(folder / _MADE, top)
    return folder / name


def noted_private(root: Path) -> list[str]:
    """Names of the private files and folders that a run has made, as far as they were noted."""
    note = root / "private" / _MADE
    return note.read_text().splitlines() if note.exists() else []


def forget_private(root: Path) -> None:
    """Delete the notes of what a run has made, once all of it is gone."""
    (root / "private" / _MADE).unlink(missing_ok=True)


def _is_of(stored: Path, recipe: Recipe) -> bool:
    data = files.read_mapping(stored, "recipe")
    if data.get("method") != recipe.method:
        return False
    apart_from = {"resources", "questions"}  # what is asked about a release is made anew of what other keys leave
    began = decide.with_engine(type(recipe).parse(data), data)
    return began.model_dump(exclude=apart_from) == recipe.model_dump(exclude=apart_from)


MEASURED = ("metrics.json", "audit.json", "evaluation.json", "evaluation.md", "report.html", "report-public.html")
_SAID = ("README.md", "certificate.md", CERTIFICATE)  # the one that names the corpus goes last


def forget_another_corpus(root: Path, corpus_digest: str) -> None:
    """Delete the certificate, cards and figures of another corpus than the one whose release is about to be written.

    No claim and no figure may stand beside what another corpus made, nor evidence of it or questions about its text;
    reports and audits refuse the run until it ends.
    """
    stored = root / CERTIFICATE
    if not stored.exists() or read_json(stored)["corpus_digest"] == corpus_digest:
        return
    for name in ("plots", QUESTIONS, EVIDENCE):
        shutil.rmtree(root / name, ignore_errors=True)
    for name in (*MEASURED, *_SAID):
        (root / name).unlink(missing_ok=True)
