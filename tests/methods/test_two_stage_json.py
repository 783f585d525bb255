"""Two-stage generation of requests whose structure is JSON, which a public parser reads off them, up to the release."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from jsonschema import validate
from small_jobs import Job
from small_trees import SCHEMA, small_recipe, write_requests

from rayprivacy.structures.trees import names

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, tiny_base: Path, local_ray: Path) -> Job:
    pytest.importorskip("xgrammar")
    folder = tmp_path_factory.mktemp("requests")
    write_requests(folder, users=14, turns=2)
    recipe = small_recipe(folder, tiny_base)
    recipe["corpus"] |= {"source": str(folder / "requests.parquet"), "labels": [], "holdout": 0.4}
    rules = {"grammar": "json", "rules": str(folder / "schema.json")}
    recipe["parses"] = {"column": "structure", "max_tokens": 48, **rules}
    pairs = {"source": str(folder / "pairs.parquet"), "text": "said"}
    recipe["parser"] = {**pairs, "steps": 80, "batch": 8, "learning_rate": 0.01}
    recipe["stages"] = {"trees": {"steps": 2}, "utterances": {"steps": 2}}
    job = Job.of(folder, recipe)
    finished = job.run("out")
    assert finished.returncode == 0, finished.stderr
    return job


def _names(trees: Iterable[str]) -> set[str]:
    return {name for tree in trees for name in names(tree, frozenset({"Play", "Stop"})) or ()}


def test_every_structure_that_is_released_follows_the_schema(done: Job) -> None:
    rows = pq.read_table(done.folder / "out" / "synthetic.parquet").to_pylist()
    figures = done.metrics("out")["synthetic"]["trees"]
    assert len(rows) == figures["written"] > 6
    assert figures["masked_draws"] >= len(rows)
    assert "free_draws" not in figures
    assert figures["pass_rate"] is None
    for row in rows:
        validate(json.loads(row["parse"]), SCHEMA)
        assert row["functions"] == " ".join(names(row["parse"], frozenset({"Play", "Stop"})) or ())


def test_private_trees_are_what_the_parser_reads_and_stay_inside(done: Job) -> None:
    out = done.folder / "out"
    gold = {row["said"]: row["structure"] for row in pq.read_table(done.folder / "requests.parquet").to_pylist()}
    parts = sorted((out / "private" / "shards").glob("*.parquet"))
    rows = [row for path in parts for row in pq.read_table(path, partitioning=None).to_pylist()]
    assert len(rows) > 15
    assert sum(row["structure"] == gold[row["text"]] for row in rows) > 0.6 * len(rows)
    figures, public = done.metrics("out"), done.metrics("out")["synthetic"]["parser"]
    assert public["exact"] > 0.5
    assert public["loss_after"] < public["loss_before"]
    heldout = [row["structure"] for row in rows if row["shard"] == -1]
    assert figures["trees"]["tree_share"] == round(sum(names(tree) is not None for tree in heldout) / len(heldout), 4)
    certificate = done.certificate("out")
    assert any("one record at a time" in sentence for sentence in certificate["assumptions"])
    assert sum(row["count"] for row in certificate["events"]) == 2 + 2, "the parser is charged for nothing"
    assert not list(out.glob("private/parsing/*"))


def test_figures_count_keys_and_intents_of_json(done: Job) -> None:
    trees, out = done.metrics("out")["trees"], done.folder / "out"
    assert not trees["releasable"]
    written = _names(pq.read_table(out / "synthetic.parquet")["parse"].to_pylist())
    real = _names(pq.read_table(out / "private" / "shards" / "holdout.parquet")["structure"].to_pylist())
    assert real >= {"intent", "slots"}
    assert trees["function_recall"] == round(len(real & written) / len(real), 4)
    shares = [share for share, _ in trees["function_shares"]]
    assert len(shares) == len(real), "a point for each function of held-out text"
    assert sum(shares) == pytest.approx(1)
    assert shares == sorted(shares, reverse=True)
    assert "Share of each function" in (out / "report.html").read_text()


def test_the_corpus_of_the_packaged_job_follows_its_schema(
    tmp_path: Path, tiny_backbone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import snips

    from rayprivacy.structures.grammar import read_rules
    from rayprivacy.structures.masks import matcher_of

    tags = {"play the song imagine": "O O O B-track", "stop the film now": "O O B-track I-track"}
    rows = [
        {"split": split, "intent": "PlayMusic", "tokens": text.split(), "bio": bio.split(), "text": text}
        for split in ("train", "valid")
        for text, bio in [*tags.items()] * 5
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "snips_intents_slots.parquet")
    snips.prepare(tmp_path, tmp_path / "out")
    tables = {name: pq.read_table(tmp_path / "out" / f"{name}.parquet").to_pylist() for name in snips.PARTS}
    assert {name: len(table) for name, table in tables.items()} == {"private": 9, "public": 1, "dev": 10}
    everybody = [row["request"] for table in tables.values() for row in table]
    assert len(set(everybody)) == 20
    matcher = matcher_of(read_rules(str(snips.SCHEMA), "json", "rules"), tiny_backbone, tiny_backbone.head.shape[0])
    assert all(matcher.accepts(row["structure"]) for table in tables.values() for row in table)
    assert tables["dev"][-1]["structure"] == '{"intent": "PlayMusic", "slots": {"track": "film now"}}'
