"""Which lever moves which figure: SeqPATE and DP-SGD on Europarl, from the public base and from one pretrained on it.

    python benchmarks/europarl.py --data europarl_by_speaker.parquet --sentences 4 --out runs/europarl4
    python benchmarks/europarl.py --data europarl_by_speaker.parquet --out runs/europarl
    python benchmarks/europarl_levers.py --private runs/europarl4 --public runs/europarl/public.parquet --json

Small, so that a row takes minutes on one core: four sentences of each private speaker, cut to 14 tokens. Every row is
the perplexity of the same sentences by speakers that were held out, cut and packed as `seqpate_table.py` does, and
nothing was chosen by them. The text that the base is pretrained on was said by other speakers, who are declared public.

All rows of DP-SGD read as many speakers: sampler, clipped gradients, noise and optimizer are the package's, in one
process; Ray and the ledger are left out. Rows of SeqPATE are those of `seqpate_table.py`. A row without noise must
never be released.
"""

import argparse
import json
import math
import sys
import time
from contextlib import redirect_stdout
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl
import torch
from ensembles import heldout_rows
from europarl import EARLIER
from kept_rows import KeptRows
from seqpate_table import bench, row_recipe

from rayprivacy.blocks.steps_plan import sampled_steps
from rayprivacy.core.keys import load_or_create_key
from rayprivacy.corpus.shards import shard_corpus
from rayprivacy.dpsgd.batches import physical_batches
from rayprivacy.dpsgd.engines.engine import StepNoise, make_engine
from rayprivacy.dpsgd.losses import row_losses
from rayprivacy.dpsgd.noise import KeyedNoise
from rayprivacy.dpsgd.sampler import PoissonSampler
from rayprivacy.dpsgd.settings import DpSgdConfig, EngineConfig
from rayprivacy.dpsgd.units import Reading, read_units
from rayprivacy.evaluation.language import perplexity, row_nll
from rayprivacy.ledger.settings import PrivacyConfig
from rayprivacy.methods.registry import load_recipe
from rayprivacy.methods.seqpate.recipe import SeqPateRecipe
from rayprivacy.models.backbone import Backbone, load_backbone
from rayprivacy.models.pretraining import pretrained
from rayprivacy.models.save import save_model
from rayprivacy.models.settings import AdapterConfig, ModelConfig, PretrainConfig
from rayprivacy.models.trainable import merged, trainable
from rayprivacy.runs.session import ray_session

RECIPES = Path(__file__).parent.parent / "jobs" / "seqpate"
HALF = "all"  # of the held-out speakers: nothing is chosen by them
PRETRAIN = PretrainConfig(source="public.parquet", steps=128, batch=32, max_tokens=16)  # a row is a sentence, cut
SPEAKERS, BATCH = 2400, 32  # a public guess, and how many a step reads
STEPS = {"sampling_rate": BATCH / SPEAKERS, "expected_batch": BATCH, "steps": 32, "chunk": 32, "max_records": 2}
ADAPTER = AdapterConfig(kind="lora", rank=8, layers=10)
WITHOUT_NOISE = {"noise_multiplier": 1e-6, "clipping_norm": 1e3}  # nothing is clipped
SEQPATE = [
    "corpus.holdout=0.1", "pseudo.texts=640", "pseudo.engine=onnxruntime_float32", 
    "resources.actors=1", "model.dtype=float32", "student.batch=128",
]  # fmt: skip
OPTIMIZER = {"learning_rate": 2e-3}
ROWS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "bands 8": {"bands": 8},
    "without noise": WITHOUT_NOISE,
}


class Levers:
    """The corpus, both bases, and what is measured on."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        """Shard the corpus, or find that done."""
        self.work, self.private, self.public = arguments.work, arguments.private, arguments.public
        self.seed = arguments.seed
        self.work.mkdir(parents=True, exist_ok=True)
        self.kept = KeptRows(self.work / "rows.jsonl")
        self.recipe = self.seqpate("base")
        self.shards = self.work / "shards"
        key, teachers = Path(self.recipe.privacy.key), self.recipe.teachers
        self.key = load_or_create_key(key)
        shard_corpus(self.recipe.corpus, key, teachers.count, teachers.stack, self.shards, self.recipe.privacy.unit)

    def seqpate(self, base: str) -> SeqPateRecipe:
        """The recipe of SeqPATE on one of the bases."""
        overrides = [
            f"corpus.source={self.private}/private.parquet", f"prompts={self.private}/prompts.txt", f"seed={self.seed}",
            f"privacy.key={self.work}/bench.key", f"resources.features={self.work}/features-{base}",
            f"model.base={self.name(base)}",
        ]  # fmt: skip
        recipe = load_recipe(RECIPES / "europarl.yaml", [*EARLIER, *SEQPATE, *overrides])
        assert isinstance(recipe, SeqPateRecipe)
        return recipe

    def name(self, base: str) -> str:
        """Of a base, for `model.base`."""
        return "smollm2-135m" if base == "base" else str(self.work / "pretrained")

    def backbone(self, base: str) -> Backbone:
        """One of the bases."""
        return load_backbone(ModelConfig(base=self.name(base), dtype="float32"))

    def pretrain(self) -> None:
        """Train the base on public text, or find that done."""
        figures = self.work / "pretrained.json"
        if not figures.exists():
            backbone, texts = self.backbone("base"), pl.read_parquet(self.public)["text"].to_list()
            model, found = pretrained(backbone, texts, PRETRAIN, 256, lambda _: None)
            save_model(model, backbone.tokenizer, self.work / "pretrained", "pretrained", "Public text alone.")
            figures.write_text(json.dumps(found | {"cpu_s": round(time.process_time())}))

    def perplexity(self, backbone: Backbone, model: Any) -> float:
        """Of the held-out speakers."""
        rows = heldout_rows(self.shards, Backbone(**vars_of(backbone) | {"model": model}), self.recipe.teachers, HALF)
        return round(perplexity(float(row_nll(rows.hidden, rows, backbone.head).sum()), int(rows.predicts.sum())), 3)

    @cached_property
    def reading(self) -> Reading:
        """As SeqPATE's teachers read."""
        return Reading(self.recipe.privacy.unit, (), lambda _: "", self.recipe.teachers.max_tokens)


def vars_of(backbone: Backbone) -> dict[str, Any]:
    """The fields of a backbone."""
    return {name: getattr(backbone, name) for name in ("tokenizer", "start", "end", "model")}


def public_alone(levers: Levers, base: str) -> dict[str, Any]:
    """What a base is worth before any private step."""
    backbone = levers.backbone(base)
    found: dict[str, Any] = {"perplexity": levers.perplexity(backbone, backbone.model)}
    return found | (json.loads((levers.work / "pretrained.json").read_text()) if base == "pretrained" else {})


def private_steps(levers: Levers, base: str, epsilon: float, changes: dict[str, Any]) -> dict[str, Any]:
    """Train one row by DP-SGD, and measure it."""
    began = time.process_time()
    backbone = levers.backbone(base)
    settings: dict[str, Any] = STEPS | {"max_tokens": levers.recipe.teachers.max_tokens} | changes
    training = DpSgdConfig(**settings | {"optimizer": OPTIMIZER})
    mechanism = sampled_steps(training, PrivacyConfig(epsilon=epsilon, delta=1e-6, composition="rdp"))
    model, stream = trainable(backbone, ADAPTER), f"levers-{levers.seed}"
    noise = StepNoise(KeyedNoise(levers.key, stream), mechanism, training.expected_batch)
    engine = make_engine(model, training, noise, EngineConfig(), row_losses)
    units = read_units(levers.shards, range(levers.recipe.teachers.parts), backbone, levers.key, levers.reading)
    sampler = PoissonSampler(
        levers.key, stream, mechanism.sampling_rate, units, training.max_records, groups=mechanism.groups
    )
    for step in range(training.steps):
        engine.step(step, physical_batches(sampler.sample(step), EngineConfig().tokens_at_once, backbone.end))
    spent = round(time.process_time() - began)
    model.load_state_dict(engine.state_dict(), strict=False)
    found = levers.perplexity(backbone, merged(model, backbone))
    own = {"noise_multiplier": round(mechanism.noise_multiplier, 4), "steps": training.steps, "training_cpu_s": spent}
    return {"perplexity": found} | own


def seqpate_rows(levers: Levers, base: str, epsilons: list[float]) -> None:
    """SeqPATE on one of the bases, with the LoRA student, at each epsilon."""
    names = [{"method": "seqpate", "base": base, "epsilon": epsilon, "seed": levers.seed} for epsilon in epsilons]
    before = {"method": "pseudo-sentences alone", "base": base, "seed": levers.seed}
    if all(any(row.items() >= each.items() for row in levers.kept.rows) for each in [*names, before]):
        return
    recipe = levers.seqpate(base)
    with bench(recipe, levers.work / f"seqpate-{base}-{levers.seed}", HALF) as (found, pool):
        levers.kept.row(before, lambda: {"perplexity": round(found.perplexity(found.warm), 3)})
        for name in names:
            asked = row_recipe(recipe, "default", name["epsilon"])
            levers.kept.row(name, lambda asked=asked: found.row(asked, pool))


def measure(levers: Levers, arguments: argparse.Namespace) -> None:
    """All rows that are asked for and not there yet, in the order of their use."""
    levers.pretrain()
    for base in arguments.bases:
        names = {"method": "public text alone", "base": base}
        levers.kept.row(names, lambda base=base: public_alone(levers, base))
    for base, epsilon, row in (each.split(":") for each in arguments.steps):
        names = {"method": "dp-sgd", "base": base, "epsilon": float(epsilon), "row": row, "seed": levers.seed}
        found = levers.kept.row
        found(names, lambda b=base, e=epsilon, r=row: private_steps(levers, b, float(e), ROWS[r]))
    for base, *epsilons in (each.split(":") for each in arguments.votes):
        seqpate_rows(levers, base, [float(epsilon) for epsilon in epsilons])


def gaps(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Shares of the log-perplexity between a base and training without noise that each row of DP-SGD closes."""
    by = {(row["method"], row["base"], row.get("row")): row["perplexity"] for row in rows}
    public, best = by.get(("public text alone", "base", None)), by.get(("dp-sgd", "pretrained", "without noise"))
    own = by.get(("public text alone", "pretrained", None))
    if not (public and best and own):
        return []
    return [
        {
            **{name: row.get(name) for name in ("method", "base", "row", "epsilon", "seed")},
            "gap_closed_from_base": round(math.log(public / row["perplexity"]) / math.log(public / best), 3),
            "gap_closed_from_pretrained": round(math.log(own / row["perplexity"]) / math.log(own / best), 3),
        }
        for row in rows
    ]


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(1)
    levers = Levers(arguments)
    with redirect_stdout(sys.stderr), ray_session("local"):
        measure(levers, arguments)
    rows = levers.kept.rows
    print(json.dumps({"rows": rows, "gaps": gaps(rows)}, indent=1) if arguments.json else rows)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=lambda path: Path(path).absolute(), default=Path("runs/levers").absolute())
    parser.add_argument("--private", type=lambda path: Path(path).absolute(), required=True, help="of europarl.py")
    parser.add_argument("--public", type=lambda path: Path(path).absolute(), required=True, help="what to pretrain on")
    parser.add_argument("--bases", nargs="+", default=["base", "pretrained"])
    parser.add_argument("--steps", nargs="*", default=["pretrained:3:defaults"], help="base:epsilon:row of DP-SGD")
    parser.add_argument("--votes", nargs="*", default=["pretrained:1:3:8"], help="base:epsilons of SeqPATE")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
