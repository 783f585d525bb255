"""Does synthetic text repeat the private text it came from? Every figure needs a control, and held-out text is it.

Small talk is near other small talk whoever wrote it. So what synthetic texts show is set beside what HELD-OUT real
texts show, whose users no generator has seen: their 8-grams, runs and distances to real text are chance and common
language. Synthetic text that is nearer to real text than held-out text is, has more of it than the language gives. The
reverse proves nothing: these figures look at nearest neighbours and copied words, and a differential-privacy
certificate bounds what they cannot see.

`nearer_to_real` asks each synthetic text which is nearer: the real texts or as many held-out ones. A generator that
learnt the language, not the people, answers one half.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rayprivacy.evaluation.bootstrap import Figure, mean_figure
from rayprivacy.evaluation.nearest import nearest_distances
from rayprivacy.evaluation.rows import Better, Row, paired
from rayprivacy.evaluation.runs import GRAM, Runs, shared_runs
from rayprivacy.evaluation.texts import Texts, sample

GROUP = "memorisation"
QUANTILES = (1, 5, 50)
Matrix = npt.NDArray[np.floating]
RUN_BETTER: Mapping[str, Better] = {
    f"shared_{GRAM}gram_texts": "near",
    f"shared_{GRAM}gram_share": "near",
    "copied_texts": "near",
    "longest_run_mean": "near",
    "longest_run_p95": "near",
    "longest_run_max": "near",
}


@dataclass(frozen=True)
class Features:
    """Features in one embedding, of length 1.

    Attributes:
        real: of real texts.
        synthetic: of synthetic texts.
        holdout: of held-out real texts; None without them.
    """

    real: Matrix
    synthetic: Matrix
    holdout: Matrix | None


def run_rows(real: list[str], synthetic: Texts, holdout: Texts | None, seed: int = 0) -> list[Row]:
    """Copied words: of synthetic and of held-out texts, in all real texts.

    Texts of fewer than `GRAM` words count in the longest runs only.
    """
    sides = [_runs(texts, real, seed) if texts is not None else None for texts in (synthetic, holdout)]
    return paired(GROUP, RUN_BETTER, sides[0] or {}, sides[1])


def _runs(texts: Texts, real: list[str], seed: int) -> dict[str, Figure | float]:
    found = shared_runs(texts.texts, real)
    return _of_long(found, texts, seed) | {
        "longest_run_mean": mean_figure(found.longest, texts.users, seed),
        "longest_run_p95": float(np.percentile(found.longest, 95)),
        "longest_run_max": float(found.longest.max()),
    }


def _of_long(found: Runs, texts: Texts, seed: int) -> dict[str, Figure | float]:
    long = found.long_enough
    if not long.any():
        return {}
    users = texts.users[long]
    return {
        f"shared_{GRAM}gram_texts": mean_figure(found.grams[long] > 0, users, seed),
        f"shared_{GRAM}gram_share": mean_figure(found.gram_share[long], users, seed),
        "copied_texts": mean_figure(found.copied[long], users, seed),
    }


def distance_rows(
    features: Mapping[str, Features], synthetic: Texts, holdout: Texts | None, seed: int = 0
) -> list[Row]:
    """Distances to the nearest real text: quantiles, their ratio to the held-out ones, and which side is nearer."""
    ours = {name: nearest_distances(each.synthetic, each.real) for name, each in features.items()}
    theirs = {
        name: nearest_distances(each.holdout, each.real) for name, each in features.items() if each.holdout is not None
    }
    rows = [
        row for quantile in QUANTILES for row in _quantile_rows(f"nearest_distance_p{quantile}", quantile, ours, theirs)
    ]
    rows.append(
        Row(
            GROUP,
            "nearest_distance_mean",
            "near",
            mean_figure(np.mean(list(ours.values()), axis=0), synthetic.users, seed),
            mean_figure(np.mean(list(theirs.values()), axis=0), holdout.users, seed) if holdout is not None else None,
        )
    )
    return rows + (_nearer_rows(features, synthetic, seed) if holdout is not None else [])


def _quantile_rows(
    name: str,
    quantile: int,
    ours: Mapping[str, npt.NDArray[np.float64]],
    theirs: Mapping[str, npt.NDArray[np.float64]],
) -> list[Row]:
    each = {key: {"synthetic": float(np.percentile(values, quantile))} for key, values in ours.items()}
    for key, values in theirs.items():
        each[key]["reference"] = float(np.percentile(values, quantile))
    mean = Figure(float(np.mean([values["synthetic"] for values in each.values()])))
    if not theirs:
        return [Row(GROUP, name, "near", mean, None, each)]
    other = float(np.mean([values["reference"] for values in each.values()]))
    rows = [Row(GROUP, name, "near", mean, Figure(other), each)]
    if other > 0:  # where held-out texts are themselves copies, a ratio says nothing
        rows.append(Row(GROUP, f"{name}_ratio", "near", Figure(mean.value / other), Figure(1.0)))
    return rows


def _nearer_rows(features: Mapping[str, Features], synthetic: Texts, seed: int) -> list[Row]:
    """Against equally many real and held-out texts; a tie counts for both."""
    votes = []
    for each in features.values():
        assert each.holdout is not None
        size = min(len(each.real), len(each.holdout))
        real, held = (side[sample(len(side), size, seed)] for side in (each.real, each.holdout))
        gap = nearest_distances(each.synthetic, held) - nearest_distances(each.synthetic, real)
        votes.append((gap > 0) + 0.5 * (gap == 0))
    share = mean_figure(np.mean(votes, axis=0), synthetic.users, seed)
    return [Row(GROUP, "nearer_to_real", "near", share, Figure(0.5))]
