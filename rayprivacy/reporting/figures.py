"""Figures as inline SVG: the account's budget, how long texts are, and runs between privacy and utility.

Each figure is a string, coloured by classes of the page's style sheet (so it follows light and dark), with a title and
a description for those who do not see it. `Markup.format` escapes whatever is filled in.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from markupsafe import Markup

from rayprivacy.reporting.format import percent
from rayprivacy.reporting.inputs import ChartData, Histogram

SVG = Markup(
    '<svg class="{kind}" viewBox="0 0 {width} {height}" role="img" aria-labelledby="{kind}-title {kind}-desc"{extra}>'
    '<title id="{kind}-title">{title}</title><desc id="{kind}-desc">{desc}</desc>{body}</svg>'
)
RECT = Markup('<rect class="{css}" x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}">{inner}</rect>')
TEXT = Markup('<text class="{css}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>')
LINE = Markup('<line class="grid" x1="{x1}" x2="{x2}" y1="{y:.1f}" y2="{y:.1f}"/>')
DOT = Markup('<circle class="{css}" cx="{x:.1f}" cy="{y:.1f}" r="5">{inner}</circle>')
PATH = Markup('<polyline class="{}" points="{}"/>')
TIP = Markup("<title>{}</title>")
NOTHING = Markup("")


class Part(NamedTuple):
    """One part of a stacked bar; `css` names its colour and `shown` is its value as text."""

    css: str
    name: str
    value: float
    shown: str


class Series(NamedTuple):
    """One set of bars; `css` names its colour."""

    css: str
    name: str
    histogram: Histogram


def svg(kind: str, size: tuple[float, float], title: str, desc: str, body: Markup, extra: Markup = NOTHING) -> Markup:
    """Wrap shapes as an accessible figure; `kind` is its class and the stem of its ids."""
    return SVG.format(kind=kind, width=size[0], height=size[1], title=title, desc=desc, body=body, extra=extra)


def stacked_bar(kind: str, title: str, parts: Sequence[Part]) -> Markup:
    """One horizontal bar split in proportion to the parts; the legend belongs beside it, as text."""
    total = sum(part.value for part in parts) or 1.0
    body, x = NOTHING, 0.0
    for part in parts:
        width = 1000 * part.value / total
        tip = TIP.format(f"{part.name}: {part.shown}")
        body += RECT.format(css=part.css, x=x, y=0, w=width, h=30, inner=tip)
        x += width
    desc = "; ".join(f"{part.name}: {part.shown}" for part in parts)
    return svg(kind, (1000, 30), title, desc, body, Markup(' preserveAspectRatio="none"'))


def bin_names(edges: Sequence[int]) -> list[str]:
    """The bins in words.

    >>> bin_names([0, 1, 5])
    ['0', '1-4', '5+']
    """
    closed = [str(low) if high == low + 1 else f"{low}-{high - 1}" for low, high in pairwise(edges)]
    return [*closed, f"{edges[-1]}+"]


def length_histogram(series: Sequence[Series]) -> Markup:
    """Grouped bars, the share of texts per bin; every series has the bins of the first."""
    names = bin_names(series[0].histogram.edges)
    shares = [[count / max(sum(s.histogram.counts), 1) for count in s.histogram.counts] for s in series]
    top = max(0.1, *(share for row in shares for share in row))
    left, right, floor, height = 46, 480, 206, 180
    step = (right - left) / len(names)
    body = NOTHING
    for mark in (0.0, 0.5, 1.0):
        y = floor - height * mark
        body += LINE.format(x1=left, x2=right, y=y)
        body += TEXT.format(css="tick", x=left - 6, y=y + 4, anchor="end", text=f"{100 * top * mark:.0f}%")
    for index, name in enumerate(names):
        body += TEXT.format(css="tick", x=left + step * (index + 0.5), y=floor + 18, anchor="middle", text=name)
    body += TEXT.format(css="tick", x=(left + right) / 2, y=floor + 38, anchor="middle", text="words per text")
    width = 0.78 * step / len(series)
    for place, (one, row) in enumerate(zip(series, shares, strict=True)):
        for index, (name, share) in enumerate(zip(names, row, strict=False)):
            x = left + step * (index + 0.11) + place * width
            tip = TIP.format(f"{one.name}, {name} words: {percent(share)}")
            body += RECT.format(
                css=one.css, x=x, y=floor - height * share / top, w=width, h=height * share / top, inner=tip
            )
    desc = "; ".join(f"{s.name}: {_in_words(names, row)}" for s, row in zip(series, shares, strict=True))
    return svg("lengths", (right + 4, floor + 46), "Share of texts by number of words", desc, body)


def _in_words(names: Sequence[str], row: Sequence[float]) -> str:
    return ", ".join(f"{name} words {percent(share)}" for name, share in zip(names, row, strict=False))


class Point(NamedTuple):
    """One run between privacy and utility: `across` is its epsilon, `up` what it bought."""

    name: str
    across: float
    up: float


def frontier(points: Sequence[Point], across: str, up: str) -> Markup:
    """Runs as dots, further left is more private and lower is better; those that no other run beats are joined."""
    left, right, floor, top = 56, 480, 206, 16
    spans = [_span([point.across for point in points]), _span([point.up for point in points])]

    def place(point: Point) -> tuple[float, float]:
        x, y = (
            (value - low) / (high - low) for value, (low, high) in zip((point.across, point.up), spans, strict=True)
        )
        return left + x * (right - left), floor - y * (floor - top)

    body = NOTHING
    for mark in (0.0, 0.5, 1.0):
        y = floor - mark * (floor - top)
        value = spans[1][0] + mark * (spans[1][1] - spans[1][0])
        body += LINE.format(x1=left, x2=right, y=y)
        body += TEXT.format(css="tick", x=left - 6, y=y + 4, anchor="end", text=f"{value:.4g}")
        x, value = left + mark * (right - left), spans[0][0] + mark * (spans[0][1] - spans[0][0])
        body += TEXT.format(css="tick", x=x, y=floor + 18, anchor="middle", text=f"{value:.3g}")
    body += TEXT.format(css="tick", x=(left + right) / 2, y=floor + 38, anchor="middle", text=across)
    body += TEXT.format(css="tick", x=left, y=top - 4, anchor="start", text=up)
    best = unbeaten(points)
    body += PATH.format("best", " ".join(f"{x:.1f},{y:.1f}" for x, y in map(place, best)))
    for point in points:
        x, y = place(point)
        tip = TIP.format(f"{point.name}: {across} {point.across:.4g}, {up} {point.up:.2f}")
        body += DOT.format(css="dot best" if point in best else "dot", x=x, y=y, inner=tip)
    desc = "; ".join(f"{point.name}: {across} {point.across:.4g}, {up} {point.up:.2f}" for point in points)
    return svg("frontier", (right + 24, floor + 46), f"{up[0].upper()}{up[1:]} against {across}", desc, body)


LINES = ("line-0", "line-1", "line-2", "line-3", "line-4", "line-5")


def line_chart(chart: ChartData) -> Markup:
    """The lines of a chart over one axis, which runs as the values do."""
    left, right, floor, top = 56, 480, 206, 16
    points = [point for line in chart.series.values() for point in line]
    spans = [_span([point[axis] for point in points]) for axis in (0, 1)]

    def place(point: tuple[float, float]) -> tuple[float, float]:
        x, y = ((value - low) / (high - low) for value, (low, high) in zip(point, spans, strict=True))
        return left + x * (right - left), floor - y * (floor - top)

    body = NOTHING
    for mark in (0.0, 0.5, 1.0):
        y, (low, high) = floor - mark * (floor - top), spans[1]
        body += LINE.format(x1=left, x2=right, y=y)
        body += TEXT.format(css="tick", x=left - 6, y=y + 4, anchor="end", text=f"{low + mark * (high - low):.3g}")
        x, (low, high) = left + mark * (right - left), spans[0]
        body += TEXT.format(css="tick", x=x, y=floor + 18, anchor="middle", text=f"{low + mark * (high - low):.3g}")
    body += TEXT.format(css="tick", x=(left + right) / 2, y=floor + 38, anchor="middle", text=chart.across)
    body += TEXT.format(css="tick", x=left, y=top - 4, anchor="start", text=chart.up)
    for css, line in zip(LINES, chart.series.values(), strict=False):
        body += PATH.format(css, " ".join(f"{x:.1f},{y:.1f}" for x, y in map(place, line)))
    desc = "; ".join(
        f"{name}: " + ", ".join(f"{x:.3g} {y:.3g}" for x, y in line) for name, line in chart.series.items()
    )
    return svg(chart.name, (right + 24, floor + 46), chart.title, desc, body)


def chart_legend(chart: ChartData) -> list[tuple[str, str]]:
    """The colour and the name of every line."""
    return list(zip(LINES, chart.series, strict=False))


def _span(values: Sequence[float]) -> tuple[float, float]:
    """A range with room around the values, also where all are equal."""
    low, high = min(values), max(values)
    room = 0.1 * (high - low) or 0.1 * abs(high) or 1.0
    return low - room, high + room


def unbeaten(points: Sequence[Point]) -> list[Point]:
    """Those for which no other point is as good in both and better in one, from left to right.

    >>> [point.name for point in unbeaten([Point("a", 1, 9), Point("b", 3, 9), Point("c", 8, 5)])]
    ['a', 'c']
    """
    best: list[Point] = []
    for point in sorted(points, key=lambda point: (point.across, point.up)):
        if not best or point.up < best[-1].up:
            best.append(point)
    return best
