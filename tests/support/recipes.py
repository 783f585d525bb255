"""The blocks of a recipe that runs in seconds on the tiny model."""

from typing import Any

TRAINING: dict[str, Any] = {"sampling_rate": 0.4, "expected_batch": 10, "max_records": 2, "max_tokens": 12}
TRAINING |= {"steps": 4, "chunk": 2}
SEQPATE: dict[str, Any] = {
    "method": "seqpate",
    "pseudo": {"texts": 24, "max_tokens": 12},
    "teachers": {"count": 12, "stack": 4, "rank": 16, "row_tokens": 64, "max_steps": 3},
    "votes": {"queries": 40, "top_k": 10},
    "student": {"steps": 5, "warm_steps": 5},
    "generation": {"texts": 8, "max_tokens": 10},
    "resources": {"actors": 1, "cpus_per_actor": 0.5},  # each actor imports torch
}
EVALUATION = {"completions": 4, "nonprivate_steps": 5}
GENERATOR: dict[str, Any] = {
    "method": "generator",
    "codes": {"values": {"topic": ["food", "pets"]}},
    "training": TRAINING,
    "generation": {"texts": 12, "max_tokens": 10},
    "evaluation": EVALUATION,
    "resources": {"cpus": 1, "actors": 1},
}
