"""The DP-SGD rows of SeqPATE's table 1 on Europarl: NoisySGD, and NoisySGD with large batches (+GC).

    python benchmarks/europarl.py --data europarl_by_speaker.parquet
    python benchmarks/dpsgd_table.py --seeds 1 --json

Both rows run jobs/generator/europarl.yaml, read the same number of speakers, and differ in how many of them a step
reads, and in the learning rate that goes with it. What is measured is what `seqpate_table.py` measures: the perplexity
of the same held-out speakers' sentences, cut and packed as there, under the full vocabulary, beside that of the public
base.
"""

import argparse
import json
import platform
import sys
import time
from contextlib import redirect_stdout
from itertools import product
from pathlib import Path
from typing import Any

import torch
from ensembles import HALVES, heldout_rows

from rayprivacy.core.private import digest_json
from rayprivacy.evaluation.language import perplexity, row_nll
from rayprivacy.methods.generator.plan import STEPS, plan_run
from rayprivacy.methods.generator.recipe import METHOD
from rayprivacy.methods.registry import load_recipe
from rayprivacy.models.backbone import load_backbone
from rayprivacy.models.settings import ModelConfig
from rayprivacy.runs.drive import drive
from rayprivacy.runs.session import ray_session
from rayprivacy.teachers.settings import TeachersConfig

JOBS = Path(__file__).parent.parent / "jobs"
_SMALL = ["sampling_rate=0.0128", "expected_batch=32", "steps=470", "chunk=94", "optimizer.learning_rate=0.002"]
_LARGE = ["sampling_rate=0.1", "expected_batch=250", "steps=60", "chunk=20"]
ROWS = {"noisy_sgd": _SMALL, "noisy_sgd_gc": _LARGE}
SETTINGS = {"noisy_sgd": "training.preset best", "noisy_sgd_gc": "training.preset good"}


def row(name: str, epsilon: float, seed: int, work: Path, half: str, changes: list[str]) -> dict[str, Any]:
    """Train one row, or find it trained, and measure it."""
    began, label = time.perf_counter(), f"{name}-{epsilon:g}-{seed}"
    label += f"-{digest_json(changes)[:12]}" if changes else ""  # names of accounts have 200 characters at most
    overrides = ["pretrain=null", *(f"training.{each}" for each in ROWS[name]), *changes]
    overrides += [
        f"seed={seed}", f"privacy.epsilon={epsilon}", f"privacy.account={label}", "generation.texts=64",
        f"privacy.ledger=sqlite:///{work}/dpsgd-rows.db", f"privacy.key={work}/bench.key",
        f"corpus.source={work}/private.parquet",
    ]  # fmt: skip
    recipe: Any = load_recipe(JOBS / "generator" / "europarl.yaml", overrides)
    run, _ = drive(METHOD, recipe, work / "dpsgd" / label, measured=False)
    found = {"row": name, "epsilon": epsilon, "seed": seed, "half": half, "changes": changes}
    found |= {"settings": ", ".join([SETTINGS[name], *changes]), "cores": torch.get_num_threads()}
    found |= {"noise_multiplier": round(plan_run(recipe).stage(STEPS).mechanism.noise_multiplier, 4)}
    seconds = {"training_s": run.timings()["DP-SGD"], "seconds": round(time.perf_counter() - began, 1)}
    models = {"base": str(recipe.model.base), "perplexity": str(run.root / "model")}
    return found | {name: measured(run, half, model) for name, model in models.items()} | seconds


def measured(run: Any, half: str, model: str) -> float:
    """Perplexity of a model, by its path or name."""
    teachers: TeachersConfig = load_recipe(JOBS / "seqpate" / "europarl.yaml").teachers  # type: ignore[attr-defined]
    backbone = load_backbone(ModelConfig(base=model, dtype=run.recipe.model.dtype))
    rows = heldout_rows(run.private("shards"), backbone, teachers, half)
    return round(perplexity(float(row_nll(rows.hidden, rows, backbone.head).sum()), int(rows.predicts.sum())), 3)


def main() -> None:
    arguments = _arguments()
    results = []
    with redirect_stdout(sys.stderr), ray_session("local"):  # libraries print to it, and JSON must stand alone there
        for seed in arguments.seeds:
            for epsilon in arguments.epsilon:
                for name, half in product(arguments.rows, arguments.half):
                    found = row(name, epsilon, seed, arguments.work, half, arguments.changes)
                    print(json.dumps(found), file=sys.stderr, flush=True)
                    results.append(found)
    machine = {"python": platform.python_version()}
    print(json.dumps({"results": results, **machine}, indent=1) if arguments.json else results)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=lambda path: Path(path).absolute(), default=Path("runs/europarl").absolute())
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[3.0])
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--changes", nargs="*", default=[], help="further overrides of the recipe")
    parser.add_argument("--half", nargs="+", choices=HALVES, default=["test"])
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
