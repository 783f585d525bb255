"""How far a run has come: gauges for Prometheus (what console and log say of it is in `meter`).

All of it is public: names of stages, counts that the plan names with their totals (`Stage.work`: part files, stacks,
teachers, queries, steps), and seconds. They are for people who may see nothing else of the cluster, such as how many
rows there are. Running time is not protected. Part files that sharding writes are counted at its end, all at once;
where they are read each is counted when it is done, and that pace tells about how much it holds. Tokens per second are
steps per second times expected_batch times max_tokens: a nominal figure, since how many users a step samples and how
many tokens it reads are private.

Ray's metrics agent exports them as

    ray_rayprivacy_progress{release, what}          what is done
    ray_rayprivacy_progress_total{release, what}    of how much
    ray_rayprivacy_rate{release, what}              how fast, for DP-SGD

The only tags are the release id, which is a digest of the public recipe, and what is counted. A thread sets the gauges
again and again: Ray drops one that was not set for 20 seconds, so the figures of a run are gone soon after it. When
metrics fail, the run goes on without them.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from ray.util.metrics import Gauge

from rayprivacy.core.console import repeating
from rayprivacy.runs.plan import PARTS_SHARDED, STEPS_DONE, Plan

RATES = ("steps_per_second", "tokens_per_second")
REPEAT_SECONDS = 5.0  # half of what Ray takes between two exports
WINDOW_SECONDS = 60.0  # of the past that a rate is the mean of
_GAUGES = {
    "progress": "What is done of a release.",
    "progress_total": "How much there is to do of a release.",
    "rate": "Steps, and nominal tokens (expected_batch * max_tokens a step), per second.",
}
_TAGS = ("release", "what")
Tell = Callable[[str, int, int], None]


def totals(plan: Plan) -> dict[str, int]:
    """How much there is of everything that the stages of a run count."""
    stages = (*plan.stages, plan.measuring)
    return {PARTS_SHARDED: plan.parts} | {work.what: work.total for stage in stages for work in stage.work}


class ProgressGauges:
    """The gauges of one run, set by its driver."""

    def __init__(
        self,
        release: str,
        totals: Mapping[str, int],
        clock: Callable[[], float] = time.monotonic,
        shown: bool = True,
        tell: Tell = lambda what, done, total: None,
    ) -> None:
        """Nothing is exported unless `shown`: a trial of a selection must not be seen. `tell` hears of each count."""
        self._release, self._totals, self._clock, self._shown = release, dict(totals), clock, shown
        self._gauges: dict[str, Gauge] = {}
        self._values: dict[tuple[str, str], float] = {}
        self._tell = tell

    def show(self, what: str, done: int) -> None:
        """Set one count."""
        total = self._totals[what]
        self._set("progress", what, done)
        self._set("progress_total", what, total)
        self._tell(what, done, total)

    def expect(self, what: str, total: int) -> None:
        """Say how much there is of a count that the plan could only guess."""
        self._totals[what] = total

    def steps(self, nominal_tokens: float, total: int | None = None) -> Callable[[int], None]:
        """A function to report how many steps of DP-SGD are done, of `total` or, without it, as the plan says."""
        pace, known = _Pace(), self._totals[STEPS_DONE]

        def report(done: int) -> None:
            self._totals[STEPS_DONE] = total or known
            rate = pace.after(done, self._clock()) if done < self._totals[STEPS_DONE] else 0.0
            self.show(STEPS_DONE, done)
            for what, value in zip(RATES, (rate, rate * nominal_tokens), strict=True):
                self._set("rate", what, value)

        return report

    def close(self) -> None:
        """Export nothing more; console and log go on."""
        self._shown = False

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
            if not self._gauges:
                self._gauges = {name: Gauge(f"rayprivacy_{name}", text, _TAGS) for name, text in _GAUGES.items()}
            self._gauges[gauge].set(float(value), tags={"release": self._release, "what": what})


@contextmanager
def progress_gauges(
    release: str, totals: Mapping[str, int], shown: bool = True, tell: Tell = lambda what, done, total: None
) -> Iterator[ProgressGauges]:
    """The gauges of a run, kept alive until the block ends."""
    gauges = ProgressGauges(release, totals, shown=shown, tell=tell)
    with repeating(REPEAT_SECONDS, gauges.repeat):
        yield gauges
    gauges.repeat()
    gauges.close()


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
