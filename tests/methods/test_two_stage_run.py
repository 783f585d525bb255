"""Two-stage generation as its users run it: a recipe in, two models, text with its trees and one certificate out."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from small_trees import small_job, warm

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_first(tmp_path: Path, tiny_base: Path, local_ray: Path) -> None:
    pytest.importorskip("xgrammar")
    job = small_job(tmp_path, tiny_base, **warm(tmp_path))
    done = job.run("out")
    print(done.stdout[-3000:], done.stderr[-3000:])
    assert done.returncode == 0, done.stderr
    print(json.dumps(job.certificate("out"), indent=1)[:6000])
    print((tmp_path / "out" / "metrics.json").read_text()[:5000])
    print(pq.read_table(tmp_path / "out" / "synthetic.parquet").to_pylist())
