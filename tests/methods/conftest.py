"""Small jobs of our methods."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from recipes import EVALUATION, SEQPATE, TRAINING
from small_jobs import Job, small_corpus_block, small_privacy, write_talk


@pytest.fixture
def job(tmp_path: Path, tiny_base: Path, local_ray: Path) -> Job:
    """30 users with 4 sentences each, 12 teachers in stacks of 4, 40 queries."""
    return _small_job(tmp_path, tiny_base)


@pytest.fixture(scope="module")
def shared_job(tmp_path_factory: pytest.TempPathFactory, tiny_base: Path, local_ray: Path) -> Job:
    """The same, for all tests of a file: a run costs seconds."""
    return _small_job(tmp_path_factory.mktemp("job"), tiny_base)


def _small_job(folder: Path, base: Path) -> Job:
    write_talk(folder / "talk.parquet")
    recipe = {
        **SEQPATE,
        "corpus": small_corpus_block(folder),
        "privacy": small_privacy(folder),
        "model": {"base": str(base), "dtype": "float32"},
        "evaluation": EVALUATION,
    }
    return Job.of(folder, recipe)


@pytest.fixture
def generator(job: Job) -> Job:
    """DP-SGD on the same users: 6 steps in chunks of 2, with two label values of three."""
    table = pq.read_table(job.folder / "talk.parquet")
    topics = pa.array([("food", "pets", "home")[n % 3] for n in range(len(table))])
    pq.write_table(table.append_column("topic", topics), job.folder / "talk.parquet")
    recipe = yaml.safe_load(job.recipe.read_text())
    for block in ("pseudo", "teachers", "votes", "student", "resources"):
        del recipe[block]
    recipe["method"] = "generator"
    recipe["corpus"]["labels"] = ["topic"]
    recipe["codes"] = {"values": {"topic": ["food", "pets"]}}
    recipe["training"] = TRAINING | {"steps": 6}
    recipe["generation"] = {"texts": 12, "max_tokens": 10}
    recipe["resources"] = {"cpus": 1, "actors": 1}
    job.recipe.write_text(yaml.safe_dump(recipe))
    return job
