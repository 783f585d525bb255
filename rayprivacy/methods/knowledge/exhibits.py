"""What the report shows of facts: all of it was released, or follows from the public plan."""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from rayprivacy.knowledge.settings import KnowledgeConfig
from rayprivacy.methods.knowledge.plan import ANSWERS, known_answers, users_needed
from rayprivacy.release.votes import SCALE
from rayprivacy.runs.method import Chart, Table
from rayprivacy.runs.plan import Plan

SHOWN = 40  # facts, those of most users
_POINTS = 60
_COLUMNS = ("name", "attribute", "answer", "users, with noise", "95% interval")


def of_facts(found: pa.Table, plan: Plan, config: KnowledgeConfig, names: int) -> list[Chart | Table]:
    """The facts of most users, how many there are of each attribute, and support against the thresholds."""
    known = known_answers(config, names)
    rows = found.sort_by([("count", "descending"), ("name", "ascending"), ("attribute", "ascending")]).to_pylist()
    shown = [
        (row["name"], row["attribute"], row["answer"], f"{row['count']:.0f}", f"{row['low']:.0f} to {row['high']:.0f}")
        for row in rows[:SHOWN]
    ]
    by = found.group_by("attribute").aggregate([("count", "count"), ("count", "min"), ("count", "max")])
    counted = [
        (row["attribute"], str(row["count_count"]), f"{row['count_min']:.0f} to {row['count_max']:.0f}")
        for row in by.sort_by("attribute").to_pylist()
    ]
    return [
        Table("Facts of most users", _COLUMNS, shown, internal=False),
        Table("Facts by attribute", ("attribute", "facts", "users, with noise"), counted, internal=False),
        _passing(plan, known),
        *([_support([row["count"] for row in rows], plan, known)] if len(rows) > 1 else []),
    ]


def _passing(plan: Plan, known: Mapping[str, int]) -> Chart:
    """How likely a name or an answer is to be released, by how many users have it."""
    counts = {stage.name: stage.mechanism for stage in plan.charged}
    users = np.linspace(1, 2 * max(map(users_needed, counts.values())), _POINTS)
    lines = {name: (each, 0) for name, each in counts.items()}
    lines |= {what: (counts[ANSWERS], many) for what, many in known.items()}
    series = {name: [(float(x), each.passing(x, many)) for x in users] for name, (each, many) in lines.items()}
    return Chart(
        "passing",
        "Chance to be released, by support",
        across="users that have it",
        up="chance",
        series=series,
        internal=False,
    )


def _support(counts: Sequence[float], plan: Plan, known: Mapping[str, int]) -> Chart:
    """The noisy counts of all facts, the largest first, above the threshold, or the line of a known answer."""
    mechanism, last = plan.charged[-1].mechanism, len(counts)
    places = np.unique(np.linspace(1, last, min(_POINTS, last)).round().astype(int)).tolist()
    series = {"facts": [(float(place), counts[place - 1]) for place in places]}
    lines = {"threshold": mechanism.threshold} | {what: mechanism.cut(many) for what, many in known.items()}
    series |= {what: [(1.0, line / SCALE), (float(last), line / SCALE)] for what, line in lines.items()}
    return Chart("support", "Support of facts", "fact, by support", "users, with noise", series, internal=False)
