"""Small jobs of our methods."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from small_jobs import SENTENCES, USERS, Job, known_key, sentence


@pytest.fixture
def job(tmp_path: Path, tiny_base: Path, local_ray: Path) -> Job:
    """30 users with 4 sentences each, 12 teachers in stacks of 4, 40 queries."""
    return _small_job(tmp_path, tiny_base)


@pytest.fixture(scope="module")
def shared_job(tmp_path_factory: pytest.TempPathFactory, tiny_base: Path, local_ray: Path) -> Job:
    """The same, for all tests of a file: a run costs seconds."""
    return _small_job(tmp_path_factory.mktemp("job"), tiny_base)


def _small_job(folder: Path, base: Path) -> Job:
    rows = [(f"user-{u}", sentence(u, n)) for u in range(USERS) for n in range(SENTENCES)]
    table = pa.table({"who": [user for user, _ in rows], "said": [text for _, text in rows]})
    pq.write_table(table, folder / "talk.parquet")
    recipe = {
        "method": "seqpate",
        "corpus": {"source": str(folder / "talk.parquet"), "user": "who", "text": "said", "holdout": 0.2},
        "privacy": {
            "ledger": f"sqlite:///{folder}/ledger.db",
            "key": known_key(folder),
            "account": "talk",
        },
        "model": {"base": str(base), "dtype": "float32"},
        "pseudo": {"texts": 24, "max_tokens": 12},
        "teachers": {"count": 12, "stack": 4, "rank": 16, "shortlist": 128, "row_tokens": 64, "max_steps": 3},
        "votes": {"queries": 40, "top_k": 10},
        "student": {"rank_in": 8, "rank_out": 8, "steps": 5, "warm_steps": 5},
        "generation": {"texts": 8, "max_tokens": 10},
        "evaluation": {"completions": 4, "nonprivate_steps": 5},
        "resources": {"actors": 1, "cpus_per_actor": 0.5},  # each actor imports torch
    }
    path = folder / "talk.yaml"
    path.write_text(yaml.safe_dump(recipe))
    return Job(folder, path)


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
    recipe["training"] = {
        "sampling_rate": 0.4,
        "expected_batch": 10,
        "steps": 6,
        "chunk": 2,
        "max_records": 2,
        "max_tokens": 12,
    }
    recipe["generation"] = {"texts": 12, "max_tokens": 10}
    recipe["resources"] = {"cpus": 1, "actors": 1}
    job.recipe.write_text(yaml.safe_dump(recipe))
    return job
