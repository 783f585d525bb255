"""Where the toy's corpus may come from and where its run may lie: a Dataset, a URI, a cluster, the command line."""

import json

import pandas as pd
import pytest
import ray.data
from toy_bench import QUIET, SPOKEN
from toy_method import CHUNKS, LENGTHS
from typer.testing import CliRunner

import rayprivacy as rp
from rayprivacy.cli import app
from rayprivacy.runs.source import DATASET


def _rows(bench):
    return pd.read_parquet(bench.folder / "talk.parquet")


def _dataset(rows, blocks=3):
    return ray.data.from_pandas(rows.assign(unused="a column of no recipe")).repartition(blocks)


def test_a_dataset_is_a_corpus_and_other_rows_are_another(bench):
    overrides = {"corpus.source": DATASET, "privacy.epsilon": 3.0}
    result = bench.run(overrides=overrides, dataset=_dataset(_rows(bench)))
    assert (result.path / "private" / "source").stat().st_mode & 0o777 == 0o700
    assert SPOKEN not in "".join(path.read_text(errors="replace") for path in result.path.glob("*.*"))
    charged, before = bench.charges(), result.certificate
    again = bench.run(overrides=overrides, dataset=_dataset(_rows(bench).sample(frac=1), 5))
    assert again.certificate == before, "the order of rows and blocks is nothing of the corpus"
    without = bench.run(overrides=overrides)
    assert without.certificate == before, "it was written once"
    assert bench.charges() == charged
    other = bench.run(overrides=overrides, dataset=_dataset(_rows(bench).iloc[20:])).certificate
    assert other.corpus_digest != before.corpus_digest
    assert len(bench.charges()) == 8
    rp.clean(result.path)
    assert list((result.path / "private").iterdir()) == []


def test_a_dataset_that_does_not_fit_the_recipe_is_refused(bench):
    rows = _rows(bench)
    with pytest.raises(rp.ConfigError, match=r"a dataset was given, and corpus\.source is .*: set corpus\.source"):
        bench.run(dataset=_dataset(rows))
    with pytest.raises(rp.ConfigError, match=r"corpus\.source is 'dataset' and no dataset was given"):
        bench.run("other", {"corpus.source": DATASET})
    with pytest.raises(rp.CorpusError, match=r"corpus\.text is 'said', which is not a column of the corpus"):
        bench.run("third", {"corpus.source": DATASET}, dataset=_dataset(rows.drop(columns="said")))
    assert bench.charges() == []


def test_what_a_dataset_raises_is_withheld(bench):
    def _quote(rows):
        if len(rows):
            raise ValueError(f"cannot parse {rows['said'].iloc[0]}")
        return rows

    dataset = ray.data.from_pandas(_rows(bench)).map_batches(_quote, batch_format="pandas")
    with pytest.raises(rp.RayPrivacyError) as caught:
        bench.run(overrides={"corpus.source": DATASET}, dataset=dataset)
    assert SPOKEN not in str(caught.value)


def test_a_run_at_a_uri_is_finished_elsewhere(bench):
    uri = f"file://{bench.folder}/store"
    first, second = (rp.run(bench.load(), uri, work=bench.folder / name, console=QUIET) for name in ("one", "two"))
    assert first.uri == uri
    assert second.path != first.path
    assert second.certificate == first.certificate
    assert len(bench.charges()) == 4
    assert rp.report(uri, public=True, work=bench.folder / "three") == f"{uri}/report-public.html"
    stored = [path for path in (bench.folder / "store").rglob("*") if path.is_file()]
    assert not any(SPOKEN.encode() in path.read_bytes() for path in stored)
    assert rp.clean(uri, work=bench.folder / "two").deleted


def test_the_command_line_is_the_same(bench):
    def call(*words):
        return CliRunner().invoke(app, words)

    shown, out = call("plan", str(bench.recipe)), str(bench.folder / "out")
    assert LENGTHS in shown.output
    assert CHUNKS in shown.output
    done = call("run", str(bench.recipe), "--out", out)
    assert done.exit_code == 0, done.output
    assert "synthetic text" in done.output
    assert isinstance(call("run", str(bench.recipe), "--out", out).exception, rp.ConfigError)
    assert call("audit", out, "--users", "10", "--json").exit_code == 0
    assert call("report", out, "--public").output.strip().endswith("report-public.html")
    assert "deleted" in call("clean", out).output
    assert "ToyRecipe" in json.loads(call("schema").output)["$defs"]
