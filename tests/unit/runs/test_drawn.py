"""Figures and samples of many released texts: bounded in memory, of all texts where they are few."""

from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ray_processes import peak_rise

from rayprivacy.evaluation.language import synthetic_metrics
from rayprivacy.reporting.inputs import draw_samples
from rayprivacy.runs import drive
from rayprivacy.runs.method import Output


def _texts(path, count, width=0):
    texts = [f"{number} is so nice".ljust(width) for number in range(count)]
    pq.write_table(pa.table({"text": texts, "topic": ["a"] * count}), path, row_group_size=1000)
    return texts


def test_few_texts_are_measured_whole_and_many_by_a_sample(tmp_path, monkeypatch):
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


def test_samples_are_those_of_the_whole_column(tmp_path):
    texts = _texts(tmp_path / "many", 12_345)
    places = [texts.index(text) for text in draw_samples(tmp_path / "many")]
    assert len(places) == 20
    assert places == sorted(places)
    assert places[0] < 3000 < 9000 < places[-1]


@pytest.mark.exhaustive
def test_a_large_file_is_not_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(drive, "MEASURED", 1000)
    _texts(tmp_path / "large", 200_000, width=1000)
    draw_samples(tmp_path / "large")  # warms up
    assert peak_rise(partial(drive._of_text, tmp_path / "large", Output(figures={}))) < 60 * 2**20, "it holds 200 MB"
    assert peak_rise(partial(draw_samples, tmp_path / "large")) < 60 * 2**20
    assert peak_rise(partial(pq.read_table, tmp_path / "large")) > 100 * 2**20, "what is read is seen"
