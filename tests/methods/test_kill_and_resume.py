"""SIGKILL at chosen instructions of a real run, then --resume: the same certificate, charged once.

One run dies at the first point, is resumed, dies at the second, and so on: what one death leaves is finished by a
process that dies later.
"""

import signal
from typing import Any

import pytest

pytestmark = pytest.mark.slow

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
}
FIRST, TRAINED, _, DRAWN, _ = POINTS


@pytest.mark.timeout(900)  # seven runs
@pytest.mark.parametrize("points", [[DRAWN], pytest.param([*POINTS], marks=pytest.mark.exhaustive)], ids=len)
def test_a_run_killed_at_some_points_resumes_with_one_charge(job: Any, points: list[str]) -> None:
    before: dict[str, int] = {}
    resume: list[str] = []
    for point in points:  # in the order in which a run comes to them
        killed = job.killed("run", POINTS[point], *resume)
        assert killed.returncode == -signal.SIGKILL, (point, killed.stderr)
        assert not (job.folder / "run" / "certificate.json").exists()
        before = _trained_no_teacher_again(job, before)
        assert before or point == FIRST
        if point == TRAINED:
            _is_not_overwritten_by_accident(job)
        resume = ["--resume"]
    resumed = job.run("run", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    _trained_no_teacher_again(job, before)
    assert job.kinds() == ["create", "reserve", "start", "commit"]
    # The same release undisturbed: served from the ledger, for nothing.
    undisturbed = job.run("undisturbed")
    assert undisturbed.returncode == 0, undisturbed.stderr
    assert job.certificate("run") == job.certificate("undisturbed")
    assert job.kinds() == ["create", "reserve", "start", "commit"]


def _trained_no_teacher_again(job: Any, before: dict[str, int]) -> dict[str, int]:
    folder = job.folder / "run" / "private" / "teachers"
    after = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.safetensors")}
    assert before.items() <= after.items(), "a finished teacher was trained again"
    return after


def _is_not_overwritten_by_accident(job: Any) -> None:
    again = job.run("run")
    assert again.returncode == 2
    assert "--resume" in again.stderr
    other = job.run("run", "--resume", "-o", "seed=3")
    assert other.returncode == 2
    assert "another recipe" in other.stderr
