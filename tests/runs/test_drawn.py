"""Figures and samples of many released texts: bounded in memory, of all texts where they are few."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rayprivacy.core.console import repeating
from rayprivacy.evaluation.language import synthetic_metrics
from rayprivacy.reporting.inputs import draw_samples
from rayprivacy.runs import drive
from rayprivacy.runs.method import Output


def _texts(path: Path, count: int, width: int = 0) -> list[str]:
    texts = [f"{number} is so nice".ljust(width) for number in range(count)]
    pq.write_table(pa.table({"text": texts, "topic": ["a"] * count}), path, row_group_size=1000)
    return texts


def test_few_texts_are_measured_whole_and_many_by_a_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drive, "MEASURED", 5000)
    output = Output(figures={"degenerate": {}})
    texts = _texts(tmp_path / "few", 5000)
    whole = {"releasable": True, **synthetic_metrics(texts), "degenerate": {}}
    assert drive._of_text(tmp_path / "few", output) == whole
    _texts(tmp_path / "many", 5001)
    found = drive._of_text(tmp_path / "many", output)
    assert (found["texts"], found["texts_measured"]) == (5001, 5000)
    assert found["words"]["mean"] == 4
    assert found == drive._of_text(tmp_path / "many", output), "the seed is public"


def test_samples_are_those_of_the_whole_column(tmp_path: Path) -> None:
    texts = _texts(tmp_path / "many", 12_345)
    places = [texts.index(text) for text in draw_samples(tmp_path / "many")]
    assert len(places) == 20
    assert places == sorted(places)
    assert places[0] < 3000 < 9000 < places[-1]


@contextmanager
def _most_of_arrow() -> Iterator[list[int]]:
    """The most that Arrow holds, looked at every millisecond.

    Not by a pool of this test's own: Arrow's threads would still use it once it is gone, and the process would crash.
    """
    most = [0]

    def look() -> None:
        most[0] = max(most[0], pa.total_allocated_bytes())

    with repeating(0.001, look):
        yield most
    look()


def test_a_large_file_is_not_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drive, "MEASURED", 1000)
    _texts(tmp_path / "large", 100_000, width=1000)
    before = pa.total_allocated_bytes()
    with _most_of_arrow() as arrow:
        tracemalloc.start()
        drive._of_text(tmp_path / "large", Output(figures={}))
        draw_samples(tmp_path / "large")
        python = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert arrow[0] - before + python < 40 * 2**20, "the file holds 100 MB of text"
    with _most_of_arrow() as arrow:
        pq.read_table(tmp_path / "large")
    assert arrow[0] - before > 75 * 2**20, "what is read is seen"
