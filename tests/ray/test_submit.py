"""Recipes as jobs of a real cluster that asks for a token: one release is one job, and one charge, however it ends."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from head_node import TOKEN, Head, wait_for
from small_jobs import job_of, ledger_lines, run_command, write_talk
from toy_method import LENGTHS

from rayprivacy.methods.registry import load_recipe

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]

PAID = ["committed"] * 4  # a histogram and three chunks


@dataclass(frozen=True)
class Work:
    folder: Path
    head: Head
    recipe: Path

    @property
    def release(self):
        return load_recipe(self.recipe).release_id

    def submit(self, *args, out="out", token=None):
        words = ["submit", str(self.recipe), "--address", self.head.address, "--out", str(self.folder / out)]
        words += ["--token-file", str(token or self.head.token), *args]
        # Ray prefers RAY_ADDRESS to the address that it is given; we do not.
        env = os.environ | {"RAY_ADDRESS": "http://127.0.0.1:1", "COLUMNS": "200"}
        return run_command(words, self.folder, env=env)

    def jobs(self):
        return [job for job in self.head.client().list_jobs() if job.submission_id == self.release]

    def charges(self):
        return [state for _, _, state in ledger_lines(self.folder)]

    def certificate(self, out="out"):
        return dict(json.loads((self.folder / out / "certificate.json").read_text()))


@pytest.fixture
def work(tmp_path, tiny_base, head):
    """The toy: what is submitted does not depend on the method."""
    write_talk(tmp_path / "talk.parquet")
    noise = {"noise_multiplier": 4.0}  # one release fits the account, and two do not
    return Work(tmp_path, head, job_of(tmp_path, tiny_base, method="toy", toy=noise).recipe)


@pytest.mark.exhaustive
def test_a_release_is_one_job_and_one_charge(work):
    done = work.submit("--wait")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "epsilon = 3" in done.stdout  # the job's own log
    assert work.certificate()["release_id"] == work.release
    (job,) = work.jobs()
    assert job.driver_exit_code == 0
    assert {"method": "toy", "account": "talk", "release": work.release}.items() <= job.metadata.items()
    assert TOKEN not in job.model_dump_json()

    again = work.submit("--wait")
    assert again.returncode == 0, again.stdout + again.stderr
    assert "has succeeded" in again.stdout
    assert work.jobs() == [job]
    assert work.charges() == PAID

    elsewhere = work.submit("--wait", out="other")
    assert elsewhere.returncode == 2, elsewhere.stdout
    assert "ray job delete" in elsewhere.stderr
    assert work.jobs() == [job]


@pytest.mark.exhaustive
def test_a_second_release_that_the_account_cannot_pay_is_refused_where_it_runs(work):
    assert work.submit("--wait").returncode == 0
    refused = work.submit("-o", "seed=1", "--wait", out="third")
    assert refused.returncode == 3, refused.stdout + refused.stderr
    assert "Traceback" not in refused.stdout
    assert not (work.folder / "third").exists()
    assert work.charges() == PAID


@pytest.mark.exhaustive
def test_a_stopped_job_is_submitted_again_and_finishes_with_one_charge(work):
    # It waits for machines that do not come, longer than any test: when it is stopped, it certainly still runs.
    first = work.submit("-o", f"resources.stages=[{{stage: {LENGTHS}, cpus: 1000}}]")
    assert first.returncode == 0, first.stdout + first.stderr
    assert f"ray job logs {work.release} --follow" in first.stdout
    attached = work.submit()
    assert "nothing was submitted" in attached.stdout
    wait_for(lambda: '"done"' in (work.folder / "out" / "run.log").read_text())  # the corpus
    client = work.head.client()
    assert client.stop_job(work.release)
    wait_for(lambda: client.get_job_info(work.release).status == "STOPPED")
    assert not (work.folder / "out" / "certificate.json").exists()
    assert work.charges() == []

    again = work.submit("--wait")
    assert again.returncode == 0, again.stdout + again.stderr
    assert "again" in again.stdout
    assert again.stdout.count("Running entrypoint") == 1, "the log of the stopped attempt was shown too"
    assert work.certificate()["release_id"] == work.release
    assert len(work.jobs()) == 1
    assert work.charges() == PAID


@pytest.mark.exhaustive
def test_the_package_can_be_shipped_and_a_bad_input_keeps_its_exit_code(work):
    recipe = yaml.safe_load(work.recipe.read_text()) | {"method": "seqpate"}
    work.recipe.write_text(yaml.safe_dump({key: block for key, block in recipe.items() if key != "toy"}))
    shipped = work.folder / "shipped"
    (shipped / "runs").mkdir(parents=True)
    for name in ("openers.txt", "secret.key", "runs/talk.txt"):
        (shipped / name).write_text("not one prompt's worth\n" if name != "openers.txt" else "\n")
    failed = work.submit("-o", "prompts=openers.txt", "--working-dir", str(shipped), "--wait")
    assert failed.returncode == 2, failed.stdout + failed.stderr
    assert "openers.txt has no prompt" in failed.stdout  # so it arrived
    (job,) = [job for job in work.head.client().list_jobs() if "openers" in str(job.message)]
    assert job.driver_exit_code == 2


def test_a_wrong_token_is_one_sentence(work):
    wrong = work.folder / "wrong"
    wrong.touch(0o600)
    wrong.write_text("f" * 64)
    refused = work.submit(token=wrong)
    assert refused.returncode == 2, refused.stdout + refused.stderr
    assert "--token-file" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert "f" * 64 not in refused.stderr
    wrong.chmod(0o644)
    assert "chmod 600" in work.submit(token=wrong).stderr
    assert work.jobs() == []
