"""The privacy-utility frontier of a search as a picture: every finished trial, and the line of the best ones."""

from collections.abc import Sequence
from pathlib import Path

from rayprivacy.tuning.metric import MetricConfig

Point = tuple[float, float, bool]  # epsilon, utility, whether it is the best


def frontier(points: Sequence[Point], mode: str) -> list[tuple[float, float]]:
    """The points that no other one matches in both, by epsilon; `mode` says whether small or large utility is good.

    >>> frontier([(1, 5.0, False), (2, 6.0, False), (3, 4.0, True)], "min")
    [(1, 5.0), (3, 4.0)]
    """
    sign, best, kept = 1 if mode == "min" else -1, float("inf"), []
    for epsilon, utility, _ in sorted(points, key=lambda point: (point[0], sign * point[1])):
        if sign * utility < best:
            best = sign * utility
            kept.append((epsilon, utility))
    return kept


def draw_frontier(points: Sequence[Point], metric: MetricConfig, path: Path) -> None:
    """Write the picture of every finished trial as a PNG file; trials of one epsilon stand above each other."""
    from matplotlib.figure import Figure  # an optional package, and slow to import

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    line = frontier(points, metric.mode)
    axes.plot(*zip(*line, strict=True), drawstyle="steps-post", color="#767676", linewidth=1, label="frontier")
    for best, marker, label in ((False, "o", "trial"), (True, "*", "best")):
        of_kind = [point[:2] for point in points if point[2] == best]
        if of_kind:
            axes.plot(*zip(*of_kind, strict=True), marker, markersize=12 if best else 6, label=label)
    good = "lower" if metric.mode == "min" else "higher"
    axes.set(xlabel="epsilon of the trial's recipe", ylabel=f"{metric.name} ({good} is better)")
    axes.legend()
    figure.savefig(path, dpi=150)
