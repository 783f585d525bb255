"""Figures of what an audit found, for the internal copy of the page.

An audit reads private text, so nothing of this reaches a page to share. It is drawn against what the certificate
admits: a dot above the line would be a leak, a dot below it proves nothing. A selective claim that bounds no membership
has no line.
"""

import math
from collections.abc import Sequence

from markupsafe import Markup

from rayprivacy.reporting.figures import DOT, MARKS, RIGHT, Frame, framed, path, tick
from rayprivacy.reporting.format import number, percent
from rayprivacy.reporting.inputs import Audit, CanaryFigure

FRAME = Frame()
EXPOSURE_LEGEND = (
    ("dot leaked", "found word for word in the synthetic text"),
    ("", "height: bits of exposure, the top is rank 1"),
)
_ATTACKS = {"loss": "dot loss", "calibrated": "dot calibrated"}


def roc(audit: Audit) -> Markup:
    """Hits at low rates of false alarms, on a logarithmic axis, below the line of what the certificate admits."""
    rates = sorted({point.false_alarm_rate for attack in audit.membership.values() for point in attack.points})
    across = _across(rates)
    body, desc = FRAME.grid([f"{mark:.0%}" for mark in MARKS], "false alarms"), []
    for rate in rates:
        body += tick(across[rate], percent(rate))
    admitted = _admitted(audit)
    for css, line in (("best", admitted), ("chance", {rate: rate for rate in rates})):
        if line:
            body += path(css, [(across[rate], _up(min(hits, 1.0))) for rate, hits in sorted(line.items())])
    for name, attack in audit.membership.items():
        for point in attack.points:
            desc.append(f"{name}: hits {percent(point.hit_rate)} at false alarms {percent(point.false_alarm_rate)}")
            x, y, css = across[point.false_alarm_rate], _up(point.hit_rate), _ATTACKS.get(name, "dot")
            body += DOT.format(css=css, x=x, y=y, tip=desc[-1])
    return framed("roc", "Hits of membership attacks, by false alarms", desc, body)


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
        body += tick(middle, str(users))
        for order, canary in enumerate(own):
            verbatim, css = (", verbatim", "dot leaked") if canary.verbatim else ("", "dot")
            desc.append(f"{canary.kind}, {users} users: {canary.exposure:.1f} bits{verbatim}")
            x = middle + (order - (len(own) - 1) / 2) * min(16.0, step / len(own))
            body += DOT.format(css=css, x=x, y=_up(canary.exposure / most), tip=desc[-1])
    return framed("exposure", "Exposure of planted secrets", desc, body)


def _up(share: float) -> float:
    return FRAME.at(0, share)[1]


def _across(rates: Sequence[float]) -> dict[float, float]:
    """Where each rate stands on a logarithmic axis; one alone stands in the middle."""
    if len(rates) == 1:
        return {rates[0]: (FRAME.left + RIGHT) / 2}
    low, high = math.log(rates[0]), math.log(rates[-1])
    shares = {rate: (math.log(rate) - low) / (high - low) for rate in rates}
    return {rate: FRAME.left + 30 + share * (RIGHT - FRAME.left - 60) for rate, share in shares.items()}
