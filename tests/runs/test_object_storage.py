"""Real runs kept in S3, killed on one machine, finished on another that shares corpus, key and ledger: one charge."""

import json
import signal
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import command
from s3_server import serving

pytestmark = pytest.mark.slow

DIE = "os.kill(os.getpid(), signal.SIGKILL)"
SEQPATE = f"from rayprivacy.methods.seqpate import method\nmethod._distilled = lambda *_: {DIE}"
GENERATOR = f"from rayprivacy.methods.generator import method\nmethod._write = lambda *_: {DIE}"
SPOKEN = b"the cat sat on my mat"  # words in a row that no public text has


@pytest.fixture(scope="module")
def bucket():
    with serving() as found:
        yield found


def machine(job, number):
    return ["--work", str(job.folder / f"machine-{number}")]


def finished_elsewhere(job, uri, patch, *options):
    """Killed on the first machine when the charge is committed, finished on the second from what the store has."""
    assert job.killed(uri, patch, *machine(job, 1), alone=True).returncode == -signal.SIGKILL
    before, words = job.kinds(), ["run", str(job.recipe), "--out", uri, *machine(job, 2)]
    assert "commit" in before
    refused = job.call(*words)
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"rayprivacy: {uri.partition('?')[0]} holds a run already")
    resumed = job.call(*words, "--resume", *options)
    assert resumed.returncode == 0, resumed.stderr
    assert job.kinds() == before, "the second machine was charged, or drew, again"
    assert "endpoint" not in resumed.stdout + resumed.stderr
    return resumed


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_seqpate_goes_on_elsewhere_without_its_private_files_and_with_them(job, bucket):
    uri = bucket.uri("seqpate")
    finished_elsewhere(job, uri, SEQPATE, "--mirror-private")
    certificate, began = bucket.read("seqpate/certificate.json"), time.time()
    # The second run mirrored its private files, so a third machine has no teacher to train.
    third = ["run", str(job.recipe), "--out", uri, "--resume", *machine(job, 3), "--mirror-private"]
    assert job.call(*third).returncode == 0
    assert bucket.read("seqpate/certificate.json") == certificate
    assert job.kinds() == ["create", "reserve", "start", "commit"]
    folders = [job.folder / f"machine-{number}" / "private" / "teachers" for number in (1, 2, 3)]
    first, *others = ({path.name: path.read_bytes() for path in each.glob("*.safetensors")} for each in folders)
    assert others == [first, first], "the second machine trained them anew, from nothing of the first"
    log = [json.loads(line) for line in (job.folder / "machine-3" / "run.log").read_text().splitlines()]
    training = next(line["time"] for line in log if line["time"] > began and line["stage"] == "teachers")
    assert all(path.stat().st_mtime < training for path in folders[2].iterdir())
    cleaned = job.call("clean", uri, *machine(job, 4))
    assert "private files in s3://runs/seqpate" in cleaned.stdout
    assert b'"private/' not in bucket.read("seqpate/manifest.json")
    assert pq.read_table(pa.BufferReader(bucket.read("seqpate/synthetic.parquet"))).num_rows == 8


@pytest.mark.timeout(900)
@pytest.mark.exhaustive
def test_the_generator_goes_on_elsewhere_with_the_weights_that_were_released(generator, bucket):
    uri = bucket.uri("generator")
    resumed = finished_elsewhere(generator, uri, GENERATOR)
    public = [generator.folder / f"machine-{number}" / "public" for number in (1, 2)]
    first, second = (next(folder.glob("trained-*.safetensors")).read_bytes() for folder in public)
    assert first == second
    assert not (generator.folder / "machine-2/private/training").exists(), "it trained again"
    assert "s3://runs/generator/synthetic.parquet" in resumed.stdout
    assert {"synthetic.parquet", "certificate.json", "report.html", "model/config.json"} <= bucket.names("generator")
    stored = bucket.everything("generator")
    assert SPOKEN not in stored
    assert b'"private/' not in stored
    assert (generator.folder / "secret.key").read_bytes() not in stored
    report = generator.call("report", uri, "--public", *machine(generator, 3))
    assert report.stdout.strip() == "s3://runs/generator/report-public.html"
    assert b"<html" in bucket.read("generator/report-public.html")


def test_options_for_a_uri_do_not_go_with_a_path(tmp_path):
    (tmp_path / "recipe.yaml").write_text("method: generator\n")
    failed = command(["run", "recipe.yaml", "--out", "plain", "--mirror-private"], tmp_path)
    assert failed.returncode == 2
    assert "--mirror-private" in failed.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.yaml"]
