"""The whole road for the units 'record' and 'phrase', by the command line (`test_end_to_end` does it for users)."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SECRETS = ["my mat", "Soup-with-bread"]


def shared_files(out: Path) -> list[Path]:
    return [path for path in out.rglob("*") if path.is_file() and "private" not in path.relative_to(out).parts]


@pytest.mark.exhaustive
def test_records_end_to_end(job: Any) -> None:
    refused = job.run("none", "-o", "privacy.unit=record")
    assert refused.returncode == 2
    assert "max_records_per_user is 100" in refused.stderr
    unit = ["-o", "privacy.unit=record", "-o", "corpus.max_records_per_user=null"]
    done = job.run("first", *unit)
    assert done.returncode == 0, done.stderr
    certificate = job.certificate("first")
    assert (certificate["unit"], certificate["epsilon"]) == ("record", 3.0)
    assert "phrases" not in json.loads((job.folder / "first" / "metrics.json").read_text())
    mixed = job.run("second")  # users, on an account of records
    assert mixed.returncode != 0
    assert "Traceback" not in mixed.stderr


def test_phrases_end_to_end(job: Any) -> None:
    names = job.folder / "names.txt"
    names.write_text("\n".join(SECRETS))
    unit = [f"corpus.phrases={names}", "corpus.max_shards_per_phrase=3", "privacy.unit=phrase"]
    done = job.run("first", *(part for option in unit for part in ("-o", option)))
    assert done.returncode == 0, done.stderr
    out = job.folder / "first"
    assert job.certificate("first")["unit"] == "phrase"
    metrics = json.loads((out / "metrics.json").read_text())["phrases"]
    assert metrics["releasable"] is False
    assert sum(phrases for _, phrases in metrics["histogram"]) == len(SECRETS)
    assert 0 <= metrics["worst"] <= metrics["at_bound"] <= 3.0
    texts = [pq.read_table(path) for path in (out / "private" / "shards").glob("part-*.parquet")]
    assert any("[masked]" in text for table in texts for text in table["text"].to_pylist())
    for secret in ("my mat", "soup with bread", "Soup-with-bread"):
        told = [done.stdout.encode(), done.stderr.encode(), *(path.read_bytes() for path in shared_files(out))]
        assert not any(secret.encode() in text for text in told)
