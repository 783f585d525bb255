"""The private votes for topics and lengths: one Ray task for each part file, which returns whole numbers.

Only part numbers travel, of all parts, whether anybody is in them or not. A task that runs again after a crash returns
the same sums: nothing in it is random, and the release gate alone draws noise.

The texts of a unit are embedded by themselves. In a batch with others the last bits of an embedding would depend on
these, and a text that lies between two topics could change its vote because somebody else is there.
"""

from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from rayprivacy.core.artifacts import Private
from rayprivacy.core.counting import Told, nobody
from rayprivacy.core.errors import ReleaseError
from rayprivacy.core.sealing import Seal
from rayprivacy.corpus.part_tasks import on_parts
from rayprivacy.corpus.parts import owners_of, part_tables
from rayprivacy.matching.shape import Shape
from rayprivacy.models.sentence_model import SentenceModel
from rayprivacy.release.histogram import summed
from rayprivacy.release.margins import Margins

_STEP = "voting for topics and lengths"
_SEAL = Seal(ReleaseError, "nothing was charged for it, run again with --resume")
Sums = npt.NDArray[np.int64]


def shape_votes(shards: Path, parts: int, shape: Shape, margins: Margins, told: Told = nobody) -> Private[Sums]:
    """The summed votes [cells] of all users (or records) of the sharded corpus; Ray must be started.

    Args:
        shards: folder of the sharded corpus, which all nodes see.
        parts: how many part files it has.
        shape: what is voted for.
        margins: bounds what one unit adds.
        told: told how many parts are done.

    Raises:
        ReleaseError: a task failed; nothing was charged.
    """
    total = np.zeros(margins.cells, dtype=np.int64)
    common = (shards.absolute(), shape, margins)
    for done, (_, sums) in enumerate(on_parts(_votes_of_part, common, range(parts), _STEP, _SEAL), start=1):
        total += sums
        told(done)
    return Private(total)


@_SEAL.around(_STEP)
def _votes_of_part(common: tuple[Path, Shape, Margins], part: int) -> Sums:
    shards, shape, margins = common
    return part_votes(shards, part, shape, margins, _model())


def part_votes(shards: Path, part: int, shape: Shape, margins: Margins, model: SentenceModel) -> Sums:
    """The summed votes [cells] of one part of the corpus, of which one file at a time is in memory."""
    total = np.zeros(margins.cells, np.int64)
    for rows in part_tables(shards, part):
        total += _votes(rows, shape, margins, model)
    return total


def _votes(rows: pa.Table, shape: Shape, margins: Margins, model: SentenceModel) -> Sums:
    owners, texts = owners_of(rows, margins.unit), np.array(rows["text"].to_pylist(), dtype=object)
    cells = np.empty((len(rows), len(margins.blocks)), np.int64)
    for own in np.split(np.argsort(owners, kind="stable"), np.cumsum(np.bincount(owners))[:-1]):
        cells[own] = shape.cells(texts[own].tolist(), model)
    return summed(margins, owners, cells + np.array([0, margins.blocks[0]]))


@lru_cache(maxsize=1)
def _model() -> SentenceModel:
    torch.set_num_threads(1)  # the order of floating-point sums, and so a vote, must not depend on a node's cores
    return SentenceModel.packaged()
