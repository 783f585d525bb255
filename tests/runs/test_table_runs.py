"""Every kind of source makes the same shards; a table is read at the version with which its run began."""

import json
import os
import shutil
import signal
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray.data
import table_sources
from santext_bench import charges_of, ledger_of, santext_bench
from table_sources import MORE, NUMBERED, TABLES
from toy_bench import QUIET

import rayprivacy as rp
from rayprivacy.corpus.manifest import read_part
from rayprivacy.corpus.shards import shard_corpus
from rayprivacy.methods.santext.recipe import SanTextRecipe
from rayprivacy.runs import source
from rayprivacy.runs.directory import Run
from rayprivacy.runs.source import DATASET
from rayprivacy.work import mapping


class Copies:
    """Runs of one key, as far as their shards."""

    def __init__(self, bench):
        self.bench = bench

    def shards(self, name, place, dataset=None, **changes):
        run = Run.open(self.bench.folder / name, self.bench.load({"corpus.source": place, **changes}), resume=True)
        source.settle_source(run, dataset)
        out = run.private("shards")
        key, version = source._key_path(run), source.version_of(run)
        manifest = shard_corpus(source.corpus_of(run), key, 3, 1, out, version=version)
        return run, manifest, [entry.sha256 for entry in manifest.files]

    def users(self, name):
        folder = self.bench.folder / name / "private" / "shards"
        return {user for part in range(3) for user in read_part(folder, part)["user"].to_pylist()}


@pytest.fixture
def copies(bench):
    return Copies(bench)


@pytest.fixture
def expected(copies, tmp_path):
    return copies.shards("files", table_sources.parquet(tmp_path, NUMBERED))[2]


def _written_in_two(write, folder):
    write(folder, NUMBERED.slice(0, 50))
    return write(folder, NUMBERED.slice(50))


def test_a_dataset_makes_the_shards_of_files(copies, expected):
    dataset = ray.data.from_arrow([NUMBERED.slice(60), NUMBERED.slice(0, 60)])
    run, manifest, made = copies.shards("run", DATASET, dataset)
    assert made == expected
    assert manifest.version == ""
    copied = sorted((run.root / "private" / "source").iterdir())
    assert {path.stat().st_mode & 0o777 for path in copied} == {0o600}
    assert [path.name for path in copied] == [".stamp", "00000000.parquet"]
    assert pq.read_schema(copied[1]).names == ["who", "said"], "the recipe's columns and no other"


def test_a_copy_that_loses_its_processes_again_and_again_is_given_up(copies, monkeypatch):
    def dies(rows):
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(mapping, "LOSSES", 1)
    monkeypatch.setattr(source, "_plain", dies)
    with pytest.raises(rp.CorpusError, match="lost processes again and again"):
        copies.shards("run", DATASET, ray.data.from_arrow([NUMBERED]))


def test_values_that_only_python_knows_make_the_shards_of_files(copies, tmp_path):
    """A text with half of a surrogate pair and ids that are UUIDs, beside the same rows in JSONL."""
    rows = [{"who": UUID(int=number), "said": f"text {number} \ud83d end"} for number in range(20)]
    lines = [json.dumps({"who": str(row["who"]), "said": row["said"]}) for row in rows]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    expected = copies.shards("files", str(tmp_path / "rows.jsonl"))[2]
    assert copies.shards("run", DATASET, ray.data.from_items(rows))[2] == expected


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_makes_the_shards_of_files_at_the_version_it_began_with(copies, expected, tmp_path, kind):
    place = _written_in_two(TABLES[kind], tmp_path)
    run, manifest, made = copies.shards("run", place)
    assert made == expected
    TABLES[kind](tmp_path, MORE)
    table_sources.delete_before(kind, place, 100)
    assert copies.shards("run", place)[1:] == (manifest, made), "the copy is there"
    shutil.rmtree(run.root / "private")
    assert copies.shards("run", place)[1].version == manifest.version, "the old version is read again"
    assert copies.shards("run", place)[2] == made
    _, other, _ = copies.shards("other", place)
    assert other.version != manifest.version
    left = {"eve", "dan", *(f"user-{n % 30}" for n in range(100, 120))}
    assert copies.users("other") <= left, "no deleted row is read"


def test_a_saved_dataset_of_hugging_face_makes_the_shards_of_files(copies, expected, tmp_path):
    place = table_sources.hugging_face(tmp_path, NUMBERED)
    run, manifest, made = copies.shards("run", place)
    assert made == expected
    assert manifest.version.startswith("Hugging Face dataset, keyed digest ")
    table_sources.hugging_face(tmp_path, MORE)
    assert copies.shards("run", place)[1] == manifest, "the copy is there"
    shutil.rmtree(run.root / "private")
    assert copies.shards("other", tmp_path.joinpath("saved").as_uri(), **{"corpus.holdout": 0.0})[1].users == 2


def test_a_run_says_its_version_and_is_resumed_with_it(bench):
    place = table_sources.delta(bench.folder, NUMBERED)
    made = bench.run("run", {"corpus.source": place})
    certificate = made.certificate
    assert certificate.versions["corpus"] == "Delta table, version 0"
    assert "Public input: which version of the corpus was read (Delta table, version 0)." in certificate.assumptions
    charged = bench.charges()
    table_sources.delta(bench.folder, MORE)
    shutil.rmtree(made.path / "private")
    assert bench.run("run", {"corpus.source": place}).certificate == certificate
    assert bench.charges() == charged


@pytest.mark.exhaustive  # six runs
def test_a_folder_a_dataset_and_tables_release_the_same_bytes(tmp_path, tiny_base, local_ray, monkeypatch):
    """SanText knows rows by their place and coins by the release, which its source names, too: here all have one name,
    and one order.
    """
    monkeypatch.setattr(SanTextRecipe, "release_id", "santext-of-one-name")
    bench, rows, released = santext_bench(tmp_path, tiny_base), NUMBERED.select(["who", "said"]), {}
    (tmp_path / "files").mkdir()
    pq.write_table(rows, tmp_path / "files" / "all.parquet")
    places = {"folder": str(tmp_path / "files"), "dataset": DATASET}
    places |= {kind: write(tmp_path, NUMBERED) for kind, write in TABLES.items()}
    places["saved"] = table_sources.hugging_face(tmp_path, NUMBERED)
    for kind, place in places.items():
        dataset = ray.data.from_arrow([rows.slice(0, 60), rows.slice(60)]) if kind == "dataset" else None
        recipe = bench.load({"corpus.source": place, "privacy.ledger": ledger_of(bench, kind)})
        result = rp.run(recipe, tmp_path / kind, dataset=dataset, console=QUIET)
        released[kind] = result.certificate.corpus_digest, (result.path / "sanitized.parquet").read_bytes()
        assert charges_of(bench, kind) == 1
    assert len({*released.values()}) == 1, released.keys()


def test_a_table_that_does_not_fit_is_refused_before_it_is_read(bench):
    place = table_sources.delta(bench.folder, NUMBERED.rename_columns(["who", "text", "number"]))
    with pytest.raises(rp.CorpusError, match=r"corpus\.text is 'said', which is not a column.* choose of who, text"):
        bench.run("run", {"corpus.source": place})
    table_sources.delta(bench.folder / "again", NUMBERED)
    assert bench.charges() == []
    with pytest.raises(rp.ConfigError, match=r"corpus\.source is a Delta table, of which each trial"):
        rp.tune(bench.space(fixed={"corpus": {"source": place}}), out=bench.folder / "search", console=QUIET)


def test_files_of_a_copy_follow_from_rows_and_their_order(copies, monkeypatch):
    monkeypatch.setattr(source, "_ROWS", 16)
    halves = [NUMBERED.slice(0, 16), NUMBERED.slice(0, 16), NUMBERED.slice(16)]  # two files of equal rows
    rows, made = pa.concat_tables(halves), {}
    for blocks in (3, 7):
        cut = [rows.slice(at, -(-len(rows) // blocks)) for at in range(0, len(rows), -(-len(rows) // blocks))]
        run, _, _ = copies.shards(f"run-{blocks}", DATASET, ray.data.from_arrow(cut))
        files = sorted((run.root / "private" / "source").glob("*.parquet"))
        made[blocks] = [path.read_bytes() for path in files]
        assert pa.concat_tables(map(pq.read_table, files)).equals(rows.select(["who", "said"]))
    assert made[3] == made[7]
    assert made[3][0] == made[3][1]
