"""Parts of synthetic text on their way to one file: a run that is killed goes on behind the last part it finished.

A part is a Parquet file of the texts of PART_BLOCKS blocks of prompts, the dropped ones included, with their counts.
Parts lie in a hidden folder beside the file they are for, which is named by what decides the texts; folders of other
texts for the same file are removed. All of it is public.
"""

import re
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rayprivacy.core.files import SHARED, write_atomic
from rayprivacy.generation.settings import BATCH

PART_BLOCKS = 64


class Parts:
    """The parts of one file `out`, which has a text for each prompt.

    `source` is the digest of what decides its texts; without one no part outlives its run.

    Attributes:
        count: how many parts there are.
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
