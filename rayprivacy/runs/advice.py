"""What to choose for so many users, epsilon and minutes: each method's best row of the measured frontier near there.

`frontier.json` beside this module is made by `benchmarks/frontier_page.py` from rows that were run. Rows are compared
by held-out perplexity over that of the public base on the same corpus: 1 is nothing learnt, and less is better. How
near the text is to the corpus is another figure, which stands beside it: MAUVE, at most 1. A method's rows without it
are shown only where it has no row with it, since their settings are not those of today. All corpora are public. A
recipe says by its public numbers how many users it expects, so nothing private is read.
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

NEAR_USERS, NEAR_EPSILON = 4.0, 2.0  # a row lies near within these factors


@dataclass(frozen=True)
class Evidence:
    """One row of the frontier; the mean over its runs, which differ in seed or key.

    Attributes:
        corpus: its name.
        users: how many it has, in public.
        method: of the recipe.
        settings: which, in words.
        epsilon: what the run asked for.
        runs: how many there were.
        over_base: held-out perplexity of the released model over that of the public base.
        mauve: MAUVE of the text beside the corpus; None where none was written, or not as the settings do now.
        minutes: of two cores, as measured; None where the whole run was not timed.
    """

    corpus: str
    users: int
    method: str
    settings: str
    epsilon: float
    runs: int
    over_base: float
    mauve: float | None
    minutes: float | None

    def __str__(self) -> str:
        near = "" if self.mauve is None else f", MAUVE {self.mauve:.2f}"
        took = "" if self.minutes is None else f", {self.minutes:.0f} min"
        runs = f"{self.runs} runs" if self.runs > 1 else "one run"
        return f"{self.method} {self.over_base:.2f}{near} ({self.settings}; {runs}{took})"


@cache
def measured_frontier() -> tuple[Evidence, ...]:
    """All rows that come with the package."""
    rows = json.loads(files("rayprivacy.runs").joinpath("frontier.json").read_text("utf-8"))
    return tuple(Evidence(**row) for row in rows)


def advice_for(method: str, users: float, epsilon: float, minutes: float | None = None) -> str | None:
    """The advice of `advice`, where the packaged frontier has rows of this method; else None."""
    known = any(row.method == method for row in measured_frontier())
    return advice(users, epsilon, minutes, measured_frontier()) if known else None


def advice(users: float, epsilon: float, minutes: float | None, rows: Sequence[Evidence]) -> str:
    """What the frontier says, in words; where it compares methods near there, that comparison.

    >>> row = Evidence("talk", 1000, "mine", "preset good", 3.0, 1, 0.5, None, 30.0)
    >>> advice(50_000, 2.0, None, [row])
    'no row of the measured frontier is near about 50,000 users at epsilon 2; the nearest has 1,000 (talk, epsilon 3)'

    Args:
        users: a public guess at how many the corpus has.
        epsilon: of the recipe.
        minutes: what a run may take at most, on two cores such as those of the measurements; None is no bound.
        rows: the frontier; at least one.
    """
    asked = f"about {users:,.0f} users at epsilon {epsilon:g}"
    near = [row for row in rows if _near(row.users, users, NEAR_USERS) and _near(row.epsilon, epsilon, NEAR_EPSILON)]
    if not near:
        row = min(rows, key=lambda each: _far(each, users, epsilon))
        return (
            f"no row of the measured frontier is near {asked}; the nearest has {row.users:,} ({row.corpus}, epsilon"
            f" {row.epsilon:g})"
        )
    quick = [row for row in near if minutes is None or (row.minutes is not None and row.minutes <= minutes)]
    if not quick:
        return f"of the measured rows near {asked}, none is known to take at most {minutes:g} min of two cores"
    there = min(_groups(quick), key=lambda group: (len(_methods(group)) == 1, _far(group[0], users, epsilon)))
    best = _best_of_each_method(there)
    only = f"; no other method than {best[0].method} was measured there" if len(best) == 1 else ""
    return (
        f"for {asked}, {best[0].method} with {best[0].settings}. Held-out perplexity over the public base's on"
        f" {best[0].corpus} with {best[0].users:,} users at epsilon {best[0].epsilon:g}:"
        f" {', '.join(map(str, best))}{only}"
    )


def _groups(rows: Iterable[Evidence]) -> list[list[Evidence]]:
    """Rows that can be compared: of one corpus and one epsilon."""
    found: dict[tuple[str, float], list[Evidence]] = {}
    for row in rows:
        found.setdefault((row.corpus, row.epsilon), []).append(row)
    return list(found.values())


def _best_of_each_method(rows: Iterable[Evidence]) -> list[Evidence]:
    """Each method's row of least perplexity, best first; of rows whose text was measured, where it has any."""
    best: dict[str, Evidence] = {}
    for row in sorted(rows, key=lambda row: (row.mauve is None, row.over_base)):
        best.setdefault(row.method, row)
    return sorted(best.values(), key=lambda row: row.over_base)


def _methods(rows: Iterable[Evidence]) -> set[str]:
    return {row.method for row in rows}


def _far(row: Evidence, users: float, epsilon: float) -> float:
    return _distance(row.users, users) + _distance(row.epsilon, epsilon)


def _near(one: float, other: float, factor: float) -> bool:
    return _distance(one, other) <= math.log(factor) + 1e-9


def _distance(one: float, other: float) -> float:
    return abs(math.log(one / other))
