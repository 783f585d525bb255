"""Prepared rows on their way to their part: files in a private scratch folder, which Ray never sees.

Ray Data counts the rows of its blocks, and shows the counts on its metrics port and dashboard; how many records there
are is private. So rows travel through files beside the shards, one for each piece of the source, in
which the rows of a part lie together. Ray carries the numbers of shares and of groups of parts alone, which are public.

Files have mode 0600 in a directory of mode 0700. A task that runs twice writes the same bytes under the same names.
"""

import json
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rayprivacy.core.files import private_directory, read_json, write_atomic, write_json
from rayprivacy.corpus.bounding import Dropped

_PARTS = b"parts"


@dataclass(frozen=True)
class Spill:
    """The scratch folder of one sharding.

    Attributes:
        root: the folder.
    """

    root: Path

    def prepare(self) -> None:
        """Make the folder, empty."""
        self.remove()
        private_directory(self.root)

    def remove(self) -> None:
        """Delete the folder and the private rows in it."""
        shutil.rmtree(self.root, ignore_errors=True)

    def write(self, share: int, piece: int, rows: pa.Table) -> None:
        """Keep the prepared rows of one piece of a share; they have a column `part`."""
        ordered = rows.sort_by([("part", "ascending")]).combine_chunks()
        parts, starts = np.unique(ordered["part"].to_numpy(), return_index=True)
        ends = [*starts[1:], len(ordered)]
        sink = pa.BufferOutputStream()
        schema = ordered.schema.with_metadata({_PARTS: json.dumps(parts.tolist())})
        with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            for start, end in zip(starts, ends, strict=True):
                writer.write_table(ordered.slice(start, end - start))
        write_atomic(self._piece(share, piece), sink.getvalue().to_pybytes())

    def read(self, pieces: Iterable[tuple[int, int]], parts: range, empty: pa.Table) -> dict[int, pa.Table]:
        """The rows of every one of some parts, from all pieces.

        Args:
            pieces: (share, piece) of all files.
            parts: which parts.
            empty: a table of the rows' schema without rows.
        """
        found: dict[int, list[pa.Table]] = {part: [empty] for part in parts}
        for share, piece in pieces:
            with pa.memory_map(str(self._piece(share, piece))) as source, pa.ipc.open_file(source) as reader:
                for batch, part in enumerate(json.loads(reader.schema.metadata[_PARTS])):
                    if part in found:
                        rows = pa.Table.from_batches([reader.get_batch(batch)])
                        found[part].append(rows.replace_schema_metadata(None))
        return {part: pa.concat_tables(tables) for part, tables in found.items()}

    def report(self, step: str, number: int, dropped: Dropped, **facts: Any) -> None:
        """Say that a task is done, and what came of it; the counts are private and stay here."""
        write_json(self._report(step, number), {"dropped": asdict(dropped), **facts})

    def reports(self, step: str, count: int) -> list[dict[str, Any]]:
        """What all tasks of a step said."""
        return [read_json(self._report(step, number)) for number in range(count)]

    def _piece(self, share: int, piece: int) -> Path:
        return self.root / f"rows-{share:05d}-{piece:07d}.arrow"

    def _report(self, step: str, number: int) -> Path:
        return self.root / f"{step}-{number:05d}.json"
