"""The flow of the data of a run as a drawing: what is private stands before the release gate, the rest after.

Drawn twice, across for wide screens and paper, down for phones; the style sheet shows one, and hides the other from
screen readers too.
"""

from collections.abc import Sequence

from markupsafe import Markup

from rayprivacy.reporting.figures import NOTHING, RECT, TEXT, svg
from rayprivacy.runs.method import Card


def description(card: Card) -> str:
    """The drawing in words.

    Args:
        card: of the method, with the stations of its data.
    """
    before, after = (_listed([name for name, _ in part]) for part in (card.private, card.released))
    return f"Private: {before}. Then the release gate: the ledger is charged and noise is added. Released: {after}."


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


GATE = ("RELEASE", "GATE")
TITLE = "The flow of the data, from the private corpus to this report"
ARROW = Markup('<path class="arrow" d="M{x0:.0f} {y0:.0f} L{x1:.0f} {y1:.0f} M{head}"/>')


def flow_across(card: Card) -> Markup:
    """The flow from left to right."""
    box, gap, pad, gate_width = 112.0, 18.0, 12.0, 84.0
    body, arrows, x = NOTHING, NOTHING, 0.0
    for zone, nodes in (("private", card.private), ("released", card.released)):
        width = len(nodes) * box + (len(nodes) - 1) * gap + 2 * pad
        body += _zone(zone, x, 0, width, 132)
        for index, node in enumerate(nodes):
            left = x + pad + index * (box + gap)
            body += _node(zone, node, left, 44, box, 68)
            arrows += _right(left + box, 78, gap) if index < len(nodes) - 1 else NOTHING
        x += width
        if zone == "private":
            body += _gate(x + gap, 0, gate_width, 132)
            arrows += _right(x - pad, 78, gap + pad)
            x += gate_width + 2 * gap
            arrows += _right(x - gap, 78, gap + pad)
    return svg("flow-across", (x, 132), TITLE, description(card), body + arrows)


def flow_down(card: Card) -> Markup:
    """The flow from top to bottom."""
    width, box, gap, pad = 340.0, 46.0, 18.0, 12.0
    body, arrows, y = NOTHING, NOTHING, 0.0
    for zone, nodes in (("private", card.private), ("released", card.released)):
        height = 32 + len(nodes) * box + (len(nodes) - 1) * gap + pad
        body += _zone(zone, 0, y, width, height)
        for index, node in enumerate(nodes):
            top = y + 32 + index * (box + gap)
            body += _node(zone, node, pad, top, width - 2 * pad, box)
            arrows += _down(width / 2, top + box, gap) if index < len(nodes) - 1 else NOTHING
        y += height
        if zone == "private":
            body += _gate(0, y + gap, width, 44)
            arrows += _down(width / 2, y - pad, gap + pad) + _down(width / 2, y + gap + 44, gap)
            y += 44 + 2 * gap
    return svg("flow-down", (width, y), TITLE, description(card), body + arrows)


def _zone(zone: str, x: float, y: float, w: float, h: float) -> Markup:
    label = TEXT.format(css=f"zone-name {zone}", x=x + 12, y=y + 23, anchor="start", text=zone.upper())
    return RECT.format(css=f"zone {zone}", x=x + 1, y=y + 1, w=w - 2, h=h - 2, inner=NOTHING) + label


def _node(zone: str, node: Sequence[str], x: float, y: float, w: float, h: float) -> Markup:
    middle, centre = x + w / 2, y + h / 2
    body = RECT.format(css=f"node {zone}", x=x, y=y, w=w, h=h, inner=NOTHING)
    body += TEXT.format(css="node-name", x=middle, y=centre - 3, anchor="middle", text=node[0])
    return body + TEXT.format(css="node-note", x=middle, y=centre + 14, anchor="middle", text=node[1])


def _gate(x: float, y: float, w: float, h: float) -> Markup:
    lines = GATE if h > w else (" ".join(GATE),)
    body = RECT.format(css="gate", x=x, y=y, w=w, h=h, inner=NOTHING)
    first = y + h / 2 - 10 * len(lines)
    notes = ("ledger", "+ noise") if h > w else ("ledger + noise",)
    for row, line in enumerate((*lines, *notes)):
        css = "gate-name" if row < len(lines) else "gate-note"
        body += TEXT.format(css=css, x=x + w / 2, y=first + 5 + 18 * row, anchor="middle", text=line)
    return body


def _right(x: float, y: float, length: float) -> Markup:
    end = x + length - 2
    head = f"{end - 5:.0f} {y - 4:.0f} L{end:.0f} {y:.0f} L{end - 5:.0f} {y + 4:.0f}"
    return ARROW.format(x0=x + 2, y0=y, x1=end, y1=y, head=head)


def _down(x: float, y: float, length: float) -> Markup:
    end = y + length - 2
    head = f"{x - 4:.0f} {end - 5:.0f} L{x:.0f} {end:.0f} L{x + 4:.0f} {end - 5:.0f}"
    return ARROW.format(x0=x, y0=y + 2, x1=x, y1=end, head=head)
