"""The private votes for topics and lengths: one Ray task for each part file, which returns whole numbers.

Only part numbers travel, of all parts, whether anybody is in them or not. A task that runs again after a crash returns
the same sums: nothing in it is random, and the release gate alone draws noise.

The texts of a unit are embedded by themselves. In a batch with others the last bits of an embedding would depend on
these, and a text that lies between two topics could change its vote because somebody else is there.
"""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import ray
import torch
from ray.exceptions import RayError

from rayprivacy.core.artifacts import Private
from rayprivacy.core.counting import Told, nobody
from rayprivacy.core.errors import ReleaseError
from rayprivacy.core.sealing import Seal
from rayprivacy.corpus.parts import owners_of, read_part
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
    task = ray.remote(_votes_of_part).options(num_cpus=1, scheduling_strategy="SPREAD")
    common = ray.put((shards.absolute(), shape, margins))
    total = np.zeros(margins.cells, dtype=np.int64)
    try:
        for done, sums in enumerate(_finished([task.remote(common, part) for part in range(parts)]), start=1):
            total += sums
            told(done)
    except RayError as error:
        raise _SEAL.unwrap(_STEP, error) from None
    return Private(total)


def _finished(calls: list[Any]) -> Iterator[Sums]:
    while calls:
        (first, *_), calls = ray.wait(calls, num_returns=1)
        yield ray.get(first)


@_SEAL.around(_STEP)
def _votes_of_part(common: tuple[Path, Shape, Margins], part: int) -> Sums:
    shards, shape, margins = common
    return part_votes(shards, part, shape, margins, _model())


def part_votes(shards: Path, part: int, shape: Shape, margins: Margins, model: SentenceModel) -> Sums:
    """The summed votes [cells] of one part of the corpus."""
    rows = read_part(shards, part)
    owners, texts = owners_of(rows, margins.unit), np.array(rows["text"].to_pylist(), dtype=object)
    cells = np.empty((len(rows), len(margins.blocks)), np.int64)
    for own in np.split(np.argsort(owners, kind="stable"), np.cumsum(np.bincount(owners))[:-1]):
        cells[own] = shape.cells(texts[own].tolist(), model)
    return summed(margins, owners, cells + np.array([0, margins.blocks[0]]))


@lru_cache(maxsize=1)
def _model() -> SentenceModel:
    torch.set_num_threads(1)  # the order of floating-point sums, and so a vote, must not depend on a node's cores
    return SentenceModel.packaged()
