"""SIGKILL at chosen instructions of one real run, one after the other, then --resume: one certificate, charged once."""

import signal

import pytest
from dying import dying

pytestmark = pytest.mark.slow
QUICK = ("teachers.count=4", "evaluation={completions: 0, nonprivate_steps: 0}", "student={steps: 2, warm_steps: 2}")
MID_CHUNK, SAVED = "progress 3", "step-00000002"
MATCH = "match={candidates: 3, topics: 3, noise_multiplier: 4.0}"

METHOD = "rayprivacy.methods.seqpate.method"
POINTS = {  # functions, and whether the first thing that it yields is waited for; in the order of a run
    "after the first part of the features": (METHOD, "cache_features", True),
    "after the first piece of teachers": ("rayprivacy.teachers.pool.TeacherPool", "train", True),
    "after the charge started, before noise": ("rayprivacy.release.votes.VoteMechanism", "draw", False),
    "after the draw, before it is stored": ("rayprivacy.ledger.store.Ledger", "commit_output", False),
    "after the commit, before the student": (METHOD, "_distilled", False),
    "after the votes on texts, before one is chosen": ("rayprivacy.blocks.match", "raked", False),
}
FIRST, _, _, DRAWN, *_ = POINTS


def _dies(owner, name, yields):
    """Source that kills the process at the call of a function, or when it yields."""
    before = "next(iter(real(*given)))" if yields else "None"
    return f"""
from pydoc import locate
owner = locate({owner!r})
real = owner.{name}
owner.{name} = lambda *given: ({before}, os.kill(os.getpid(), signal.SIGKILL))
"""


@pytest.mark.timeout(900)  # eight runs
@pytest.mark.exhaustive  # by day ray/test_marks.py kills one at its draw
@pytest.mark.parametrize("points", [[DRAWN], [*POINTS]], ids=len)
def test_a_run_killed_at_some_points_is_charged_once(job, points, check_undisturbed):
    charged = ["create", *["reserve", "start", "commit"] * (1 if points == [DRAWN] else 2)]
    options = [part for option in (QUICK if points == [DRAWN] else (MATCH,)) for part in ("-o", option)]
    before: dict[str, int] = {}
    resume: list[str] = []
    for point in points:
        killed = job.killed("run", _dies(*POINTS[point]), *options, *resume)
        assert killed.returncode == -signal.SIGKILL, (point, killed.stderr)
        assert not (job.folder / "run" / "certificate.json").exists()
        before = _trained_no_teacher_again(job, before)
        assert before or point == FIRST
        resume = ["--resume"]
    assert job.run("run", *options, "--resume").returncode == 0
    _trained_no_teacher_again(job, before)
    assert job.kinds() == charged
    # The same release undisturbed: served from the ledger, for nothing.
    check_undisturbed(job, "run", [], options)


def _trained_no_teacher_again(job, before):
    folder = job.folder / "run" / "private" / "teachers"
    after = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.safetensors")}
    assert before.items() <= after.items(), "a finished teacher was trained again"
    return after


@pytest.mark.timeout(600)
@pytest.mark.exhaustive  # by day test_two_stage_run.py and tests/cluster kill such trainings
@pytest.mark.parametrize("edp", [False, True])
def test_a_job_of_the_generator_and_then_a_worker_die(generator, edp, check_undisturbed):
    """With noise that must be made again; with all of eDP-SGD."""
    public = generator.folder / "public.csv"
    public.write_text("text\nthe cat sat on my mat\na dog ate the food\n")
    schedule, scale = "{kind: linear, tau: 0.5, steps_per_epoch: 2}", f"{{from: public, source: {public}}}"
    more = ("microbatches=16", f"noise_schedule={schedule}", f"layer_scale={scale}") if edp else ("bands=2",)
    training = [part for key in ("steps=4", *more) for part in ("-o", f"training.{key}")]
    # The job dies between the save of the first chunk and its commit.
    killed = generator.killed("out", dying(job=[SAVED]), *training)
    assert killed.returncode == -signal.SIGKILL
    before = generator.kinds()
    assert before == ["create", "reserve", "start", "commit", "reserve", "start"]  # never under-counts
    # It is resumed, and a worker dies in the middle of the second chunk: Ray starts it again.
    resumed = generator.killed("out", dying(worker=[MID_CHUNK]), "--resume", *training)
    assert (generator.folder / f"died at {MID_CHUNK}").exists()
    assert resumed.returncode == 0, resumed.stderr
    assert generator.kinds() == ["create", *["reserve", "start", "commit"] * 3]
    check_undisturbed(generator, "out", ["model/model.safetensors", "synthetic.parquet"], training)
    if edp:
        certificate = generator.certificate("out")
        assert certificate["figures"]["noise multipliers of steps"].count("(2 steps)") == 2
        said = " ".join(certificate["assumptions"])
        for claim in ("into one of 16 micro-batches", "the scales of layers in 'DP-SGD' have digest"):
            assert claim in said
