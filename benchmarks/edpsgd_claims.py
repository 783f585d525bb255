"""What the rows of the table of taggers show: means over seeds, and sentences that hold or do not."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

FIGURES = ("semantic_error_rate", "wrong_intents", "auc_of_losses")
LOOSE = ("z0 0.001", "z0 0.01", "z0 0.1")
MICRO = ("N 16", "N 64", "N 256")
FALLING = {"constant": "N 256", "linear": "linear", "exponential": "exponential"}
Row = Mapping[str, Any]
Means = dict[str, dict[str, dict[str, float | int]]]


def means_of(rows: Sequence[Row]) -> Means:
    """Mean and standard error over seeds of each figure, by corpus and arm; no standard error of one seed."""
    grouped: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        grouped[row["corpus"], row["arm"]].append(row)
    found: Means = defaultdict(dict)
    for (corpus, arm), own in grouped.items():
        found[corpus][arm] = {"seeds": len(own)}
        for name in FIGURES:
            values = [row[name] for row in own]
            found[corpus][arm][name] = round(mean(values), 4)
            if len(own) > 1:
                found[corpus][arm][f"{name}_se"] = round(stdev(values) / len(own) ** 0.5, 4)
    return dict(found)


def claims(rows: Sequence[Row]) -> dict[str, dict[str, bool]]:
    """What holds and what does not of each corpus, by a sentence; of the arms that are there."""
    return {corpus: _of(means, rows) for corpus, means in means_of(rows).items()}


def _of(means: Mapping[str, Mapping[str, float]], rows: Sequence[Row]) -> dict[str, bool]:
    rate = {arm: each["semantic_error_rate"] for arm, each in means.items()}
    found = {}
    for arm in LOOSE:
        if {"SGD", arm} <= rate.keys():
            found[f"{arm}: error within 10% of SGD"] = rate[arm] <= 1.1 * rate["SGD"]
    loose = [row["guarantee"] for row in rows if row["arm"] in LOOSE]
    if loose:
        found["no row of the paper's regime has a meaningful guarantee"] = all(loose)
    if set(MICRO) <= rate.keys():
        few, some, many = (rate[arm] for arm in MICRO)
        found["epsilon 8: error falls with the number of micro-batches"] = few > some > many
    if {*MICRO, "each"} <= rate.keys():
        found["epsilon 8: clipping each unit is best"] = rate["each"] < min(rate[arm] for arm in MICRO)
    for schedule in ("linear", "exponential"):
        if {"N 256", schedule} <= rate.keys():
            found[f"epsilon 8: noise that falls ({schedule}) is better than constant"] = rate[schedule] < rate["N 256"]
    for schedule, plain in FALLING.items():
        if {plain, f"{schedule}, scaled"} <= rate.keys():
            found[f"epsilon 8: scales of layers help ({schedule})"] = rate[f"{schedule}, scaled"] < rate[plain]
    return found
