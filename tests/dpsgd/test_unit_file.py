"""Units on disk: the same units, read one by one, whoever shares the parts; and steps that are prepared ahead."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayprivacy.core.errors import ReleaseError
from rayprivacy.core.keys import Key
from rayprivacy.dpsgd import units as unit_file
from rayprivacy.dpsgd.batches import Document, ahead
from rayprivacy.dpsgd.sampler import PoissonSampler, Unit, unit_tag
from rayprivacy.dpsgd.units import UnitFile, shares_of_rank

KEY = Key.for_tests()


def _document(draw: np.random.Generator, start: int) -> Document:
    ids = draw.integers(0, 50_000, start + int(draw.integers(2, 30))).astype(np.int32)
    return Document(ids, start, redacted=bool(draw.integers(2)))


def _units(count: int, versions: int = 1) -> list[Unit]:
    draw = np.random.default_rng(7)
    units = []
    for user in range(count):
        many = int(draw.integers(1, 6))
        first, *later = [tuple(_document(draw, at % 3) for at in range(many)) for _ in range(versions)]
        units.append(Unit(unit_tag(KEY, "user", user), first, tuple(later), part=user % 3))
    return units


def _content(unit: Unit) -> Any:
    versions = (unit.documents, *unit.later)
    return (
        unit.tag,
        unit.part,
        [[(each.ids.tolist(), each.first_target, each.redacted) for each in version] for version in versions],
    )


@pytest.mark.parametrize("versions", [1, 3])
def test_units_come_back_as_they_were(tmp_path: Path, versions: int) -> None:
    units = _units(40, versions)
    kept = UnitFile(tmp_path / "private", iter(units))
    assert len(kept) == 40
    assert kept.tags == b"".join(unit.tag for unit in units)
    assert [_content(unit) for unit in kept] == [_content(unit) for unit in units]
    assert [_content(unit) for unit in kept[3:9:2]] == [_content(unit) for unit in units[3:9:2]]
    assert _content(kept[-1]) == _content(units[-1])
    with pytest.raises(IndexError):
        kept[40]
    assert kept[0].documents[0].ids.dtype == np.int32
    assert list((tmp_path / "private").iterdir()) == [], "no name is left to find the text by"
    assert (tmp_path / "private").stat().st_mode & 0o777 == 0o700
    nobody = UnitFile(tmp_path, [])
    assert len(nobody) == 0
    assert PoissonSampler(KEY, "run", 0.5, nobody, 1).sample(0) == []


def test_steps_sample_from_disk_what_they_sample_from_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    units = _units(300)
    kept = UnitFile(tmp_path, units)
    on_disk, in_memory = (PoissonSampler(KEY, "run", 0.05, given, 2) for given in (kept, units))
    read: list[int] = []
    real = unit_file._unpacked
    monkeypatch.setattr(unit_file, "_unpacked", lambda *given: read.append(1) or real(*given))
    for step in range(20):
        read.clear()
        sampled = on_disk.sample(step)
        assert len(read) == len(sampled) < 60, "only the sampled units are read"
        expected = in_memory.sample(step)
        assert [[each.ids.tolist() for each in unit] for unit in sampled] == [
            [each.ids.tolist() for each in unit] for unit in expected
        ]


def test_equal_tags_are_refused_on_disk_too(tmp_path: Path) -> None:
    units = _units(3)
    with pytest.raises(ReleaseError, match="same tag"):
        PoissonSampler(KEY, "run", 0.5, UnitFile(tmp_path, [*units, units[1]]), 1)


@pytest.mark.parametrize(("parts", "world"), [(16, 1), (16, 3), (16, 16), (16, 40), (3, 8), (1, 5)])
def test_ranks_share_all_units_each_once(parts: int, world: int) -> None:
    tags = [unit_tag(KEY, "user", user) for user in range(400)]
    of_rank = [shares_of_rank(parts, number, world) for number in range(world)]
    held = [(share.part, tag) for shares in of_rank for share in shares for tag in tags if share.holds(tag)]
    assert sorted(held) == sorted((part, tag) for part in range(parts) for tag in tags)
    assert all(of_rank), "every rank has something to read"
    if world <= parts:
        assert [[share.part for share in shares] for shares in of_rank] == [
            list(range(number, parts, world)) for number in range(world)
        ]


def test_the_next_step_is_made_while_one_runs() -> None:
    made, began = [], threading.Event()

    def make(step: int) -> int:
        made.append(step)
        if step == 6:
            began.set()
        return 10 * step

    steps = ahead(range(5, 9), make)
    assert next(steps) == (5, 50)
    assert began.wait(10), "step 6 is made although nobody has asked for it"
    assert list(steps) == [(6, 60), (7, 70), (8, 80)]
    assert made == [5, 6, 7, 8]
    assert list(ahead(range(0), make)) == []


def test_what_goes_wrong_ahead_is_raised_at_its_step() -> None:
    def make(step: int) -> int:
        if step == 1:
            raise ReleaseError("not this one.")
        return step

    steps = ahead(range(3), make)
    assert next(steps) == (0, 0)
    with pytest.raises(ReleaseError, match="not this one"):
        next(steps)
