"""Every method over a corpus all of whose users fall into one part file: whether a part holds anybody is private."""

from itertools import count, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_jobs import known_key
from small_tagger import INTENTS, SLOTS, labelled
from toy_bench import QUIET

import rayprivacy as rp
from rayprivacy.core.keys import load_key
from rayprivacy.corpus.layout import Layout
from rayprivacy.corpus.manifest import read_manifest
from rayprivacy.runs.plan import Plan

pytestmark = [pytest.mark.usefixtures("local_ray"), pytest.mark.timeout(600)]

USERS, SENTENCES = 3, 2
STEPS = {"sampling_rate": 0.5, "expected_batch": 2, "chunk": 1, "max_tokens": 14}
ONE_WORKER, FEW_TEXTS = {"cpus": 1}, {"texts": 4, "max_tokens": 6}
SAMPLED = {"evaluation": {"nonprivate_steps": 1}, "generation": FEW_TEXTS, "resources": {"cpus": 1, "actors": 1}}
TEACHERS = {"count": 12, "stack": 1, "rank": 16, "shortlist": 128, "row_tokens": 64, "max_steps": 3}
# A method that is registered and has no blocks here fails: add its smallest job.
BLOCKS: dict[str, dict[str, Any]] = {
    "seqpate": {
        "pseudo": {"texts": 24, "max_tokens": 12},
        "teachers": TEACHERS,
        "votes": {"queries": 4, "top_k": 10},
        "student": {"rank_in": 8, "rank_out": 8, "steps": 2, "warm_steps": 2},
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
    "toy": {"generation": FEW_TEXTS},
    "toy_sanitised": {},
    "toy_selective": {"generation": FEW_TEXTS},
    "toy_twice": {"generation": FEW_TEXTS},
}
DEAR = ("toy_twice", "two_stage")  # three trainings, and two


def _corpus(folder: Path, users: list[str]) -> Path:
    rows = []
    for number in range(SENTENCES):
        for at, user in enumerate(users):
            text = ("we like soup today", "you go home now", "my cat sat on the mat")[(at + number) % 3]
            rows.append((user, text, *labelled(text), "(Yield (Any))"))
    columns = zip(("who", "said", "intent", "slots", "parse"), map(list, zip(*rows, strict=True)), strict=True)
    pq.write_table(pa.table(dict(columns)), folder / "talk.parquet")
    return folder / "talk.parquet"


def _recipe(name: str, folder: Path, base: Path) -> rp.Recipe:
    every = {
        "corpus": {"source": str(folder / "talk.parquet"), "user": "who", "text": "said"},
        "privacy": {
            "ledger": f"sqlite:///{folder}/ledger.db",
            "key": known_key(folder),
            "account": "talk",
            "epsilon": 20.0,
        },
        "model": {"base": str(base), "dtype": "float32"},
    }
    own = BLOCKS[name]
    blocks = {block: every.get(block, {}) | own.get(block, {}) for block in every.keys() | own.keys()}
    return rp.load_recipe({"method": name, **blocks})


def _of_one_part(recipe: rp.Recipe, plan: Plan) -> list[str]:
    """Names of users whom the key puts into the first part."""
    layout = Layout(recipe.sharded_corpus, plan.shards, plan.shards_per_part, recipe.privacy.unit)
    key = load_key(Path(recipe.privacy.key))
    names = (f"user-{number}" for number in count())
    return list(islice((name for name in names if layout.part_of(layout.shard_of(key, name)) == 0), USERS))


def _cases() -> list[Any]:
    dear = (pytest.mark.exhaustive, pytest.mark.slow)
    return [pytest.param(name, marks=dear if name in DEAR else ()) for name in rp.method_names()]


@pytest.mark.parametrize("name", _cases())
def test_a_method_runs_where_parts_of_the_corpus_hold_nobody(
    name: str, tmp_path: Path, tiny_base: Path, tiny_bert: Path
) -> None:
    recipe = _recipe(name, tmp_path, tiny_bert if name == "edp_sgd" else tiny_base)
    plan = rp.plan(recipe).plan
    _corpus(tmp_path, _of_one_part(recipe, plan))
    result = rp.run(recipe, tmp_path / "out", console=QUIET)
    manifest = read_manifest(result.path / "private" / "shards")
    assert [entry.rows for entry in manifest.parts] == [USERS * SENTENCES, *[0] * (plan.parts - 1)]
    assert manifest.holdout.rows == 0
    assert result.certificate.release_id == recipe.release_id
