"""The flow of the data of a run as a drawing: what is private stands before the release gate, the rest after.

It is drawn across for wide screens and paper, and down for phones; the style sheet shows one, and hides the other from
screen readers too.
"""

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from rayprivacy.reporting.figures import NOTHING, RECT, TEXT, svg
from rayprivacy.runs.method import Card

GATE = ("RELEASE", "GATE")
GAP, PAD = 18.0, 12.0
TITLE = "The flow of the data, from the private corpus to this report"
ARROW = Markup('<path class="arrow" d="M{} L{} M{} L{} L{}"/>')


class Way(NamedTuple):
    """A direction of the drawing: sizes along the flow and square to it, in pixels.

    Attributes:
        kind: class of the figure.
        down: whether the flow runs down.
        box, gate: lengths of a node and of the gate.
        head: room before the first node of a zone; an arrow from the gate ends `enter` into it.
        breadth: of the drawing.
        side, node: where nodes begin, and how broad they are.
    """

    kind: str
    down: bool
    box: float
    gate: float
    head: float
    enter: float
    breadth: float
    side: float
    node: float

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
    return svg(way.kind, way.turned(at, way.breadth), TITLE, _described(card), body + arrows)


def _described(card: Card) -> str:
    before, after = (_listed([name for name, _ in part]) for part in (card.private, card.released))
    return f"Private: {before}. Then the release gate: the ledger is charged and noise is added. Released: {after}."


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _zone(zone: str, x: float, y: float, w: float, h: float) -> Markup:
    label = TEXT.format(css=f"zone-name {zone}", x=x + 12, y=y + 23, anchor="start", text=zone.upper())
    return RECT.format(css=f"zone {zone}", x=x + 1, y=y + 1, w=w - 2, h=h - 2, inner=NOTHING) + label


def _node(zone: str, node: Sequence[str], x: float, y: float, w: float, h: float) -> Markup:
    middle, centre = x + w / 2, y + h / 2
    body = RECT.format(css=f"node {zone}", x=x, y=y, w=w, h=h, inner=NOTHING)
    body += TEXT.format(css="node-name", x=middle, y=centre - 3, anchor="middle", text=node[0])
    return body + TEXT.format(css="node-note", x=middle, y=centre + 14, anchor="middle", text=node[1])


def _gate(x: float, y: float, w: float, h: float) -> Markup:
    lines, notes = (GATE, ("ledger", "+ noise")) if h > w else ((" ".join(GATE),), ("ledger + noise",))
    body = RECT.format(css="gate", x=x, y=y, w=w, h=h, inner=NOTHING)
    first = y + h / 2 - 10 * len(lines)
    for row, line in enumerate((*lines, *notes)):
        css = "gate-name" if row < len(lines) else "gate-note"
        body += TEXT.format(css=css, x=x + w / 2, y=first + 5 + 18 * row, anchor="middle", text=line)
    return body
