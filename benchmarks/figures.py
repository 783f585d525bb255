"""How near figures that may be shown come to those without noise, by how many users are held out.

    OMP_NUM_THREADS=1 python benchmarks/figures.py --json
    OMP_NUM_THREADS=1 python benchmarks/figures.py --values FILE --json

Users of the public chat data of the quickstart (pip install chitchat-dataset): half of them play the held-out ones, and
texts of the others the synthetic ones, so that distances are small, which is where noise shows most. The model is the
base, SmolLM2-135M. What each user hands in is measured once, and kept in `--values`. Then, for a number of held-out
users, so many are drawn with replacement, and noise with them, 200 times, as `runs.figures` would release them.

`shown` is the share of draws in which a figure is not left out. Of these, `near` is the share in which a perplexity is
within 5% of the one without noise, or another figure within 0.05, and `held` how often the interval holds the one
without noise. No account is charged: the data is public, and what is drawn here is no release.
"""

import argparse
import json
import math
import os
import pickle
import platform
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rayprivacy.accounting.calibrate import sigma_for
from rayprivacy.core.units import Budget, PrivacyUnit
from rayprivacy.dpsgd.units import Reading, no_context
from rayprivacy.evaluation.settings import FigureName, FiguresConfig
from rayprivacy.evaluation.shown import Layout, Perplexity
from rayprivacy.models.backbone import load_backbone
from rayprivacy.models.settings import ModelConfig
from rayprivacy.release.figure_vectors import FigureVectors
from rayprivacy.runs.figures import OTHER, OWN, of_model, of_texts

RESULT = Path("benchmarks/results/figures.json")
RECORDS, TOKENS, MOST, DRAWS = 8, 32, 8.0, 200
FIGURES: tuple[FigureName, ...] = ("lengths", "topics", "recall", "copied")


def measured(users: int | None) -> tuple[Layout, list[list[Any]]]:
    """What each held-out user hands in, by figure."""
    from chitchat_dataset import Dataset  # not needed with values that were measured

    units: dict[str, list[dict[str, str]]] = defaultdict(list)
    for conversation in Dataset().values():
        for message in (message for turn in conversation["messages"] for message in turn):
            if message["text"].strip() and len(units[message["sender"]]) < RECORDS:
                units[message["sender"]].append({"text": message["text"].strip()})
    people = [own for own in units.values() if own][:users]
    texts = [row["text"] for own in people[1::2] for row in own]
    model = load_backbone(ModelConfig(dtype="float32"))
    reading = Reading(PrivacyUnit.USER, (), no_context, TOKENS)
    loss = of_model(Perplexity("perplexity", OWN, MOST), model, reading)
    compared = of_texts(texts, FiguresConfig(of=FIGURES))
    # A run has a base model as well, whose perplexity takes its part of the vector.
    parts = (*loss.parts, Perplexity("base perplexity", OTHER, MOST), *compared.parts)
    values = [[*2 * loss.values(own), *compared.values(own)] for own in people[0::2]]
    return Layout(parts), values


def drawn(layout: Layout, values: Sequence[Sequence[Any]], users: int, sigma: float) -> dict[str, dict[str, Any]]:
    """How near released figures come to those without noise."""
    vectors, dice = np.array([layout.vector(own) for own in values]), np.random.default_rng([users, round(sigma * 1e4)])
    mechanism, found = FigureVectors(layout.cells, sigma), defaultdict[str, list[Any]](list)
    for _ in range(DRAWS):
        sums = mechanism.contribution(vectors[dice.integers(len(vectors), size=users)])
        exact = {each.name: each.value for each in layout.read(mechanism.to_sums(sums), 1e-9)[0]}
        shown = {each.name: each for each in layout.read(mechanism.to_sums(mechanism.draw(sums)), sigma)[0]}
        for name, value in exact.items():
            each = shown.get(name)
            near = 0.05 * (value if "perplexity" in name or "users" in name else 1)
            found[name].append(each and (abs(each.value - value) <= near, each.low <= value <= each.high))
    return {name: _shares(rows) for name, rows in found.items()}


def _shares(draws: Sequence[tuple[bool, bool] | None]) -> dict[str, Any]:
    """How often a figure was shown, and of these how often it was near, and in its interval."""
    seen = [each for each in draws if each]
    near, held = np.mean(seen, axis=0).round(3).tolist() if seen else (None, None)
    return {"shown": round(len(seen) / len(draws), 3), "near": near, "held": held}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--values", type=Path, default=Path("figure_values.pickle"))
    parser.add_argument("--users", type=int, nargs="+", default=[130, 400, 1000, 3000])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 3.0, 8.0])
    parser.add_argument("--share", type=float, default=0.05)
    parser.add_argument("--most", type=int, help="users of the corpus that are read, at most")
    parser.add_argument("--json", action="store_true", help=f"write {RESULT}, too")
    arguments = parser.parse_args()
    if not arguments.values.exists():
        arguments.values.write_bytes(pickle.dumps(measured(arguments.most)))
    layout, values = pickle.loads(arguments.values.read_bytes())
    few = Layout(tuple(part for part in layout.parts if "perplexity" in part.name))
    rows = []
    for epsilon in arguments.epsilon:
        sigma = sigma_for(1, Budget(epsilon, 1e-6)) / math.sqrt(arguments.share)
        for users in arguments.users:
            found = drawn(layout, values, users, sigma)
            alone = drawn(few, [own[:2] for own in values], users, sigma)["perplexity"]
            rows.append({"epsilon": epsilon, "users": users, "sigma": sigma, "all": found, "perplexity alone": alone})
            print(json.dumps(rows[-1]), flush=True)
    machine = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    result = {"machine": machine, "share": arguments.share, "draws": DRAWS, "users": len(values), "rows": rows}
    if arguments.json:
        RESULT.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
