"""Which phrases people's questions about an evidence begin with: an asker's predictions beside simple ones.

    python benchmarks/questions_phrases.py --data DIR     # what needs no asker, on all sentences, in seconds

All sets have as many phrases. What is *drawn* from a distribution hits less than its likeliest members do, however
right the distribution is: so drawn phrases have a baseline that is drawn too, and the likeliest ones have one that is
the same for every evidence.
"""

import argparse
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.special import expit
from squad import source_and_target

from rayprivacy.evaluation.figures import mean_figure
from rayprivacy.models.asked import Pair
from rayprivacy.questions.phrases import Phrases, read
from rayprivacy.questions.settings import PhrasesConfig

Vectors = Callable[[Sequence[str]], npt.NDArray[Any]]
MOST, CHANCE = 3, 20  # phrases of a set; draws by frequency alone, over which a recall is averaged
PENALTIES = (1e-5, 1e-4, 1e-3)  # on squared weights; one is chosen on a tenth of the public evidence


def likeliest(draws: Sequence[tuple[int, str]], evidences: int, known: Phrases, most: int) -> list[list[str]]:
    """For each evidence the phrases that most of many drawn sets have; of equal ones the more frequent in public."""
    seen: list[Counter[str]] = [Counter() for _ in range(evidences)]
    for number, text in draws:
        seen[number].update(read(text, known))
    rank = {phrase: place for place, phrase in enumerate(known.frequent(len(known.counts)))}
    return [sorted(own, key=lambda phrase: (-own[phrase], rank[phrase]))[:most] for own in seen]


def by_frequency(known: Phrases, evidences: int, most: int, dice: np.random.Generator) -> list[list[str]]:
    """Sets drawn from the shares that phrases have in public questions, whatever the evidence."""
    phrases = known.frequent(len(known.counts))
    shares = np.array([known.counts[phrase] for phrase in phrases], float)
    order = np.argsort(-np.log(shares) - dice.gumbel(size=(evidences, len(shares))), axis=1)[:, :most]
    return [[phrases[place] for place in own] for own in order]


def relevance(
    pairs: Sequence[Pair], known: Phrases, evidence: Sequence[str], vectors: Vectors, most: int
) -> list[list[str]]:
    """Binary relevance: a logistic regression for each phrase on static vectors, and the likeliest phrases by them."""
    public, phrases = known.sets(pairs), known.frequent(len(known.counts))
    place = {phrase: number for number, phrase in enumerate(phrases)}
    target = np.zeros((len(public), len(phrases)))
    for row, own in enumerate(public.values()):
        target[row, [place[phrase] for phrase in own]] = 1
    read_of = _columns(vectors([*public]))
    held = np.arange(len(public)) % 10 == 0
    weights = [_fitted(read_of[~held], target[~held], penalty) for penalty in PENALTIES]
    best = min(weights, key=lambda each: _loss(read_of[held] @ each, target[held]))
    scores = _columns(vectors(evidence)) @ best
    return [[phrases[each] for each in row] for row in np.argsort(-scores, axis=1, kind="stable")[:, :most]]


def _columns(vectors: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    return np.column_stack([vectors.astype(float), np.ones(len(vectors))])


def _loss(scores: npt.NDArray[np.float64], target: npt.NDArray[np.float64]) -> float:
    return float((np.logaddexp(0, scores) - target * scores).sum() / len(scores))


def _fitted(
    columns: npt.NDArray[np.float64], target: npt.NDArray[np.float64], penalty: float
) -> npt.NDArray[np.float64]:
    shape = columns.shape[1], target.shape[1]

    def loss(flat: npt.NDArray[np.float64]) -> tuple[float, npt.NDArray[np.float64]]:
        weights = flat.reshape(shape)
        scores = columns @ weights
        pull = columns.T @ (expit(scores) - target) / len(columns) + penalty * weights
        return _loss(scores, target) + penalty / 2 * float((flat**2).sum()), pull.ravel()

    found: Any = minimize(loss, np.zeros(shape).ravel(), jac=True, method="L-BFGS-B", options={"maxiter": 60})
    return np.asarray(found.x.reshape(shape))


def hits(predicted: Sequence[Sequence[str]], real: Sequence[Sequence[str]]) -> list[int]:
    """How many of the phrases of an evidence's real questions are in its set."""
    return [len({*ours} & {*theirs}) for ours, theirs in zip(predicted, real, strict=True)]


def of_all(data: Path) -> dict[str, Any]:
    """Recall of sets of three on all sentences that may be asked about, without an asker: frequent, and drawn so."""
    source, target = source_and_target(data)
    known, about = Phrases.of((row["question"] for row in source), PhrasesConfig()), dict[str, set[str]]()
    for row in target:
        if 5 <= len(row["sentence"].split()) <= 60 and (phrase := known(row["question"])):
            about.setdefault(row["sentence"], set()).add(phrase)
    real, dice = [*map(sorted, about.values())], np.random.default_rng(0)
    frequent = np.array(hits([known.frequent(MOST)] * len(real), real), float)
    chance = np.mean([hits(by_frequency(known, len(real), MOST, dice), real) for _ in range(CHANCE)], axis=0)
    count = np.array([*map(len, real)])

    def shown(found: npt.NDArray[np.float64]) -> list[float]:
        figure = mean_figure(found / count, np.arange(len(count)), 0, count)
        return [round(float(each), 4) for each in (figure.value, figure.low, figure.high)]

    return {
        "sentences": len(real),
        "phrases of people": int(count.sum()),
        "phrases known": len(known.counts),
        "recall and its interval over sentences": {
            "the most frequent": shown(frequent),
            "drawn by frequency": shown(chance),
            "difference": shown(chance - frequent),
        },
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    print(json.dumps(of_all(parser.parse_args().data), indent=1, allow_nan=False))
