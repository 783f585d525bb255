"""Figures as inline SVG: the account's budget, lengths of texts, charts, runs, findings of an audit, the flow of data.

Each figure is a string, coloured by classes of the page's style sheet (so it follows light and dark), with a title and
a description for those who do not see it. `Markup.format` escapes whatever is filled in.

An audit reads private text, so its figures are for the internal copy of the page alone. They are drawn against what the
certificate admits: a dot above the line would be a leak, a dot below it proves nothing. A selective claim that bounds
no membership has no line.

The flow shows what is private before the release gate, and the rest after. It is drawn across for wide screens and
paper, and down for phones; the style sheet shows one, and hides the other from screen readers too.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from markupsafe import Markup

from rayprivacy.reporting.format import number, percent
from rayprivacy.reporting.inputs import Audit, CanaryFigure, Histogram
from rayprivacy.runs.method import Card, Chart

SVG = Markup(
    '<svg class="{kind}" viewBox="0 0 {width} {height}" role="img" aria-labelledby="{kind}-title {kind}-desc"{extra}>'
    '<title id="{kind}-title">{title}</title><desc id="{kind}-desc">{desc}</desc>{body}</svg>'
)
RECT = Markup('<rect class="{css}" x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}">{inner}</rect>')
TEXT = Markup('<text class="{css}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>')
LINE = Markup('<line class="grid" x1="{x1}" x2="{x2}" y1="{y:.1f}" y2="{y:.1f}"/>')
DOT = Markup('<circle class="{css}" cx="{x:.1f}" cy="{y:.1f}" r="5"><title>{tip}</title></circle>')
PATH = Markup('<polyline class="{}" points="{}"/>')
TIP = Markup("<title>{}</title>")
NOTHING = Markup("")
RIGHT, FLOOR = 480, 206
MARKS = (0.0, 0.5, 1.0)  # where the grid of a figure has its lines
LINES = tuple(f"line-{place}" for place in range(6))


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


class Point(NamedTuple):
    """One run between privacy and utility: `across` is its epsilon, `up` what it bought."""

    name: str
    across: float
    up: float


def _svg(kind: str, size: tuple[float, float], title: str, desc: str, body: Markup, extra: Markup = NOTHING) -> Markup:
    """Shapes as an accessible figure; `kind` is its class and the stem of its ids."""
    return SVG.format(kind=kind, width=size[0], height=size[1], title=title, desc=desc, body=body, extra=extra)


@dataclass(frozen=True)
class Frame:
    """The field of a figure with axes, in pixels; places in it are shares from 0 to 1, from the left and the floor."""

    left: int = 46
    top: int = 26

    def at(self, across: float, up: float) -> tuple[float, float]:
        """Where a place lies."""
        return self.left + across * (RIGHT - self.left), FLOOR - up * (FLOOR - self.top)

    def grid(self, marks: Sequence[str], across: str, up: str = "") -> Markup:
        """The grid's lines with their marks, from the floor up, and what the axes are called."""
        body = NOTHING
        for share, mark in zip(MARKS, marks, strict=True):
            y = self.at(0, share)[1]
            body += LINE.format(x1=self.left, x2=RIGHT, y=y)
            body += TEXT.format(css="tick", x=self.left - 6, y=y + 4, anchor="end", text=mark)
        if up:
            body += TEXT.format(css="tick", x=self.left, y=self.top - 4, anchor="start", text=up)
        return body + _tick((self.left + RIGHT) / 2, across, FLOOR + 38)


FRAME = Frame()


def _tick(x: float, text: str, y: float = FLOOR + 18) -> Markup:
    return TEXT.format(css="tick", x=x, y=y, anchor="middle", text=text)


def _path(css: str, places: Sequence[tuple[float, float]]) -> Markup:
    return PATH.format(css, " ".join(f"{x:.1f},{y:.1f}" for x, y in places))


def _framed(kind: str, title: str, desc: Sequence[str], body: Markup, room: int = 24) -> Markup:
    """A figure in a frame, with some pixels of room to the right of it."""
    return _svg(kind, (RIGHT + room, FLOOR + 46), title, "; ".join(desc), body)


def stacked_bar(kind: str, title: str, parts: Sequence[Part]) -> Markup:
    """One horizontal bar split in proportion to the parts; the legend belongs beside it, as text."""
    total = sum(part.value for part in parts) or 1.0
    tips = [f"{part.name}: {part.shown}" for part in parts]
    body, x = NOTHING, 0.0
    for part, tip in zip(parts, tips, strict=True):
        width = 1000 * part.value / total
        body += RECT.format(css=part.css, x=x, y=0, w=width, h=30, inner=TIP.format(tip))
        x += width
    return _svg(kind, (1000, 30), title, "; ".join(tips), body, Markup(' preserveAspectRatio="none"'))


def bin_names(edges: Sequence[int]) -> list[str]:
    """The bins in words, as '0', '1-4', '5+'."""
    closed = [str(low) if high == low + 1 else f"{low}-{high - 1}" for low, high in pairwise(edges)]
    return [*closed, f"{edges[-1]}+"]


def length_histogram(series: Sequence[Series]) -> Markup:
    """Grouped bars, the share of texts per bin; every series has the bins of the first."""
    frame, names = FRAME, bin_names(series[0].histogram.edges)
    shares = [[count / max(sum(s.histogram.counts), 1) for count in s.histogram.counts] for s in series]
    top = max(0.1, *(share for row in shares for share in row))
    step = 1 / len(names)
    body = frame.grid([f"{100 * top * mark:.0f}%" for mark in MARKS], "words per text")
    for index, name in enumerate(names):
        body += _tick(frame.at(step * (index + 0.5), 0)[0], name)
    bar = 0.78 * step / len(series)
    width = bar * (RIGHT - frame.left)
    for place, (one, row) in enumerate(zip(series, shares, strict=True)):
        for index, (name, share) in enumerate(zip(names, row, strict=False)):
            x, y = frame.at(step * (index + 0.11) + place * bar, share / top)
            tip = TIP.format(f"{one.name}, {name} words: {percent(share)}")
            body += RECT.format(css=one.css, x=x, y=y, w=width, h=FLOOR - y, inner=tip)
    bins = [[f"{name} words {percent(share)}" for name, share in zip(names, row, strict=False)] for row in shares]
    desc = [f"{one.name}: {', '.join(row)}" for one, row in zip(series, bins, strict=True)]
    return _framed("lengths", "Share of texts by number of words", desc, body, room=4)


def frontier(points: Sequence[Point], across: str, up: str) -> Markup:
    """Runs as dots, further left is more private and lower is better; those that no other run beats are joined."""
    place, body = _plane([(point.across, point.up) for point in points], across, up)
    best, desc = unbeaten(points), []
    body += _path("best", [place(point.across, point.up) for point in best])
    for point in points:
        x, y = place(point.across, point.up)
        desc.append(f"{point.name}: {across} {point.across:.4g}, {up} {point.up:.2f}")
        body += DOT.format(css="dot best" if point in best else "dot", x=x, y=y, tip=desc[-1])
    return _framed("frontier", f"{up[0].upper()}{up[1:]} against {across}", desc, body)


def line_chart(chart: Chart) -> Markup:
    """The lines of a chart over one axis, which runs as the values do."""
    place, body = _plane([point for line in chart.series.values() for point in line], chart.across, chart.up)
    for css, line in zip(LINES, chart.series.values(), strict=False):
        body += _path(css, [place(x, y) for x, y in line])
    desc = [f"{name}: " + ", ".join(f"{x:.3g} {y:.3g}" for x, y in line) for name, line in chart.series.items()]
    return _framed(chart.name, chart.title, desc, body)


def chart_legend(chart: Chart) -> list[tuple[str, str]]:
    """The colour and the name of every line."""
    return list(zip(LINES, chart.series, strict=False))


def _plane(
    points: Sequence[tuple[float, float]], across: str, up: str
) -> tuple[Callable[[float, float], tuple[float, float]], Markup]:
    """Where values lie between two axes that run as the points do, and the axes."""
    frame = Frame(left=56, top=16)
    (x0, x1), (y0, y1) = (_span([point[axis] for point in points]) for axis in (0, 1))
    body = frame.grid([f"{y0 + mark * (y1 - y0):.4g}" for mark in MARKS], across, up)
    for mark in MARKS:
        body += _tick(frame.at(mark, 0)[0], f"{x0 + mark * (x1 - x0):.3g}")
    return lambda x, y: frame.at((x - x0) / (x1 - x0), (y - y0) / (y1 - y0)), body


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


EXPOSURE_LEGEND = (
    ("dot leaked", "found word for word in the synthetic text"),
    ("", "height: bits of exposure, the top is rank 1"),
)


def roc(audit: Audit) -> Markup:
    """Hits at low rates of false alarms, on a logarithmic axis, below the line of what the certificate admits."""
    rates = sorted({point.false_alarm_rate for attack in audit.membership.values() for point in attack.points})
    across = _across(rates)
    body, desc = FRAME.grid([f"{mark:.0%}" for mark in MARKS], "false alarms"), []
    for rate in rates:
        body += _tick(across[rate], percent(rate))
    admitted = _admitted(audit)
    for css, line in (("best", admitted), ("chance", {rate: rate for rate in rates})):
        if line:
            body += _path(css, [(across[rate], _up(min(hits, 1.0))) for rate, hits in sorted(line.items())])
    for name, attack in audit.membership.items():
        for point in attack.points:
            desc.append(f"{name}: hits {percent(point.hit_rate)} at false alarms {percent(point.false_alarm_rate)}")
            x, y = across[point.false_alarm_rate], _up(point.hit_rate)
            css = f"dot {name}" if name in ("loss", "calibrated") else "dot"
            body += DOT.format(css=css, x=x, y=y, tip=desc[-1])
    return _framed("roc", "Hits of membership attacks, by false alarms", desc, body)


def roc_legend(audit: Audit) -> list[tuple[str, str]]:
    """What the dots and lines of `roc` are: (class, text)."""
    dots = [
        (f"dot {name}", f"{name}: AUC {number(a.auc)} ({number(a.auc_interval[0])} to {number(a.auc_interval[1])})")
        for name, a in audit.membership.items()
    ]
    line = "line: what the certificate admits" if _admitted(audit) else "no line: the claim does not bound membership"
    return [*dots, ("", f"{line}; dashed: guessing")]


def _admitted(audit: Audit) -> dict[float, float]:
    """The greatest rate of hits by the rate of false alarms; empty where the claim does not bound membership."""
    points = [point for attack in audit.membership.values() for point in attack.points]
    return {each.false_alarm_rate: each.admitted_by_claim for each in points if each.admitted_by_claim is not None}


def exposures(canaries: Sequence[CanaryFigure]) -> Markup:
    """Exposure of the planted secrets, in bits, by the number of users who carry one."""
    groups = sorted({canary.users for canary in canaries})
    most = max(math.log2(canary.candidates) for canary in canaries)
    body, desc = FRAME.grid([f"{mark * most:.0f}" for mark in MARKS], "users who carry the secret"), []
    step = (RIGHT - FRAME.left) / len(groups)
    for place, users in enumerate(groups):
        own = [canary for canary in canaries if canary.users == users]
        middle = FRAME.left + step * (place + 0.5)
        body += _tick(middle, str(users))
        for order, canary in enumerate(own):
            verbatim, css = (", verbatim", "dot leaked") if canary.verbatim else ("", "dot")
            desc.append(f"{canary.kind}, {users} users: {canary.exposure:.1f} bits{verbatim}")
            x = middle + (order - (len(own) - 1) / 2) * min(16.0, step / len(own))
            body += DOT.format(css=css, x=x, y=_up(canary.exposure / most), tip=desc[-1])
    return _framed("exposure", "Exposure of planted secrets", desc, body)


def _up(share: float) -> float:
    return FRAME.at(0, share)[1]


def _across(rates: Sequence[float]) -> dict[float, float]:
    """Where each rate stands on a logarithmic axis; one alone stands in the middle."""
    if len(rates) == 1:
        return {rates[0]: (FRAME.left + RIGHT) / 2}
    low, high = math.log(rates[0]), math.log(rates[-1])
    shares = {rate: (math.log(rate) - low) / (high - low) for rate in rates}
    return {rate: FRAME.left + 30 + share * (RIGHT - FRAME.left - 60) for rate, share in shares.items()}


GAP, PAD = 18.0, 12.0
ARROW = Markup('<path class="arrow" d="M{} L{} M{} L{} L{}"/>')


class Way(NamedTuple):
    """A direction of the drawing: sizes along the flow and square to it, in pixels."""

    kind: str  # class of the figure
    down: bool  # whether the flow runs down
    box: float  # length of a node
    gate: float
    head: float  # room before the first node of a zone; an arrow from the gate ends `enter` into it
    enter: float
    breadth: float  # of the drawing
    side: float  # where nodes begin
    node: float  # how broad they are

    def turned(self, along: float, aside: float) -> tuple[float, float]:
        """Horizontal and vertical."""
        return (aside, along) if self.down else (along, aside)

    def rect(self, along: float, aside: float, length: float, breadth: float) -> tuple[float, float, float, float]:
        """A rectangle as x, y, width and height."""
        return *self.turned(along, aside), *self.turned(length, breadth)

    def arrow(self, along: float, length: float) -> Markup:
        """An arrow in the middle of the nodes."""
        middle, end = self.side + self.node / 2, along + length - 2
        tip = (end, middle)
        points = ((along + 2, middle), tip, (end - 5, middle - 4), tip, (end - 5, middle + 4))
        return ARROW.format(*("{:.0f} {:.0f}".format(*self.turned(*point)) for point in points))


ACROSS = Way("flow-across", down=False, box=112, gate=84, head=PAD, enter=PAD, breadth=132, side=44, node=68)
DOWN = Way("flow-down", down=True, box=46, gate=44, head=32, enter=0, breadth=340, side=PAD, node=340 - 2 * PAD)


def flow(card: Card, way: Way) -> Markup:
    """The stations of a method's data."""
    body, arrows, at = NOTHING, NOTHING, 0.0
    for zone, nodes in (("private", card.private), ("released", card.released)):
        length = way.head + len(nodes) * (way.box + GAP) - GAP + PAD
        body += _zone(zone, *way.rect(at, 0, length, way.breadth))
        for index, node in enumerate(nodes):
            start = at + way.head + index * (way.box + GAP)
            body += _node(zone, node, *way.rect(start, way.side, way.box, way.node))
            arrows += way.arrow(start - GAP, GAP) if index else NOTHING
        at += length
        if zone == "private":
            body += _gate(*way.rect(at + GAP, 0, way.gate, way.breadth))
            arrows += way.arrow(at - PAD, GAP + PAD)
            at += way.gate + 2 * GAP
            arrows += way.arrow(at - GAP, GAP + way.enter)
    return _svg(
        way.kind,
        way.turned(at, way.breadth),
        "The flow of the data, from the private corpus to this report",
        _described(card),
        body + arrows,
    )


def _described(card: Card) -> str:
    parts = ([name for name, _ in part] for part in (card.private, card.released))
    before, after = (" and ".join(filter(None, (", ".join(names[:-1]), names[-1]))) for names in parts)
    return f"Private: {before}. Then the release gate: the ledger is charged and noise is added. Released: {after}."


def _zone(zone: str, x: float, y: float, w: float, h: float) -> Markup:
    label = TEXT.format(css=f"zone-name {zone}", x=x + 12, y=y + 23, anchor="start", text=zone.upper())
    return RECT.format(css=f"zone {zone}", x=x + 1, y=y + 1, w=w - 2, h=h - 2, inner=NOTHING) + label


def _node(zone: str, node: Sequence[str], x: float, y: float, w: float, h: float) -> Markup:
    middle, centre = x + w / 2, y + h / 2
    body = RECT.format(css=f"node {zone}", x=x, y=y, w=w, h=h, inner=NOTHING)
    body += TEXT.format(css="node-name", x=middle, y=centre - 3, anchor="middle", text=node[0])
    return body + TEXT.format(css="node-note", x=middle, y=centre + 14, anchor="middle", text=node[1])


def _gate(x: float, y: float, w: float, h: float) -> Markup:
    lines = ("RELEASE", "GATE", "ledger", "+ noise") if h > w else ("RELEASE GATE", "ledger + noise")
    body = RECT.format(css="gate", x=x, y=y, w=w, h=h, inner=NOTHING)
    first = y + h / 2 - 5 * len(lines)
    for row, line in enumerate(lines):
        css = "gate-name" if row < len(lines) / 2 else "gate-note"
        body += TEXT.format(css=css, x=x + w / 2, y=first + 5 + 18 * row, anchor="middle", text=line)
    return body
