"""The private sums behind the label histogram: each user's (or record's) shares of the control codes, added up."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rayprivacy.core.artifacts import Private
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.parts import read_part
from rayprivacy.generation.codes import Codes
from rayprivacy.release.histogram import HistogramMechanism
from rayprivacy.runs.sealing import sealed

_UNITS = 4096  # in memory at a time, as a row of counts each


@sealed("counting labels")
def label_sums(shards: Path, parts: int, codes: Codes, mechanism: HistogramMechanism) -> Private[npt.NDArray[np.int64]]:
    """Sums [cells] over all users (or records) of the sharded corpus; integers, so that their order does not matter."""
    total = np.zeros(mechanism.cells, dtype=np.int64)
    for part in range(parts):
        rows = read_part(shards, part)
        cells = np.array([codes.index(row) for row in rows.select(codes.columns).to_pylist()], dtype=np.int64)
        owners = _owners(rows, mechanism.unit)
        for first in range(0, int(owners.max(initial=-1)) + 1, _UNITS):
            some = (first <= owners) & (owners < first + _UNITS)
            counts = np.zeros((_UNITS, mechanism.cells), dtype=np.int64)
            np.add.at(counts, (owners[some] - first, cells[some]), 1)
            total += mechanism.contribution(counts)
    return Private(total)


def _owners(rows: pa.Table, unit: PrivacyUnit) -> npt.NDArray[Any]:
    """For each row a number of its unit, from 0 on."""
    if unit is PrivacyUnit.RECORD:
        return np.arange(len(rows))
    return np.unique(np.array(rows["user"].to_pylist(), dtype=object), return_inverse=True)[1]
