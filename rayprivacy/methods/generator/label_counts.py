"""The private sums behind the label histogram: each user's (or record's) shares of the control codes, added up.

Ray tasks count file by file; the driver adds one array for each file. See `piecework` for what Ray learns of it.
"""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from rayprivacy.core.artifacts import Private
from rayprivacy.corpus.parts import owners_of, part_paths
from rayprivacy.corpus.piecework import Bench, work_off
from rayprivacy.generation.codes import Codes
from rayprivacy.release.histogram import HistogramMechanism, summed
from rayprivacy.runs.sealing import SEAL, sealed

_STEP = "counting labels"


@sealed(_STEP)
def label_sums(shards: Path, parts: int, codes: Codes, mechanism: HistogramMechanism) -> Private[npt.NDArray[np.int64]]:
    """Sums [cells] over all users (or records) of the sharded corpus. Ray must be started."""
    bench, files = Bench(shards.absolute() / ".counting"), _files(shards.absolute(), parts)
    bench.remove()
    bench.offer(len(files))
    try:
        count = partial(_count, shards=shards.absolute(), parts=parts, codes=codes, mechanism=mechanism)
        work_off(bench, count, _STEP, SEAL)
        return Private(np.sum([report["sums"] for report in bench.reports()], axis=0, dtype=np.int64))
    finally:
        bench.remove()


def sums_of(rows: pa.Table, codes: Codes, mechanism: HistogramMechanism) -> npt.NDArray[np.int64]:
    """Sums [cells] over the users (or records) of some rows, all rows of a user among them."""
    cells = np.array([codes.index(row) for row in rows.select(codes.columns).to_pylist()], dtype=np.int64)
    return summed(mechanism, owners_of(rows, mechanism.unit), cells[:, None])


def _files(shards: Path, parts: int) -> list[Path]:
    return [path for part in range(parts) for path in part_paths(shards, part)]


def _count(number: int, shards: Path, parts: int, codes: Codes, mechanism: HistogramMechanism) -> dict[str, Any]:
    rows = pq.read_table(_files(shards, parts)[number], partitioning=None)
    return {"sums": sums_of(rows, codes, mechanism).tolist()}
