"""How many users a fact needs: the share of invented facts that a thresholded release gives out.

    python benchmarks/knowledge_support.py --json

A simulation without text: 100 names with 8 attributes each, users who state 4 attributes of a drawn name in each of 10
texts, and a reader that finds the right answer in 70% of the facts that a user states, and else one of 20 wrong ones. A
user counts for at most c (fact, answer) pairs. Counts go through the real release (`release.thresholded`), with delta
1e-6, half of which is the threshold's. Beside the share that came out stands the one that `rayprivacy epsilon
knowledge` says for the mean support of a fact.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from rayprivacy.accounting.calibrate import sigma_for
from rayprivacy.core.units import Budget
from rayprivacy.release.thresholded import ThresholdedCounts

NAMES, ATTRIBUTES, TEXTS, STATED, WRONG = 100, 8, 10, 4, 20
FACTS, RIGHT = NAMES * ATTRIBUTES, 0.7
DELTA, THRESHOLD = 1e-6, 5e-7
ROWS = [(users, 40, epsilon) for users in (1000, 2000, 5000, 20_000) for epsilon in (1.0, 3.0, 8.0)]
ROWS += [(2000, keys, 3.0) for keys in (8, 20)]
RESULTS = Path(__file__).parent / "results" / "knowledge_support.json"


def votes(users: int, most: int, dice: np.random.Generator) -> dict[str, int]:
    """How many users have each (fact, answer); answer 0 is the right one."""
    names = dice.integers(NAMES, size=(users, TEXTS, 1))
    attributes = dice.random((users, TEXTS, ATTRIBUTES)).argsort(axis=2)[:, :, :STATED]
    facts = np.sort((names * ATTRIBUTES + attributes).reshape(users, -1), axis=1)
    repeated = np.concatenate([np.zeros((users, 1), bool), facts[:, 1:] == facts[:, :-1]], axis=1)
    # Repeated facts come last in the random order of a user's facts, and count for nothing.
    chosen = (dice.random(facts.shape) + repeated).argsort(axis=1)[:, :most]
    kept = np.take_along_axis(facts, chosen, axis=1)[~np.take_along_axis(repeated, chosen, axis=1)]
    answers = np.where(dice.random(len(kept)) < RIGHT, 0, dice.integers(1, WRONG + 1, len(kept)))
    pairs, counts = np.unique(np.stack([kept, answers], axis=1), axis=0, return_counts=True)
    return {f"{fact} {answer}": int(count) for (fact, answer), count in zip(pairs.tolist(), counts, strict=True)}


def row(users: int, most: int, epsilon: float, seeds: int) -> dict[str, Any]:
    """One line of the table: means over seeds."""
    sigma = sigma_for(1, Budget(epsilon, DELTA - THRESHOLD))
    mechanism = ThresholdedCounts(most, sigma, THRESHOLD)
    released, supports, answered = [], [], []
    for seed in range(seeds):
        held = votes(users, most, np.random.default_rng(seed))
        passed = mechanism.to_counts(mechanism.draw(held)).keys
        released.append(sum(word.endswith(" 0") for word in passed) / FACTS)
        answered.append(len(passed) / FACTS)
        supports.append(sum(count for word, count in held.items() if word.endswith(" 0")) / FACTS)
    support = float(np.mean(supports))
    return {
        "users": users,
        "keys_per_user": most,
        "epsilon": epsilon,
        "sigma": round(sigma, 5),
        "threshold": round(mechanism.threshold / 2**20, 2),
        "support": round(support, 2),
        "released_and_right": round(float(np.mean(released)), 4),
        "answers_for_each_fact": round(float(np.mean(answered)), 4),
        "by_the_calculator": round(mechanism.passing(support), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    rows = [row(*each, options.seeds) for each in ROWS]
    for each in rows:
        print(*(f"{name} {value}" for name, value in each.items()), sep=", ")
    if options.json:
        RESULTS.write_text(json.dumps({"delta": DELTA, "of_thresholds": THRESHOLD, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
