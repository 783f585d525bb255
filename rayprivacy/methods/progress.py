"""How far a run has come, as gauges for Prometheus.

Ray's metrics agent exports them as

    ray_rayprivacy_progress{release, what}          what is done
    ray_rayprivacy_progress_total{release, what}    of how much
    ray_rayprivacy_rate{release, what}              how fast, for DP-SGD

Everybody who may open a dashboard sees them, so that they hold public numbers alone. Counts are fixed by the recipe:
part files, stacks and teachers (empty ones too), queries, steps. Parts are counted at the end of the stage, all at
once: an empty part passes through no task, so counting tasks would count the parts with somebody in them. Steps per
second is wall time, and tokens per second is that times expected_batch times max_tokens: a nominal figure, since
how many users a step samples and how many tokens it reads are private. Running time itself is not protected. The only
tags are the release id, which is a digest of the public recipe, and what is counted.

The driver sets them at the boundaries of stages and as pieces of work finish, and a thread says them again: Ray drops a
gauge that nobody has set for 20 seconds, so that the figures of a run are gone soon after it. Ray must be started;
when metrics fail, the run goes on without them.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from ray.util.metrics import Gauge

from rayprivacy.dpsgd.settings import DpSgdConfig
from rayprivacy.teachers.settings import TeachersConfig

COUNTS = ("parts_sharded", "stacks_trained", "teachers_trained", "queries_voted", "steps_done")
RATES = ("steps_per_second", "tokens_per_second")
REPEAT_SECONDS = 5.0  # half of what Ray takes between two exports
WINDOW_SECONDS = 60.0  # of the past that a rate is the mean of
_GAUGES = {
    "progress": "What is done of a release.",
    "progress_total": "How much there is to do of a release.",
    "rate": "Steps, and nominal tokens (expected_batch * max_tokens a step), per second.",
}
_TAGS = ("release", "what")


class ProgressGauges:
    """The gauges of one run, set by its driver."""

    def __init__(self, release: str, clock: Callable[[], float] = time.monotonic, shown: bool = True) -> None:
        """Nothing is exported before the first figure.

        Args:
            release: the release id.
            clock: seconds, for rates.
            shown: whether anything is exported; a trial of a selection must not be seen.
        """
        self._release, self._clock, self._shown = release, clock, shown
        self._gauges: dict[str, Gauge] = {}
        self._values: dict[tuple[str, str], float] = {}

    def show(self, what: str, done: int, total: int) -> None:
        """Set one count; both numbers must be public.

        Args:
            what: one of COUNTS.
            done: how many are finished.
            total: how many there are.
        """
        assert what in COUNTS
        self._set("progress", what, done)
        self._set("progress_total", what, total)

    def stacks(self, done: Iterable[int], teachers: TeachersConfig) -> Iterator[int]:
        """Pass on the stacks that finish, and count them and the teachers in them.

        Args:
            done: stack numbers, each once.
            teachers: how many there are of both.
        """
        stacks = trained = 0
        self._show_stacks(stacks, trained, teachers)
        for part in done:
            stacks, trained = stacks + 1, trained + len(teachers.members(part))
            self._show_stacks(stacks, trained, teachers)
            yield part

    def _show_stacks(self, stacks: int, trained: int, teachers: TeachersConfig) -> None:
        self.show("stacks_trained", stacks, teachers.parts)
        self.show("teachers_trained", trained, teachers.count)

    def steps(self, training: DpSgdConfig) -> Callable[[int], None]:
        """A function that is told now and then how many steps of DP-SGD are done.

        Told that all are done, it sets the rates to 0: nothing runs any more.
        """
        nominal, pace = training.expected_batch * training.max_tokens, _Pace()

        def told(done: int) -> None:
            rate = pace.after(done, self._clock()) if done < training.steps else 0.0
            self.show("steps_done", done, training.steps)
            self._set("rate", "steps_per_second", rate)
            self._set("rate", "tokens_per_second", rate * nominal)

        return told

    def repeat(self) -> None:
        """Say again what was said last."""
        for (gauge, what), value in list(self._values.items()):
            self._export(gauge, what, value)

    def _set(self, gauge: str, what: str, value: float) -> None:
        self._values[gauge, what] = value
        self._export(gauge, what, value)

    def _export(self, gauge: str, what: str, value: float) -> None:
        if not self._shown:
            return
        with suppress(Exception):  # no gauge is worth a run
            self._gauges = self._gauges or {name: _gauge(name) for name in _GAUGES}
            self._gauges[gauge].set(float(value), tags={"release": self._release, "what": what})


@contextmanager
def progress_gauges(release: str, shown: bool = True) -> Iterator[ProgressGauges]:
    """The gauges of a run, kept alive until the block ends."""
    gauges, over = ProgressGauges(release, shown=shown), threading.Event()

    def keep() -> None:
        while not over.wait(REPEAT_SECONDS):
            gauges.repeat()

    keeper = threading.Thread(target=keep, name="progress-gauges", daemon=True)
    keeper.start()
    try:
        yield gauges
    finally:
        over.set()
        keeper.join()
        gauges.repeat()


class _Pace:
    """Steps per second over the last WINDOW_SECONDS, from now and then a look at how many are done."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int]] = deque()
        self._last: int | None = None

    def after(self, done: int, now: float) -> float:
        """The pace after one more look; 0 until two steps were seen to end."""
        last, self._last = self._last, done
        if last is None or done < last:  # a start, or a restart that does some steps again
            self._looks.clear()
            return 0.0
        if done > last or self._looks:  # the clock starts when a step ends: workers take a while to come up
            self._looks.append((now, done))
        while len(self._looks) > 2 and self._looks[1][0] <= now - WINDOW_SECONDS:
            self._looks.popleft()
        began, before = self._looks[0] if self._looks else (now, done)
        return (done - before) / (now - began) if now > began else 0.0


def _gauge(name: str) -> Gauge:
    return Gauge(f"rayprivacy_{name}", _GAUGES[name], _TAGS)
