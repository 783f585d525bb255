"""SIGKILL at chosen instructions of a real run, then --resume: the same certificate, charged once.

One run dies at the first point, is resumed, dies at the second, and so on: what one death leaves is finished by a
process that dies later.
"""

import signal

import pytest
from small_jobs import Job

pytestmark = pytest.mark.slow
QUICK = ("evaluation.completions=0", "evaluation.nonprivate_steps=0", "student.steps=2", "student.warm_steps=2")
MATCH = "match={candidates: 3, topics: 3, noise_multiplier: 4.0}"

DIE = "os.kill(os.getpid(), signal.SIGKILL)"
POINTS = {
    "after the first part of the features": f"""
from rayprivacy.methods.seqpate import method
cache = method.cache_features
def once(*args):
    for part in cache(*args):
        {DIE}
        yield part
method.cache_features = once
""",
    "after the first piece of teachers": f"""
from rayprivacy.teachers.pool import TeacherPool
train = TeacherPool.train
def once(self):
    for piece in train(self):
        {DIE}
        yield piece
TeacherPool.train = once
""",
    "after the charge started, before noise": f"""
from rayprivacy.release.votes import VoteMechanism
def draw(self, sums):
    {DIE}
VoteMechanism.draw = draw
""",
    "after the draw, before it is stored": f"""
from rayprivacy.ledger.store import Ledger
def commit_output(self, charge, output):
    {DIE}
Ledger.commit_output = commit_output
""",
    "after the commit, before the student": f"""
from rayprivacy.methods.seqpate import method
def distilled(*args):
    {DIE}
method._distilled = distilled
""",
    "after the votes on texts, before one is chosen": f"""
from rayprivacy.blocks import match
def raked(*args):
    {DIE}
match.raked = raked
""",
}
FIRST, TRAINED, _, DRAWN, *_ = POINTS


@pytest.mark.timeout(900)  # eight runs
@pytest.mark.parametrize("points", [[DRAWN], pytest.param([*POINTS], marks=pytest.mark.exhaustive)], ids=len)
def test_a_run_killed_at_some_points_resumes_with_one_charge(job: Job, points: list[str]) -> None:
    charged = ["create", *["reserve", "start", "commit"] * (1 if points == [DRAWN] else 2)]
    options = [part for option in (QUICK if points == [DRAWN] else (MATCH,)) for part in ("-o", option)]
    before: dict[str, int] = {}
    resume: list[str] = []
    for point in points:  # in the order in which a run comes to them
        killed = job.killed("run", POINTS[point], *options, *resume)
        assert killed.returncode == -signal.SIGKILL, (point, killed.stderr)
        assert not (job.folder / "run" / "certificate.json").exists()
        before = _trained_no_teacher_again(job, before)
        assert before or point == FIRST
        if point == TRAINED:
            _is_not_overwritten_by_accident(job, options)
        resume = ["--resume"]
    resumed = job.run("run", *options, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    _trained_no_teacher_again(job, before)
    assert job.kinds() == charged
    # The same release undisturbed: served from the ledger, for nothing.
    undisturbed = job.run("undisturbed", *options)
    assert undisturbed.returncode == 0, undisturbed.stderr
    assert job.certificate("run") == job.certificate("undisturbed")
    assert job.kinds() == charged


def _trained_no_teacher_again(job: Job, before: dict[str, int]) -> dict[str, int]:
    folder = job.folder / "run" / "private" / "teachers"
    after = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.safetensors")}
    assert before.items() <= after.items(), "a finished teacher was trained again"
    return after


def _is_not_overwritten_by_accident(job: Job, options: list[str]) -> None:
    for more, says in (([], "--resume"), (["--resume", "-o", "seed=3"], "another recipe")):
        again = job.run("run", *options, *more)
        assert again.returncode == 2
        assert says in again.stderr
