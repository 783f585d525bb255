"""Figures of all users: each is asked once, held-out ones here and the others in a task for each part."""

import numpy as np
import pyarrow as pa
import pytest

from rayprivacy.core.errors import RayPrivacyError
from rayprivacy.core.keys import Key
from rayprivacy.corpus.layout import HOLDOUT
from rayprivacy.corpus.manifest import part_path, write_part
from rayprivacy.evaluation.settings import FiguresConfig
from rayprivacy.release.figure_vectors import FigureVectors
from rayprivacy.release.votes import SCALE
from rayprivacy.runs import figures

SYNTHETIC = ["my cat sat on the mat", "we like soup with bread today", "you go home now", "the dog ate my soup"] * 2
PEOPLE = {HOLDOUT: ["hal"], 0: ["ann", "bob"], 1: [], 2: ["cyd"]}


def _write(people, folder):
    for part, users in people.items():
        rows = {
            "shard": [part] * len(users),
            "user": users,
            "record": [0] * len(users),
            "text": SYNTHETIC[: len(users)],
        }
        kinds = pa.schema([("shard", pa.int32()), ("user", pa.string()), ("record", pa.int32()), ("text", pa.string())])
        write_part(pa.table(rows, schema=kinds), part, Key.for_tests(), folder)


def test_each_user_is_asked_once_in_the_cells_of_their_half(tmp_path, local_ray):
    halves, told = figures.halves_of([], [figures.of_texts(SYNTHETIC, FiguresConfig(topics=2))], "user"), list[int]()
    mechanism = FigureVectors(sum(half.layout.cells for half in halves), 3.0)
    sums = []
    for people in (PEOPLE, PEOPLE | {HOLDOUT: ["hal", "ida"]}, PEOPLE | {1: ["ida"]}):
        _write(people, tmp_path)
        sums.append(figures.figure_sums(tmp_path, 3, halves, mechanism, told.append).reveal())
    assert told == [1, 2, 3, 4] * 3
    assert sums[0][0] == SCALE, "one is held out, of whom nothing else is asked"
    assert sums[0][1] // (sums[2] - sums[0])[1] == 3, "and three are not"
    for moved, cells in ((sums[1] - sums[0], slice(1, None)), (sums[2] - sums[0], slice(0, 1))):
        assert 0 < sum(step * step for step in moved.tolist()) <= SCALE**2
        assert not moved[cells].any()
    assert not np.array_equal(sums[1], sums[2])
    # One that cannot be read is told without its text.
    part_path(tmp_path, 0).write_bytes(b"my secret soup")
    with pytest.raises(RayPrivacyError, match=r"^measuring figures of users stopped") as stopped:
        figures.figure_sums(tmp_path, 1, halves, mechanism)
    assert "secret" not in str(stopped.value)
