"""What rows of question answering must show, or say in passing: differences between arms, with two errors each.

The paired standard error is over seeds, and says whether another draw would show the same; the interval is over the
articles of the test questions, and says whether other articles would.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import mean, stdev
from typing import Any

import numpy as np
import numpy.typing as npt

from rayprivacy.evaluation.figures import mean_figure

Row = Mapping[str, Any]
# Table 7.2 of the thesis: EM with 1,000 annotations on NewsQA, NQ, HotpotQA and TriviaQA.
QVE_PAPER = {
    "theta0": (40.2, 45.2, 43.3, 49.5),
    "+D^t": (43.7, 54.2, 51.7, 55.7),
    "none": (45.3, 60.5, 52.9, 58.3),
    "roundtrip": (45.4, 58.6, 53.9, 58.7),
    "likelihood": (45.3, 60.0, 53.9, 56.0),
    "classifier": (45.2, 60.1, 53.7, 58.2),
    "ranking": (45.8, 60.6, 53.9, 58.4),
    "value 60%": (46.2, 61.3, 54.5, 62.3),
    "supervised": (50.0, 65.8, 56.8, 64.6),
}
VALUE = "value 60%"
FIXED = ("none", "random", "roundtrip", "likelihood", "classifier", "ranking", "value 40%", "value 60%", "value 80%")


def difference(rows: Sequence[Row], one: str, other: str) -> dict[str, Any] | None:
    """Of two arms over the same seeds, or nothing where one of them has no rows."""
    sides = [{row["seed"]: row for row in rows if row["arm"] == arm} for arm in (one, other)]
    seeds = sorted(set(sides[0]) & set(sides[1]))
    if not seeds:
        return None
    pairs = [(sides[0][seed], sides[1][seed]) for seed in seeds]
    by_seed = [ours["accuracy"] - theirs["accuracy"] for ours, theirs in pairs]
    ours, theirs = (np.concatenate([_shares(pair[side]) for pair in pairs]) for side in (0, 1))
    asked = np.concatenate([pair[0]["asked_by_article"] for pair in pairs])
    named = [name for pair in pairs for name in pair[0].get("articles", range(len(pair[0]["asked_by_article"])))]
    users = np.unique(np.array([str(name) for name in named]), return_inverse=True)[1]
    articles = mean_figure(ours - theirs, users, 0, asked)
    return {
        "difference": round(mean(by_seed), 4),
        "paired_se": round(stdev(by_seed) / len(seeds) ** 0.5, 4) if len(seeds) > 1 else None,
        "interval_over_articles": [round(float(end), 4) for end in (articles.low, articles.high)],
    }


def _shares(row: Row) -> npt.NDArray[np.float64]:
    """Of each article; one that nothing was asked about has no weight."""
    return np.divide(row["right_by_article"], np.maximum(row["asked_by_article"], 1))


def said(claim: Row) -> str:
    """A claim in a line of text, and why it failed if it did."""
    figures = {name: figure for name, figure in claim.items() if name not in ("claim", "must", "held", "why")}
    state = ("held" if claim["held"] else "FAILED") if claim["must"] else ("so" if claim["held"] else "not so")
    return f"{state:<6}  {claim['claim']}  {figures}" + (f"  {claim['why']}" if claim.get("why") else "")


def qve(rows: Sequence[Row], selections: Mapping[str, Sequence[Row]]) -> list[dict[str, Any]]:
    """All claims about values of questions, where their rows are there.

    Args:
        rows: of all sets of questions; `noise` names the set.
        selections: for each set, what values say of questions: `auc` and `kept_corrupted`, a row for each seed.
    """
    found = []
    for noise in dict.fromkeys(row["noise"] for row in rows):
        own = [row for row in rows if row["noise"] == noise]
        for said, must, one, others, holds in _QVE:
            if noise in must or must == ():
                for other in _present(own, others):
                    found += _claim(f"{noise}: {said.format(one=one, other=other)}", bool(must), own, one, other, holds)
    for noise, values in selections.items():
        if "auc" in values[0]:
            area, left = (mean(row[name] for row in values) for name in ("auc", "kept_corrupted"))
            must = noise == "40%"
            found.append(_figure(f"{noise}: AUC(value, clean) is at least .85", must, area, area >= 0.85))
            found.append(_figure(f"{noise}: at most .20 of the kept 60% are corrupted", must, left, left <= 0.2))
    found += _peak([row for row in rows if row["noise"] == "40%"])
    return found + _curve(selections.get("40%", []))


def _present(rows: Sequence[Row], others: Sequence[str]) -> list[str]:
    known = {row["arm"] for row in rows}
    return [each for each in others if each in known]


def _claim(
    said: str, must: bool, rows: Sequence[Row], one: str, other: str, holds: Callable[[float, float], bool]
) -> list[dict[str, Any]]:
    gap = difference(rows, one, other)
    if gap is None:
        return []
    return [{"claim": said, "must": must, "held": holds(gap["difference"], gap["paired_se"] or 0.0)} | gap]


def _figure(said: str, must: bool, figure: float, held: bool) -> dict[str, Any]:
    return {"claim": said, "must": must, "held": held, "figure": round(figure, 4)}


def _peak(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Where the best share of values lies, and whether keeping all is worst."""
    arms = {
        "20%": "value 20%",
        "40%": "value 40%",
        "50%": "value 50%",
        "60%": VALUE,
        "80%": "value 80%",
        "100%": "none",
    }
    means = {
        share: mean(row["accuracy"] for row in rows if row["arm"] == arm)
        for share, arm in arms.items()
        if any(row["arm"] == arm for row in rows)
    }
    if len(means) < len(arms):
        return []
    best, worst = max(means, key=means.__getitem__), min(means, key=means.__getitem__)
    shares = {"accuracy_by_share": {share: round(figure, 4) for share, figure in means.items()}}
    return [
        {"claim": "40%: the best share is 40 to 60%", "must": True, "held": best in ("40%", "50%", "60%")} | shares,
        {"claim": "40%: keeping all is the worst share", "must": True, "held": worst == "100%"} | shares,
    ]


def _curve(values: Sequence[Row]) -> list[dict[str, Any]]:
    """Whether more annotations make better values: AUC does not fall by more than one paired standard error."""
    curves = [row["auc_by_annotations"] for row in values if "auc_by_annotations" in row]
    if not curves:
        return []
    counts = sorted(curves[0], key=int)
    rises = []
    for less, more in pairwise(counts):
        gains = [curve[more] - curve[less] for curve in curves]
        rises.append(mean(gains) + (stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else 0) >= 0)
    means = {count: round(mean(curve[count] for curve in curves), 4) for count in counts}
    return [{"claim": "40%: AUC does not fall with annotations", "must": True, "held": all(rises), "auc": means}]


def _by_two_errors(gap: float, error: float) -> bool:
    return gap > 2 * error and gap > 0


def _within_one_error(gap: float, error: float) -> bool:
    return gap >= -error


def _above(gap: float, error: float) -> bool:
    return gap > 0


def _within(points: float) -> Callable[[float, float], bool]:
    return lambda gap, error: gap >= -points / 100


# What is said, the sets that it must hold on (of an empty one it is printed for all), an arm, others, and the rule.
_QVE: tuple[tuple[str, tuple[str, ...], str, tuple[str, ...], Callable[[float, float], bool]], ...] = (
    ("{one} is above {other} by two errors", ("40%",), VALUE, ("none", "random"), _by_two_errors),
    ("{one} is at most 1.5 points below {other}", ("40%",), VALUE, ("roundtrip",), _within(1.5)),
    ("{one} is at most 1.5 points below {other}", ("40%", "20%", "0%"), "measured", FIXED, _within(1.5)),
    ("{one} is above {other} by 2 points", ("asked",), "none", ("+D^t",), lambda gap, error: gap >= 0.02),
    ("{one} is at most an error below {other}", ("asked",), VALUE, ("none", "random", "roundtrip"), _within_one_error),
    ("{one} is at most 1 point below {other}", ("asked",), "measured", ("none",), _within(1)),
    ("{one} is above {other}", (), VALUE, ("+D^t", *FIXED[:6], "begun", "value em", "measured"), _above),
    ("{one} is above {other}", (), "none", ("+D^t",), _above),
    ("{one} is above {other}", (), "+D^t", ("theta0", "overlap"), _above),
    ("{one} is above {other}", (), "ranking", ("classifier",), _above),
    ("{one} is above {other}", (), "oracle", (VALUE,), _above),
)


# Retrieval: what is said, the start and the pools that it must hold on, an arm, others, and by how much it is above.
_EASY, _HARD, _PLAIN, _PACKAGED = "H + S", "H + T", "plain", "packaged"
_CMORE: tuple[tuple[str, tuple[str, ...], str, str, float], ...] = (
    (_PLAIN, (_EASY,), "inverse cloze", "raw", 0.0),
    (_PLAIN, (_EASY,), "C-MORE", "inverse cloze", 0.0),
    (_PLAIN, (_EASY,), "C-MORE", "raw", 0.02),
    (_PLAIN, (_EASY, _HARD), "C-MORE + source@250", "source@250", 0.0),
    (_PLAIN, (_EASY, _HARD), "hybrid", "BM25", -0.005),
    (_PLAIN, (), "C-MORE + source@1000", "source@1000", 0.0),
    (_PLAIN, (), "C-MORE + source@6000", "source@6000", 0.0),
    (_PACKAGED, (_EASY, _HARD), "hybrid", "BM25", -0.005),
    (_PACKAGED, (), "C-MORE", "raw", 0.0),
    (_PACKAGED, (), "C-MORE", "inverse cloze", 0.0),
    (_PACKAGED, (), "C-MORE + source@250", "source@250", 0.0),
    (_PACKAGED, (), "source@6000", "raw", 0.0),
    (_PACKAGED, (), "released", "raw", 0.0),
    (_PACKAGED, (), "released, hybrid", "BM25", 0.0),
)
RELEASED = 0.9  # of nDCG@10 with people's questions, at least


def cmore(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """All claims about retrieval, by top-20; and that released questions serve nearly as well as people's."""
    found = []
    for start, must, one, other, least in _CMORE:
        for pool in (_EASY, _HARD):
            own = [row for row in rows if row["pool"] == pool and row["start"] in (start, "")]
            seeds = {row["seed"] for row in own}
            own += [{**row, "seed": seed} for row in own if row["arm"] == "BM25" for seed in seeds - {row["seed"]}]
            rule = _at_least(least) if least else _above
            said = f"{one} is at least {other} {100 * least:+.1f} points" if least else f"{one} is above {other}"
            found += _claim(f"{pool}, {start}: {said}", pool in must, own, one, other, rule)
    for pool in (_EASY, _HARD):
        both = [
            mean(row["ndcg_10"] for row in rows if row["pool"] == pool and row["arm"] == arm)
            for arm in ("released", "people")
            if any(row["arm"] == arm for row in rows)
        ]
        if len(both) == 2:
            share = both[0] / both[1]
            said = f"{pool}: nDCG@10 after released questions is at least {RELEASED} of that after people's"
            found.append(_figure(said, True, share, share >= RELEASED))
    return found


def _at_least(least: float) -> Callable[[float, float], bool]:
    return lambda gap, error: gap >= least
