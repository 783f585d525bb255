"""The private sums behind the label histogram: each user's (or record's) shares of the control codes, added up."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from rayprivacy.core.artifacts import Private
from rayprivacy.corpus.parts import owners_of, read_part
from rayprivacy.generation.codes import Codes
from rayprivacy.release.histogram import HistogramMechanism, summed
from rayprivacy.runs.sealing import sealed


@sealed("counting labels")
def label_sums(shards: Path, parts: int, codes: Codes, mechanism: HistogramMechanism) -> Private[npt.NDArray[np.int64]]:
    """Sums [cells] over all users (or records) of the sharded corpus."""
    total = np.zeros(mechanism.cells, dtype=np.int64)
    for part in range(parts):
        rows = read_part(shards, part)
        cells = np.array([codes.index(row) for row in rows.select(codes.columns).to_pylist()], dtype=np.int64)
        total += summed(mechanism, owners_of(rows, mechanism.unit), cells[:, None])
    return Private(total)
