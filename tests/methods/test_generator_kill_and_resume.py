"""SIGKILL of a worker and of the whole job in a real run: the same certificate and model, charged once."""

import signal

import pytest
from dying import dying
from small_jobs import Job

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]  # test_two_stage_run.py and tests/cluster kill such trainings

MID_CHUNK, SAVED = "progress 3", "step-00000002"


def _same_as_undisturbed(job: Job, *options: str) -> None:
    """A run that nobody disturbs, of the same release: it ends in the same model, or it would be refused."""
    undisturbed = job.run("undisturbed", *options)
    assert undisturbed.returncode == 0, undisturbed.stderr
    assert job.certificate("undisturbed") == job.certificate("out")
    for name in ("model/model.safetensors", "synthetic.parquet"):
        assert (job.folder / "undisturbed" / name).read_bytes() == (job.folder / "out" / name).read_bytes()
    assert job.kinds() == ["create", *["reserve", "start", "commit"] * 3]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("more", [True, False])
def test_a_job_and_then_a_worker_die_and_the_run_is_finished(generator: Job, more: bool) -> None:
    """With noise that must be made again; with all of eDP-SGD."""
    schedule = tuple(f"noise_schedule.{key}" for key in ("kind=linear", "tau=0.5", "steps_per_epoch=2"))
    (generator.folder / "public.csv").write_text("text\nthe cat sat on my mat\na dog ate the food\n")
    scales = ("layer_scale.from=public", f"layer_scale.source={generator.folder}/public.csv")
    edp = ("microbatches=16", *schedule, *scales)
    keys = ("steps=4", *(("bands=2",) if more else edp))
    training = tuple(part for key in keys for part in ("-o", f"training.{key}"))
    # The job dies between the save of the first chunk and its commit.
    killed = generator.killed("out", dying(job=[SAVED]), *training)
    assert killed.returncode == -signal.SIGKILL
    before = generator.kinds()
    assert before == ["create", "reserve", "start", "commit", "reserve", "start"]  # never under-counts
    # It is resumed, and a worker dies in the middle of the second chunk: Ray starts it again.
    resumed = generator.killed("out", dying(worker=[MID_CHUNK]), "--resume", *training)
    assert (generator.folder / f"died at {MID_CHUNK}").exists()
    assert resumed.returncode == 0, resumed.stderr
    _same_as_undisturbed(generator, *training)
    certificate = generator.certificate("out")
    assert more or certificate["figures"]["noise multipliers of steps"].count("(2 steps)") == 2
    said = " ".join(certificate["assumptions"])
    assert more or ("into one of 16 micro-batches" in said and "the scales of layers in 'DP-SGD' have digest" in said)
