"""Trainings in which a worker dies, or the whole job with it, at points that a test names."""

from collections.abc import Sequence

# Functions of a script travel by value, so `watched` runs where the steps do.
_SOURCE = """
from rayprivacy.dpsgd import train
DIED, DRIVER, REAL = os.path.abspath("died at "), os.getpid(), train.train_worker
def watched(given):
    import os, pathlib, signal
    rename, replace = pathlib.Path.rename, pathlib.Path.replace
    def reached(point):
        if point in JOB + WORKER and not os.path.exists(DIED + point):
            pathlib.Path(DIED + point).touch()
            for process in [DRIVER] * (point in JOB) + [os.getpid()]:
                os.kill(process, signal.SIGKILL)
    def renaming(path, target):
        result = rename(path, target)
        reached(target.name)
        return result
    def replacing(path, target):
        steps = path.read_text() if target.name == "progress" else ""
        result = replace(path, target)
        reached("progress " + steps)
        return result
    pathlib.Path.rename, pathlib.Path.replace = renaming, replacing
    REAL(given)
train.train_worker = watched
"""


def dying(*, job: Sequence[str] = (), worker: Sequence[str] = ()) -> str:
    """Source for `Job.killed`: SIGKILL at each point, once in the folder of the job, which then has `died at <point>`.

    A point is the name of a saved state ("step-00000002": two steps are saved, and their charge is not committed) or
    the steps that a worker has told ("progress 3": the third step is made, and not saved). At points of `job` the
    worker and the driver die; at those of `worker` it dies alone, and Ray starts it again.
    """
    return f"JOB, WORKER = {tuple(job)!r}, {tuple(worker)!r}\n{_SOURCE}"
