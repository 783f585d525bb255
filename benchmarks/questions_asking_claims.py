"""What asking with phrases must show, or says in passing: figures of arms, each with two errors.

The paired standard error is over seeds. The interval is over what was drawn: evidence for phrases and types of
questions, XQuAD's articles for readers. Of readers there is an error over the evidence that they learnt from as well,
which stands for that over seeds where there is one seed.
"""

from collections.abc import Callable, Mapping, Sequence
from statistics import mean, stdev
from typing import Any

import numpy as np
from questions_claims import Row, difference

# Table E.5 of the thesis, emrQA: KL of greedy asking, of beams, and with QPP, by question generator.
PAPER_KL = {"NQG": (84.2, 45.2, 11.0), "NQG++": (84.3, 66.4, 11.2), "BERT-SQG": (74.5, 47.4, 11.2)}
FREQUENT, CHANCE, BINARY = (f"recall: {how}" for how in ("most frequent", "drawn by frequency", "binary relevance"))
DRAWN, LIKELIEST = "recall: qpp drawn", "recall: qpp likeliest"


def asking(rows: Sequence[Row], kl: Mapping[str, Sequence[Sequence[float]]]) -> list[dict[str, Any]]:
    """All claims about asking.

    Args:
        rows: of arms and seeds, as `questions_claims.difference` reads them.
        kl: of each arm and seed the divergence, and those of evidence that was drawn anew.
    """
    found = []
    for must, one, times, other in _KL:
        if {one, other} <= kl.keys():
            found.append({"must": must} | _nearer(kl, one, times, other))
    for must, one, other, holds in _FIGURES:
        gap = difference(rows, one, other)
        if gap is None:  # an arm was left out
            continue
        gap |= _anew(rows, one, other)
        held = holds(gap["difference"], gap["paired_se"] or gap.get("error_over_evidence", 0.0))
        if ":" in one:
            gap["interval_over_evidence"] = gap.pop("interval_over_articles")
        found.append({"claim": f"{one} {_SAID[holds]} {other}", "must": must, "held": held} | gap)
    return [claim | ({} if claim["held"] else {"why": WHY.get(claim["claim"], "")}) for claim in found]


def _anew(rows: Sequence[Row], one: str, other: str) -> dict[str, float]:
    """The mean difference of two arms where evidence is drawn anew, and its standard error; nothing of other rows."""
    sides = [np.array([row["anew"] for row in rows if row["arm"] == arm and "anew" in row]) for arm in (one, other)]
    if not all(map(len, sides)):
        return {}
    gaps = (sides[0] - sides[1]).mean(axis=0)
    return {"drawn_anew": round(float(gaps.mean()), 4), "error_over_evidence": round(float(gaps.std(ddof=1)), 4)}


def _nearer(kl: Mapping[str, Sequence[Sequence[float]]], one: str, times: float, other: str) -> dict[str, Any]:
    ours, theirs = np.array(kl[one]), times * np.array(kl[other])
    gaps = ours - theirs
    by_seed, drawn = gaps[:, 0].tolist(), gaps.mean(axis=0)[1:]
    times_of = "" if times == 1 else f"{times:.2g} x "
    return {
        "claim": f"KL: {one} <= {times_of}{other}",
        "held": mean(by_seed) <= 0,
        "ours": round(float(ours[:, 0].mean()), 1),
        "other": round(float(theirs[:, 0].mean()), 1),
        "difference": round(mean(by_seed), 1),
        "paired_se": round(stdev(by_seed) / len(by_seed) ** 0.5, 1) if len(by_seed) > 1 else None,
        "interval_over_evidence": [round(float(end), 1) for end in np.quantile(drawn, [0.025, 0.975])],
    }


def _above(gap: float, error: float) -> bool:
    return gap > 0


def _at_least(gap: float, error: float) -> bool:
    return gap >= 0


def _within_an_error(gap: float, error: float) -> bool:
    return gap >= -error


_SAID = {_above: ">", _at_least: ">=", _within_an_error: ">= (less an error)"}
_KL = (
    (True, "qpp drawn", 1 / 3, "greedy"),
    (True, "qpp drawn", 1.0, "beam 3"),
    (False, "qpp drawn", 1.0, "top-k 20"),
    (False, "qpp drawn", 1.0, "nucleus .95"),
    (False, "qpp drawn", 0.5, "qpp greedy"),
    (False, "qpp likeliest", 1.0, "qpp drawn"),
)
_FIGURES: tuple[tuple[bool, str, str, Callable[[float, float], bool]], ...] = (
    (True, "first words: qpp drawn", "first words: beam 3", _above),
    (True, "first words: beam 3", "first words: greedy", _above),
    (False, "first words: qpp drawn", "first words: nucleus .95", _above),
    (True, DRAWN, FREQUENT, _at_least),
    (False, DRAWN, CHANCE, _at_least),
    (False, LIKELIEST, FREQUENT, _at_least),
    (False, LIKELIEST, DRAWN, _above),
    (False, LIKELIEST, BINARY, _at_least),
    (False, BINARY, FREQUENT, _at_least),
    (True, "qpp drawn", "greedy", _within_an_error),
    *(
        (False, "qpp drawn", other, _above)
        for other in ("greedy", "beam 3", "top-k 20", "nucleus .95", "qpp likeliest")
    ),
    (False, "people", "qpp drawn", _above),
    (False, "qpp drawn", "qpp drawn, 1 of an evidence", _above),
    (False, "qpp drawn", "qpp drawn, half the evidence", _above),
)
WHY = {
    f"{DRAWN} >= {FREQUENT}": "What is drawn hits less than what is likeliest, however right the distribution is:"
    " phrases drawn by their public shares hit less than half as many as the most frequent ones do.",
    "qpp drawn >= (less an error) greedy": "The reader that is trained needs little: it does no better with three times"
    " as many questions, nor with people's.",
}
