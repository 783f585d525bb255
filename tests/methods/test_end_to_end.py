"""One recipe through the whole house, by the command line, as a user would run it."""

import json
import stat
import subprocess
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rayprivacy.ledger.store import Ledger
from rayprivacy.teachers.workspace import Workspace

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
Done = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def first(shared_job: Any) -> Done:
    """One undisturbed run, which several tests look at and none changes."""
    done: Done = shared_job.run("first")
    assert done.returncode == 0, done.stderr
    return done


def stored_votes(job: Any) -> bytes:
    ledger = Ledger.open(f"sqlite:///{job.folder}/ledger.db")
    release = next(entry.release_id for entry in ledger.entries("talk") if entry.release_id)
    (charge,) = ledger.charges_of("talk", release)
    output = ledger.output(charge)
    ledger.close()
    assert output is not None
    return output


def teachers(out: Path) -> dict[str, bytes]:
    """The tensors of all 12 teachers, however they lie in files."""
    state = Workspace(out / "private" / "teachers", "any").read(range(12))
    return {name: tensor.numpy().tobytes() for name, tensor in state.items()}


def test_a_run_leaves_everything_it_promises(shared_job: Any, first: Done) -> None:
    out = shared_job.folder / "first"
    certificate = shared_job.certificate("first")
    assert (certificate["epsilon"], certificate["delta"], certificate["unit"]) == (3.0, 1e-6, "user")
    assert certificate["events"][0]["count"] == 40
    assert pq.read_table(out / "synthetic.parquet").num_rows == 8
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["synthetic"]["releasable"] is True
    assert metrics["heldout"]["releasable"] is False
    assert set(metrics["heldout"]["perplexity"]) == {"base", "base_pseudo", "student", "nonprivate"}
    assert "epsilon = 3" in first.stdout
    assert "internal" in first.stdout
    for name in ("recipe.yaml", "certificate.md", "report.html", "run.log", "model/config.json", "model/README.md"):
        assert (out / name).is_file(), name
    assert shared_job.kinds().count("commit") == 1


def test_private_things_stay_private(shared_job: Any, first: Done) -> None:
    out = shared_job.folder / "first"
    secret = (shared_job.folder / "secret.key").read_bytes()
    for path in [shared_job.folder / "secret.key", *(out / "private").rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path.name
    shared = [path for path in out.rglob("*") if path.is_file() and "private" not in path.relative_to(out).parts]
    spoken = "the cat sat on my mat"  # a run of private words that no public text has
    for text in [first.stdout.encode(), first.stderr.encode(), *(path.read_bytes() for path in shared)]:
        assert secret not in text
        assert secret.hex().encode() not in text
        assert b"user-7" not in text
        assert spoken.encode() not in text


@pytest.mark.usefixtures("first")
def test_performance_settings_change_nothing_that_is_released(shared_job: Any) -> None:
    votes = stored_votes(shared_job)
    again = shared_job.run("second", "-o", "resources.actors=2")
    assert again.returncode == 0, again.stderr
    assert teachers(shared_job.folder / "first") == teachers(shared_job.folder / "second")
    assert stored_votes(shared_job) == votes
    assert shared_job.kinds().count("commit") == 1
    first, second = (shared_job.folder / name / "synthetic.parquet" for name in ("first", "second"))
    assert pq.read_table(first).equals(pq.read_table(second))
    assert shared_job.certificate("first") == shared_job.certificate("second")


@pytest.mark.usefixtures("first")
def test_the_account_refuses_before_any_work(shared_job: Any) -> None:
    refused = shared_job.run("refused", "-o", "seed=1")
    assert refused.returncode == 3
    assert refused.stderr.count("\n") == 1
    assert "3" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not (shared_job.folder / "refused").exists()
    assert shared_job.kinds().count("commit") == 1


@pytest.mark.exhaustive
def test_another_corpus_is_another_charge(job: Any) -> None:
    book = ["ledger", "create", "--ledger", f"sqlite:///{job.folder}/ledger.db", "--account", "talk", "--epsilon", "8"]
    created = job.call(*book)
    assert created.returncode == 0, created.stderr
    assert job.run("first").returncode == 0
    before = job.certificate("first")
    table = pq.read_table(job.folder / "talk.parquet")
    # Half of the users go: one alone might be a held-out user, whose absence changes no vote and costs nothing.
    pq.write_table(table.slice(60), job.folder / "talk.parquet")
    grown = job.run("first", "--resume")
    assert grown.returncode == 0, grown.stderr
    assert job.kinds().count("commit") == 2
    # No parameter follows the corpus: with half of the users, the certificate differs in digests and spending alone.
    after, changed = job.certificate("first"), {"corpus_digest", "ledger_head", "spent_diagnostic", "events"}
    assert {name for name in before if before[name] != after[name]} == changed
    assert after["events"] == before["events"] * 2  # one for each corpus
    assert len(list((job.folder / "first" / "public").glob("student-*.safetensors"))) == 2


def test_bad_input_is_one_sentence(job: Any) -> None:
    for option, word in (("corpus.usr=who", "corpus.user"), ("privacy.epsilon=-1", "epsilon"), ("corpus.text=x", "x")):
        failed = job.run("bad", "-o", option)
        assert failed.returncode == 2, failed.stderr
        assert word in failed.stderr
        assert "Traceback" not in failed.stderr
    assert "commit" not in job.kinds()


@pytest.mark.exhaustive
def test_the_real_model_on_real_chat(job: Any) -> None:
    small = [
        "model={base: smollm2-135m, dtype: bfloat16}",
        "corpus={source: chitchat, max_records_per_user: 1}",
        "teachers={count: 20, stack: 10, max_rows: 2}",
        "pseudo={texts: 24, max_tokens: 12}",
        "evaluation={users: 5, completions: 2, nonprivate_steps: 2}",
        "generation={texts: 8, max_tokens: 12}",
    ]
    done = job.run("real", *(part for option in small for part in ("-o", option)))
    assert done.returncode == 0, done.stderr
    texts = pq.read_table(job.folder / "real" / "synthetic.parquet")["text"].to_pylist()
    assert len(set(texts)) > 4
    assert all(texts)
    perplexity = json.loads((job.folder / "real" / "metrics.json").read_text())["heldout"]["perplexity"]
    assert 20 < perplexity["nonprivate"] < perplexity["base"] < 2000
