"""The folder in which a question set is made: what lies there, how far it has come, and blocks of rows in actors.

What is made lies in the hidden folder `.work`, each piece named by what decides it. So a killed process costs the block
that it was at, and other settings cost what they change. `stages.json` says of what the set is made, and, with counts,
that it is whole.
"""

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from rayprivacy.core.errors import ConfigError, RayPrivacyError
from rayprivacy.core.files import OWNER_ONLY, SHARED, Json, read_json, write_atomic, write_json
from rayprivacy.core.private import Seal, digest_json
from rayprivacy.runs.directory import MODEL
from rayprivacy.runs.questions_plan import STAGES
from rayprivacy.work.mapping import in_actors

J = TypeVar("J")
X = TypeVar("X")
Counted = Callable[[str, int, int], None]  # of progress: what is counted, how much is done, and of how much
TABLE, CARD, WORK = "questions.parquet", "README.md", ".work"
_WRITTEN = (TABLE, CARD, MODEL, "squad.json", "beir", "ragas.jsonl", "pairs.jsonl")  # of a set
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
    """Where a question set is made, by how many actors, and who is told of its stages and of what is counted there."""

    root: Path
    actors: int
    named: Callable[[str], AbstractContextManager[None]]
    count: Counted
    seconds: dict[str, float] = field(default_factory=dict)

    def work(self, name: str) -> Path:
        """A file or folder of what is made."""
        return self.root / WORK / name

    def begin(self, material: Material, settings: Json, resume: bool) -> bool:
        """Hold the folder to its material; returns whether the set is whole, by these settings and with this origin.

        Other settings make the set anew, of what they leave as it was.
        """
        stages, otherwise, inputs = self.root / STAGES, material.otherwise, material.inputs | settings
        if not stages.exists():
            if any(self.root.iterdir()):
                raise ConfigError(f"{material.place} is {self.root}, which holds other files: {otherwise}.")
            write_json(stages, {"inputs": inputs}, SHARED)
            return False
        known = read_json(stages)
        if {name: known["inputs"].get(name) for name in material.inputs} != material.inputs:
            raise ConfigError(f"{self.root} holds questions about another text: {otherwise}.")
        if known["inputs"] != inputs:
            write_json(stages, {"inputs": inputs}, SHARED)
            return False
        if not resume:
            raise ConfigError(f"{self.root} holds questions already: add --resume to finish them, or {otherwise}.")
        return "counts" in known and known["origin"] == material.origin

    def clear(self) -> None:
        """Delete the files of an earlier set."""
        for name in _WRITTEN:
            path = self.root / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Show and time a stage."""
        began = time.perf_counter()
        with self.named(name):
            yield
        self.seconds[name] = round(time.perf_counter() - began, 3)

    def blocks(
        self,
        kind: Callable[[J], Callable[[int, int], pa.Table]],
        job: J,
        groups: int,
        decided: Sequence[Any],
        step: str,
    ) -> pa.Table:
        """What actors make of the row groups of a file, in their order; `decided` is what names it beside the step."""
        parts = [self.work(f"{digest_json([step, *decided, group])[:32]}.parquet") for group in range(groups)]
        left = [(group, group) for group, part in enumerate(parts) if not part.exists()]
        done = groups - len(left)
        self.count("blocks", done, groups)
        for group, table in in_actors(kind, job, left, step, _SEAL, self.actors):
            write_table(table, parts[group])
            done += 1
            self.count("blocks", done, groups)
        return pa.concat_tables([pq.read_table(part) for part in parts])


def write_table(table: pa.Table, path: Path, mode: int = OWNER_ONLY, rows: int | None = None) -> None:
    """Write a Parquet file, whole or not at all, with so many rows in a group."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", row_group_size=rows)
    write_atomic(path, sink.getvalue().to_pybytes(), mode)
