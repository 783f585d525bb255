"""Small jobs of our methods."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from recipes import EVALUATION, GENERATOR, SEQPATE, TRAINING
from small_jobs import Job, job_of, write_talk


@pytest.fixture
def job(tmp_path: Path, tiny_base: Path, local_ray: Path) -> Job:
    """30 users with 4 sentences each, 12 teachers in stacks of 4, 40 queries."""
    write_talk(tmp_path / "talk.parquet")
    return job_of(tmp_path, tiny_base, **SEQPATE, evaluation=EVALUATION)


@pytest.fixture(scope="module")
def shared_job(tmp_path_factory: pytest.TempPathFactory, tiny_base: Path, local_ray: Path) -> Job:
    """The same, for all tests of a file: a run costs seconds."""
    folder = tmp_path_factory.mktemp("job")
    write_talk(folder / "talk.parquet")
    return job_of(folder, tiny_base, **SEQPATE, evaluation=EVALUATION)


@pytest.fixture
def generator(tmp_path: Path, tiny_base: Path, local_ray: Path) -> Job:
    """DP-SGD on the same users: 6 steps in chunks of 2, with two label values of three."""
    write_talk(tmp_path / "talk.parquet")
    table = pq.read_table(tmp_path / "talk.parquet")
    topics = pa.array([("food", "pets", "home")[n % 3] for n in range(len(table))])
    pq.write_table(table.append_column("topic", topics), tmp_path / "talk.parquet")
    return job_of(
        tmp_path,
        tiny_base,
        **GENERATOR | {"training": TRAINING | {"steps": 6}},
        corpus={"labels": ["topic"]},
    )
