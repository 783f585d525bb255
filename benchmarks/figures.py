"""How near figures that may be shown come to those without noise, by how many users there are and are held out.

    OMP_NUM_THREADS=1 python benchmarks/figures.py --run runs/quickstart --json
    OMP_NUM_THREADS=1 python benchmarks/figures.py --values FILE --name chat --json

`--run` is a finished run whose private shards are still there: its users, its models, its text. What each user hands in
is measured once, and kept in `--values`. Then, for a number of users, as many as are held out of them and as many as
are learnt from are drawn with replacement, and noise with them, 200 times, as `runs.figures` would release them.

`shown` is the share of draws in which a figure is not left out. Of these, `near` is the share in which a perplexity, or
a ratio of two, is within 5% of the one without noise, or another figure within 0.05, and `held` how often the interval
holds the one without noise. `bias` is by how much the bounds on losses move a mean, in nats per token, and `outside`
the share of held-out users whom they hold back. No account is charged: these are internal figures, and what is drawn
here is no release.
"""

import argparse
import json
import math
import pickle
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from rayprivacy.accounting.calibrate import sigma_for
from rayprivacy.core.units import Budget
from rayprivacy.corpus.layout import HOLDOUT
from rayprivacy.corpus.manifest import part_tables, read_manifest
from rayprivacy.evaluation.settings import FigureName, FiguresConfig
from rayprivacy.evaluation.shown import Layout, Perplexity
from rayprivacy.methods.registry import load_recipe, method_of
from rayprivacy.models.backbone import load_backbone
from rayprivacy.models.settings import ModelConfig
from rayprivacy.release.figure_vectors import FigureVectors
from rayprivacy.runs.figures import RECORDS, Group, Rows, of_models, of_texts, units_of

RESULT = Path("benchmarks/results/figures.json")
DRAWS = 200
FIGURES: tuple[FigureName, ...] = ("lengths", "topics", "recall", "copied")


@dataclass(frozen=True)
class Measured:
    """The values of some users, and what they hand in."""

    layout: Layout
    values: list[list[Any]]

    @property
    def vectors(self) -> npt.NDArray[np.float64]:
        """What they hand in."""
        return np.array([self.layout.vector(each) for each in self.values])

    @property
    def bounds(self) -> dict[str, dict[str, float]]:
        """What the bounds on losses do to the means, which are of users by their text."""
        found = {}
        for at, part in enumerate(self.layout.parts):
            if isinstance(part, Perplexity):
                own = [each[at] for each in self.values]
                counted = np.array([part.counted(value) for value in own])
                loss = np.array([nats / tokens for nats, tokens in own])
                middle, half = (part.most + part.least) / 2, (part.most - part.least) / 2
                kept = np.array([part.coordinates(*each)[0] for each in zip(own, counted, strict=True)])
                mean, bounded = (counted * loss).sum() / counted.sum(), middle + half * kept.sum() / counted.sum()
                outside = np.abs(counted * (loss - middle)) > half
                found[part.name] = {
                    "least": part.least, "most": part.most, "mean": round(mean, 3), "counted": round(counted.mean(), 3),
                    "bias": round(bounded - mean, 4), "outside": round(outside.mean(), 3),
                }  # fmt: skip
        return found


def measured(run: Path, most: int | None) -> tuple[Measured, Measured]:
    """What the users of a run hand in: those that are held out, and the others, at most so many."""
    recipe, shards = load_recipe(run / "recipe.yaml"), run / "private" / "shards"
    method, texts = method_of(recipe), pq.read_table(run / "synthetic.parquet")
    models = {
        "own": load_backbone(ModelConfig(base=str(run / "model"), dtype="float32"), released=True),
        "base": load_backbone(recipe.model),
    }
    tests = of_models(models, method.reads(recipe), texts.to_pylist()[::4][:64])
    compared = of_texts(texts["text"].to_pylist(), FiguresConfig(of=FIGURES))
    parts, unit = range(len(read_manifest(shards).parts)), recipe.privacy.unit

    def units(*chosen: int) -> Iterator[Rows]:
        tables = (table for part in chosen for table in part_tables(shards, part))
        return islice((rows[:RECORDS] for table in tables for rows in units_of(table, unit)), most)

    def of(group: Group, who: str, rows: Iterator[Rows]) -> Measured:
        return Measured(Layout(group.parts, who), [group.values(each) for each in rows])

    return of(tests, "held-out users", units(HOLDOUT)), of(compared, "users of training", units(*parts))


def drawn(halves: Sequence[Measured], users: Sequence[int], sigma: float) -> dict[str, dict[str, Any]]:
    """How near released figures come to those without noise, where so many users are in each half."""
    found = defaultdict[str, list[Any]](list)
    for half, count in zip(halves, users, strict=True):
        vectors, dice = half.vectors, np.random.default_rng([count, round(sigma * 1e4)])
        mechanism = FigureVectors(half.layout.cells, sigma)
        for _ in range(DRAWS):
            sums = mechanism.contribution(vectors[dice.integers(len(vectors), size=count)])
            exact = {each.name: each.value for each in half.layout.read(mechanism.to_sums(sums), 1e-9)[0]}
            noisy = half.layout.read(mechanism.to_sums(mechanism.draw(sums)), sigma)[0]
            shown = {each.name: each for each in noisy}
            for name, value in exact.items():
                each = shown.get(name)
                near = 0.05 * (value if name.startswith("perplexity") or "users" in name.split(",")[0] else 1)
                found[name].append(each and (abs(each.value - value) <= near, each.low <= value <= each.high))
    return {name: _shares(rows) for name, rows in found.items()}


def _shares(draws: Sequence[tuple[bool, bool] | None]) -> dict[str, Any]:
    """How often a figure was shown, and of these how often it was near, and in its interval."""
    seen = [each for each in draws if each]
    near, held = np.mean(seen, axis=0).round(3).tolist() if seen else (None, None)
    return {"shown": round(len(seen) / len(draws), 3), "near": near, "held": held}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--name", default="chat", help="of the corpus, in the results")
    parser.add_argument("--values", type=Path, default=Path("figure_values.pickle"))
    parser.add_argument("--users", type=int, nargs="+", default=[1300, 2700, 5000, 10000])
    parser.add_argument("--holdout", type=float, nargs="+", default=[0.1, 0.2])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 3.0, 8.0])
    parser.add_argument("--share", type=float, default=0.05)
    parser.add_argument("--most", type=int, help="users of each half that are read, at most")
    parser.add_argument("--json", action="store_true", help=f"write {RESULT}, too")
    arguments = parser.parse_args()
    if not arguments.values.exists():
        arguments.values.write_bytes(pickle.dumps(measured(arguments.run, arguments.most)))
    halves = pickle.loads(arguments.values.read_bytes())
    read, rows = [len(half.values) for half in halves], []
    for epsilon in arguments.epsilon:
        sigma = sigma_for(1, Budget(epsilon, 1e-6)) / math.sqrt(arguments.share)
        for users, holdout in ((users, share) for users in arguments.users for share in arguments.holdout):
            counts = [round(holdout * users), round((1 - holdout) * users)]
            row = {"epsilon": epsilon, "users": users, "holdout": holdout, "sigma": sigma}
            rows.append(row | {"figures": drawn(halves, counts, sigma)})
            print(json.dumps(rows[-1]), flush=True)
    if arguments.json:
        found = json.loads(RESULT.read_text()) if RESULT.exists() else {}
        found[arguments.name] = {
            "share": arguments.share,
            "draws": DRAWS,
            "read": read,
            "bounds": halves[0].bounds,
            "rows": rows,
        }
        RESULT.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
