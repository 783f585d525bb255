"""How far a stage of a run has come: done, of how many, and the time left, said while the stage goes on.

On a terminal a stage is a bar. Elsewhere (a pipe, the log of a job) it is a line after FIRST_SECONDS and another one
every EVERY_SECONDS; `run.log` gets the same figures:

    teachers: 150 of 1,000 teachers trained, 2 min 10 s left
    corpus by user: 1 min 20 s so far

A log has many readers: all of this is public, as `progress` says.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from rayprivacy.core.console import repeating
from rayprivacy.core.files import Json

FIRST_SECONDS, EVERY_SECONDS = 20.0, 30.0
LOOK_SECONDS = 0.5  # between two looks at the clock, and two pictures of a bar
Log = Callable[[str, Json], None]


@dataclass
class _Count:
    """A count of the stage that goes on: as it was first seen, at `began`, and as it became at `changed`."""

    what: str
    total: int
    began: float
    before: int
    changed: float
    done: int


class Meter:
    """Says how far the stages of one run have come."""

    def __init__(self, console: Console, log: Log, clock: Callable[[], float] = time.monotonic) -> None:
        """Lines or bars appear on a console; the log gets the name of the stage and the `figures` of each line."""
        self._console, self._log, self._clock = console, log, clock
        self._name, self._began, self._next = "", 0.0, 0.0
        self._counts: dict[str, _Count] = {}
        self._last = ""  # the count that moved last

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Say how far a stage has come, until the block ends."""
        self._name, self._began = name, self._clock()
        self._counts, self._last = {}, ""
        self._next = self._began + FIRST_SECONDS
        if self._console.is_terminal:
            with self._bar() as show, repeating(LOOK_SECONDS, lambda: self.look(show)):
                yield
        else:
            with repeating(LOOK_SECONDS, lambda: self.look(self._print)):
                yield

    def count(self, what: str, done: int, total: int) -> None:
        """Take a count of the plan, for the stage that goes on."""
        now, count = self._clock(), self._counts.get(what)
        if count is None or done < count.done:  # workers died, and do some of it again
            self._counts[what], self._last = _Count(what, total, now, done, now, done), what
        elif done > count.done:
            count.changed, count.done, self._last = now, done, what

    def look(self, show: Callable[[bool], None]) -> None:
        """Look at the clock, and show the stage: the argument of `show` is whether it is time for a line."""
        due = self._clock() >= self._next
        if due:
            self._next += EVERY_SECONDS
            self._log(self._name, self.figures)
        show(due)

    @property
    def figures(self) -> Json:
        """`what`, `done`, `total` and, once it can be told, `left_s`; or `so_far_s` where nothing is counted."""
        now, count = self._clock(), self._counts.get(self._last)
        if count is None:
            return {"so_far_s": round(now - self._began)}
        counted = {"what": count.what, "done": count.done, "total": count.total}
        done = count.done - count.before
        if not done or count.done >= count.total:  # what comes after the last piece is not known
            return counted
        left = (count.changed - count.began) / done * (count.total - count.done) - (now - count.changed)
        # Once the time is used up, the pieces that go on take longer than those before: how long is not known.
        return counted | ({"left_s": round(left)} if left >= 1 else {})

    @property
    def line(self) -> str:
        """The stage in words."""
        found = self.figures
        if "what" not in found:
            return f"{self._name}: {spoken(found['so_far_s'])} so far"
        counted = f"{self._name}: {found['done']:,} of {found['total']:,} {found['what'].replace('_', ' ')}"
        return f"{counted}, {spoken(found['left_s'])} left" if "left_s" in found else counted

    def _print(self, due: bool) -> None:
        if due:
            self._console.print(f"  {self.line}", highlight=False, markup=False, soft_wrap=True)

    @contextmanager
    def _bar(self) -> Iterator[Callable[[bool], None]]:
        columns = (TextColumn("  {task.description}", markup=False), BarColumn())
        with Progress(
            *columns, console=self._console, transient=True, redirect_stdout=False, redirect_stderr=False
        ) as bars:
            bar = bars.add_task(self._name, total=None)

            def show(due: bool) -> None:
                found = self.figures
                bars.update(bar, description=self.line, completed=found.get("done", 0), total=found.get("total"))

            yield show


def spoken(seconds: float) -> str:
    """Seconds as people say them.

    >>> spoken(44.6), spoken(130), spoken(3900)
    ('45 s', '2 min 10 s', '1 h 05 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
