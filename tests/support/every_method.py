"""The smallest job of every method that is registered, on a corpus of a few users."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from small_jobs import small_privacy
from small_tagger import INTENTS, SLOTS, labelled
from toy_knowledge import ATTRIBUTES

import rayprivacy as rp

USERS, SENTENCES = 3, 2
STEPS = {"sampling_rate": 0.5, "expected_batch": 2, "chunk": 1, "max_tokens": 14}
ONE_WORKER, FEW_TEXTS = {"cpus": 1}, {"texts": 4, "max_tokens": 6}
SAMPLED = {"evaluation": {"nonprivate_steps": 1}, "generation": FEW_TEXTS, "resources": {"cpus": 1, "actors": 1}}
TEACHERS = {"count": 12, "stack": 1, "rank": 16, "row_tokens": 64, "max_steps": 3}
# A method that is registered and has no blocks here fails: add its smallest job.
BLOCKS: dict[str, dict[str, Any]] = {
    "seqpate": {
        "pseudo": {"texts": 24, "max_tokens": 12},
        "teachers": TEACHERS,
        "votes": {"queries": 4, "top_k": 10},
        "student": {"steps": 2, "warm_steps": 2},
        "generation": FEW_TEXTS,
        "evaluation": {"completions": 0, "nonprivate_steps": 1},
        "resources": {"actors": 1, "cpus_per_actor": 0.5},
    },
    "generator": {"training": STEPS | {"steps": 1}, **SAMPLED},
    "santext": {
        "corpus": {"labels": ["intent"]},
        "privacy": {"epsilon": 9000.0},
        "sanitize": {"words": 300, "keep": 0.5, "max_tokens": 20},
        "evaluation": {"attacked": 4},
        "resources": {"parts": 12},
    },
    "two_stage": {
        "corpus": {"labels": ["parse"]},
        "parses": {"column": "parse", "max_tokens": 32},
        "stages": {"trees": {"steps": 1}, "utterances": {"steps": 1}},
        "training": STEPS,
        **SAMPLED,
    },
    "domain_private": {"redacted": {"schedule": "step"}, "training": STEPS | {"steps": 2}, **SAMPLED},
    "edp_sgd": {
        "model": {"layers": 1, "crf": True, "intents": INTENTS, "slots": SLOTS},
        "training": STEPS | {"steps": 1},
        "evaluation": {"nonprivate_steps": 1},
        "resources": ONE_WORKER,
    },
    "question_answering": {"training": STEPS | {"steps": 1}, "questions": None, **SAMPLED},
    "knowledge": {"knowledge": {"attributes": ATTRIBUTES[:2]}, "resources": {"parts": 12}},
    "profile": {"corpus": {"labels": ["intent"]}, "profile": {"keywords": 3}},
    "toy": {"generation": FEW_TEXTS},
    "toy_sanitised": {},
    "toy_selective": {"generation": FEW_TEXTS},
    "toy_twice": {"generation": FEW_TEXTS},
}
DEAR = ("toy_twice", "two_stage")  # three trainings, and two


def small_corpus(folder: Path, users: list[str]) -> Path:
    names = ("who", "said", "intent", "slots", "parse")
    rows = []
    for number in range(SENTENCES):
        for at, user in enumerate(users):
            text = ("we like soup today", "you go home now", "my cat sat on the mat")[(at + number) % 3]
            rows.append(dict(zip(names, (user, text, *labelled(text), "(Yield (Any))"), strict=True)))
    pq.write_table(pa.Table.from_pylist(rows), folder / "talk.parquet")
    return folder / "talk.parquet"


def smallest_recipe(name: str, folder: Path, base: Path, bert: Path, ledger: str = "ledger") -> rp.Recipe:
    every = {
        "corpus": {"source": str(folder / "talk.parquet"), "user": "who", "text": "said"},
        "privacy": small_privacy(folder, ledger) | {"epsilon": 20.0},
        "model": {"base": str(bert if name == "edp_sgd" else base), "dtype": "float32"},
    }
    own = BLOCKS[name]
    blocks = {block: every[block] | own.get(block, {}) if block in every else own[block] for block in every | own}
    return rp.load_recipe({"method": name, **blocks})
