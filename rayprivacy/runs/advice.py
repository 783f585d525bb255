"""Suggests a method: for each, the best measured result for a similar number of users, epsilon and running time.

`frontier.json` beside this module holds those measured rows that can be the best within some minutes; it is made by
`benchmarks/frontier_page.py`. Rows are compared by held-out perplexity over that of the public base on the same corpus:
1 is nothing learnt, and less is better. Some of that is public: what the best model that read no private text has of
the base's perplexity stands beside it, and so does the part that private text closed of what was left from there to a
model without privacy, in log-perplexity. MAUVE, at most 1, says how near the text is to the corpus; a method's rows
without it have other settings than today's, and are shown only where it has no row with it. All corpora are public, and
a recipe says by its public numbers how many users it expects, so nothing private is read.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

NEAR_USERS, NEAR_EPSILON = 4.0, 2.0  # a row is near within these factors
TOKENS = {"chat": 32, "europarl": 48, "reviews": 64}  # generation.max_tokens: how long texts may be, by corpus


@dataclass(frozen=True)
class Evidence:
    """The mean over runs that differ in seed or key; `minutes` are of two cores, if the whole run was timed."""

    corpus: str
    users: int
    method: str
    settings: str
    epsilon: float
    runs: int
    over_base: float
    mauve: float | None
    minutes: float | None
    public_over_base: float | None = None
    gap_closed: float | None = None

    def __str__(self) -> str:
        public = self.public_over_base
        near = f", {public:.2f} before any private text" if public is not None and public < 1 else ""
        near += "" if self.gap_closed is None else f", gap closed from there {self.gap_closed:.2f}"
        near += "" if self.mauve is None else f", MAUVE {self.mauve:.2f}"
        took = "" if self.minutes is None else f", {self.minutes:.0f} min"
        runs = f"{self.runs} runs" if self.runs > 1 else "one run"
        return f"{self.method} {self.over_base:.2f}{near} ({self.settings}; {runs}{took})"


@cache
def measured_frontier() -> tuple[Evidence, ...]:
    """All rows that come with the package."""
    rows = json.loads(files("rayprivacy.runs").joinpath("frontier.json").read_text("utf-8"))
    return tuple(Evidence(**row) for row in rows)


def advice_for(
    method: str, users: float, epsilon: float, minutes: float | None = None, tokens: int | None = None
) -> str | None:
    """The advice of `advice`, where the packaged frontier has rows of this method; else None."""
    known = any(row.method == method for row in measured_frontier())
    return advice(users, epsilon, minutes, measured_frontier(), tokens) if known else None


def advice(
    users: float, epsilon: float, minutes: float | None, rows: Sequence[Evidence], tokens: int | None = None
) -> str:
    """What the frontier says, in words; where it compares methods near there, that comparison.

    Of corpora that are near in users and epsilon it is the one whose texts are nearest in length, where the recipe says
    how many tokens a text may have: what reviews teach is no guide to chat.

    >>> row = Evidence("talk", 1000, "mine", "preset good", 3.0, 1, 0.5, None, 30.0)
    >>> advice(50_000, 2.0, None, [row])
    'no row of the measured frontier is near about 50,000 users at epsilon 2; the nearest has 1,000 (talk, epsilon 3)'
    """

    def far(row: Evidence) -> tuple[float, float]:
        return abs(math.log(row.users / users)), abs(math.log(row.epsilon / epsilon))

    def longer(row: Evidence) -> float:
        known = TOKENS.get(row.corpus)
        return abs(math.log(known / tokens)) if known and tokens else 0.0

    asked = f"about {users:,.0f} users at epsilon {epsilon:g}"
    nearest = min(rows, key=lambda row: sum(far(row)))
    most = math.log(NEAR_USERS) + 1e-9, math.log(NEAR_EPSILON) + 1e-9
    near = [row for row in rows if far(row)[0] <= most[0] and far(row)[1] <= most[1]]
    if not near:
        where = f"{nearest.users:,} ({nearest.corpus}, epsilon {nearest.epsilon:g})"
        return f"no row of the measured frontier is near {asked}; the nearest has {where}"
    quick = [row for row in near if minutes is None or (row.minutes is not None and row.minutes <= minutes)]
    if not quick:
        return f"of the measured rows near {asked}, none is known to take at most {minutes:g} min of two cores"
    groups: dict[tuple[str, float], dict[str, Evidence]] = {}  # each method's best row of a corpus and epsilon
    for row in sorted(quick, key=lambda row: (row.mauve is None, row.over_base)):
        groups.setdefault((row.corpus, row.epsilon), {}).setdefault(row.method, row)

    def distance(group: dict[str, Evidence]) -> tuple[bool, float, float]:
        row = next(iter(group.values()))
        return len(group) == 1, longer(row), sum(far(row))

    there = min(groups.values(), key=distance)
    best = sorted(there.values(), key=lambda row: row.over_base)
    only = f"; no other method than {best[0].method} was measured there" if len(best) == 1 else ""
    return (
        f"for {asked}, {best[0].method} with {best[0].settings}. Held-out perplexity over the public base's on"
        f" {best[0].corpus} with {best[0].users:,} users at epsilon {best[0].epsilon:g}:"
        f" {', '.join(map(str, best))}{only}"
    )
