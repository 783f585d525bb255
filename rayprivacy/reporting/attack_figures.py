"""What `rayprivacy audit` and `rayprivacy evaluate` left in the run directory, for the internal copy of the page.

Both read private text, so nothing of this reaches a page to share. An audit is drawn against what the certificate
admits: a dot above the line would be a leak, a dot below it proves nothing. A selective claim that bounds no membership
has no line.
"""

import math
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup
from pydantic import Field

from rayprivacy.reporting.figures import DOT, LINE, NOTHING, PATH, TEXT, TIP, svg
from rayprivacy.reporting.format import number, percent
from rayprivacy.reporting.inputs import Lenient, read_model

LEFT, RIGHT, FLOOR, HEIGHT = 46, 480, 206, 180
_ATTACKS = {"loss": "dot loss", "calibrated": "dot calibrated"}


EXPOSURE_LEGEND = (
    ("dot leaked", "found word for word in the synthetic text"),
    ("", "height: bits of exposure, the top is rank 1"),
)


class OperatingPoint(Lenient):
    """One point of an attack's ROC: its hits at a rate of false alarms, and what the certificate admits, or None."""

    false_alarm_rate: float
    hit_rate: float
    interval: tuple[float, float]
    admitted_by_claim: float | None


class Attack(Lenient):
    """One attack on membership."""

    auc: float
    auc_interval: tuple[float, float]
    points: list[OperatingPoint]


class CanaryFigure(Lenient):
    """One planted secret."""

    kind: str
    users: int
    candidates: int
    rank: float
    exposure: float
    verbatim: bool


class Verdict(Lenient):
    """Whether something came out that the certificate does not admit."""

    flagged: bool
    sentence: str


class Audit(Lenient):
    """The content of audit.json."""

    membership: dict[str, Attack]
    canaries: list[CanaryFigure]
    verdict: Verdict
    notes: dict[str, str] = Field(default_factory=dict)


class Figure(Lenient):
    """A row of evaluation.json."""

    group: str
    name: str
    better: str
    synthetic: float | None
    reference: float | None
    synthetic_interval: tuple[float, float] | None = None


class Evaluation(Lenient):
    """The content of evaluation.json."""

    rows: list[Figure]
    notes: list[str] = Field(default_factory=list)


def read_audit(directory: Path) -> Audit | None:
    """The audit of a run; None where there was none."""
    path = directory / "audit.json"
    return read_model(path, Audit) if path.is_file() else None


def read_evaluation(directory: Path) -> Evaluation | None:
    """The evaluation of a run; None where there was none."""
    path = directory / "evaluation.json"
    return read_model(path, Evaluation) if path.is_file() else None


def roc(audit: Audit) -> Markup:
    """Hits at low rates of false alarms, on a logarithmic axis, below the line of what the certificate admits."""
    points = [(name, point) for name, attack in audit.membership.items() for point in attack.points]
    rates = sorted({point.false_alarm_rate for _, point in points})
    body, described = _frame([f"{mark:.0%}" for mark in (0, 0.5, 1)], "false alarms"), []
    for rate in rates:
        body += TEXT.format(css="tick", x=_across(rate, rates), y=FLOOR + 18, anchor="middle", text=percent(rate))
    admitted = _admitted(audit)
    if admitted:
        body += PATH.format("best", _line(sorted(admitted.items()), rates))
    body += PATH.format("chance", _line([(rate, rate) for rate in rates], rates))
    for name, point in points:
        said = f"{name}: hits {percent(point.hit_rate)} at false alarms {percent(point.false_alarm_rate)}"
        described.append(said)
        x = _across(point.false_alarm_rate, rates)
        css = _ATTACKS.get(name, "dot")
        body += DOT.format(css=css, x=x, y=FLOOR - HEIGHT * point.hit_rate, inner=TIP.format(said))
    title = "Hits of membership attacks, by false alarms"
    return svg("roc", (RIGHT + 24, FLOOR + 46), title, "; ".join(described), body)


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
    body = _frame([f"{mark * most:.0f}" for mark in (0, 0.5, 1)], "users who carry the secret")
    described = []
    step = (RIGHT - LEFT) / len(groups)
    for place, users in enumerate(groups):
        own = [canary for canary in canaries if canary.users == users]
        middle = LEFT + step * (place + 0.5)
        body += TEXT.format(css="tick", x=middle, y=FLOOR + 18, anchor="middle", text=str(users))
        for order, canary in enumerate(own):
            said = f"{canary.kind}, {users} users: {canary.exposure:.1f} bits{', verbatim' if canary.verbatim else ''}"
            described.append(said)
            x = middle + (order - (len(own) - 1) / 2) * min(16.0, step / len(own))
            css = "dot leaked" if canary.verbatim else "dot"
            body += DOT.format(css=css, x=x, y=FLOOR - HEIGHT * canary.exposure / most, inner=TIP.format(said))
    return svg("exposure", (RIGHT + 24, FLOOR + 46), "Exposure of planted secrets", "; ".join(described), body)


def _frame(marks: Sequence[str], across: str) -> Markup:
    body = NOTHING
    for step, mark in enumerate(marks):
        y = FLOOR - HEIGHT * step / (len(marks) - 1)
        body += LINE.format(x1=LEFT, x2=RIGHT, y=y)
        body += TEXT.format(css="tick", x=LEFT - 6, y=y + 4, anchor="end", text=mark)
    return body + TEXT.format(css="tick", x=(LEFT + RIGHT) / 2, y=FLOOR + 38, anchor="middle", text=across)


def _across(rate: float, rates: Sequence[float]) -> float:
    if len(rates) == 1:
        return (LEFT + RIGHT) / 2
    share = (math.log(rate) - math.log(rates[0])) / (math.log(rates[-1]) - math.log(rates[0]))
    return LEFT + 30 + share * (RIGHT - LEFT - 60)


def _line(points: Sequence[tuple[float, float]], rates: Sequence[float]) -> str:
    return " ".join(f"{_across(x, rates):.1f},{FLOOR - HEIGHT * min(y, 1.0):.1f}" for x, y in points)
