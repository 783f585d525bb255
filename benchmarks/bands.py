"""Noise that is correlated over bands of steps against independent noise, at equal epsilon and equal steps.

    python benchmarks/bands.py --private europarl_by_speaker.parquet --public wikitext2_raw_valid_test.parquet --json
    python benchmarks/bands.py ... --seeds 1 --json > 1.json; ...; python benchmarks/bands.py --merge 1.json 2.json

A small Llama (2 layers, width 64, 1,000 tokens of its own) is trained on public text without privacy, and then with
DP-SGD on the sentences of Europarl's speakers, one sentence of each sampled speaker a step. Sampler, clipped gradients,
noise and optimizer are the package's, in one process and one thread; Ray and the ledger are left out. All rows of a
seed have the same base, coins of one key, expected batch, steps and epsilon, with the least noise that fits it. What is
measured is the mean negative log-likelihood of a token of speakers who were held out. The two learning rates are those
that were best for independent noise by `--tune`: on seed 0, and on other held-out speakers.
"""

import argparse
import json
import math
import statistics
import sys
import time
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

from rayprivacy.blocks.steps_plan import sampled_steps
from rayprivacy.core.keys import Key
from rayprivacy.dpsgd.batches import Document, physical_batches
from rayprivacy.dpsgd.engines.engine import StepNoise, make_engine
from rayprivacy.dpsgd.losses import row_losses
from rayprivacy.dpsgd.noise import CorrelatedNoise, KeyedNoise
from rayprivacy.dpsgd.sampler import PoissonSampler, Unit, unit_tag
from rayprivacy.dpsgd.settings import DpSgdConfig, EngineConfig, OptimizerConfig
from rayprivacy.ledger.settings import PrivacyConfig
from rayprivacy.release.step_mechanism import prefix_error, prefix_strategy

TOKENS, VOCABULARY, END, RECORDS = 24, 1000, 0, 8
TRAINED, HELD_OUT = 2500, 240  # speakers; those held out are halved for tuning and testing
STEPS, BATCH, DELTA = 208, 50, 1e-6
BATCH_TOKENS = 64 * TOKENS  # nearly always enough for one batch
BANDS = (1, 4, 8, 16)
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"kind": "sgd", "momentum": 0.9},
    "adamw": {"kind": "adamw"},
}
GRID = {"sgd": (0.0125, 0.025, 0.05, 0.1), "adamw": (2.5e-4, 5e-4, 1e-3, 2e-3)}


@dataclass(frozen=True)
class Row:
    """One way to train."""

    optimizer: str
    bands: int
    rate: float
    steps: int = STEPS
    batch: int = BATCH

    @property
    def name(self) -> str:
        size = f", {self.steps} steps of {self.batch}" * ((self.steps, self.batch) != (STEPS, BATCH))
        return f"{self.optimizer} at {self.rate:g}, b = {self.bands}{size}"

    @property
    def sampling_rate(self) -> float:
        return self.batch / TRAINED


@dataclass(frozen=True)
class Data:
    """Speakers as units, rows of the held-out ones, and the public base."""

    units: list[Unit]
    tune: list[list[Document]]
    test: list[list[Document]]
    base: dict[str, torch.Tensor]


def model_of(base: dict[str, torch.Tensor] | None = None) -> Any:
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=64, tie_word_embeddings=True, bos_token_id=END, eos_token_id=END,
    )  # fmt: skip
    torch.manual_seed(2026)
    model = LlamaForCausalLM(config)
    if base:
        model.load_state_dict(base)
    return model.train()


def load(private: Path, public: Path) -> Data:
    texts = pl.read_parquet(public)["text"].to_list()
    tokenizer = _tokenizer(texts)
    rows = pl.read_parquet(private).sort("author_id", "doc", "turn")
    grouped = rows.group_by("author_id", maintain_order=True).agg(pl.col("text").head(RECORDS))
    users = [(str(user), _documents(tokenizer, found)) for user, found in grouped.iter_rows()]
    users = [users[at] for at in np.random.default_rng(0).permutation(len(users)) if users[at][1]]
    units = [Unit(unit_tag(Key.for_tests(), "user", user), tuple(own)) for user, own in users[:TRAINED]]
    held = [[each] for _, own in users[TRAINED : TRAINED + HELD_OUT] for each in own[:8]]
    half = len(held) // 2
    return Data(units, held[:half], held[half:], _pretrained(_documents(tokenizer, texts)))


def _tokenizer(texts: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _documents(tokenizer: Tokenizer, texts: list[str]) -> list[Document]:
    encoded = tokenizer.encode_batch(texts)
    cut = [np.array([END, *each.ids[: TOKENS - 1]], dtype=np.int32) for each in encoded]
    return [Document(ids, 1) for ids in cut if len(ids) == TOKENS]


def _pretrained(documents: list[Document], steps: int = 400) -> dict[str, torch.Tensor]:
    """The public base: AdamW on public text."""
    model, random = model_of(), np.random.default_rng(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        chosen = [[documents[at]] for at in random.integers(len(documents), size=48)]
        losses = [row_losses(model, batch).sum() for batch in physical_batches(chosen, 2048, END)]
        (torch.stack(losses).sum() / len(chosen)).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@cache
def _noise(bands: int, epsilon: float, steps: int, sampling_rate: float) -> float:
    privacy = PrivacyConfig(epsilon=epsilon, delta=DELTA, composition="rdp")
    training = DpSgdConfig(sampling_rate=sampling_rate, steps=steps, chunk=steps, bands=bands)
    return sampled_steps(training, privacy).noise_multiplier


def trained(row: Row, data: Data, epsilon: float, seed: int, rows: list[list[Document]]) -> dict[str, Any]:
    """Train one row and measure it."""
    optimizer = OptimizerConfig(learning_rate=row.rate, schedule="linear", **OPTIMIZERS[row.optimizer])
    training = DpSgdConfig(
        sampling_rate=row.sampling_rate, expected_batch=row.batch, steps=row.steps, chunk=row.steps, bands=row.bands,
        max_records=1, noise_multiplier=_noise(row.bands, epsilon, row.steps, row.sampling_rate), optimizer=optimizer,
    )  # fmt: skip
    mechanism = sampled_steps(training, PrivacyConfig(epsilon=epsilon, delta=DELTA))
    key, run = Key(bytes([seed]) * 32), "bands"
    sampler = PoissonSampler(key, run, mechanism.sampling_rate, data.units, 1, groups=mechanism.groups)
    noise = StepNoise(KeyedNoise(key, run), mechanism, training.expected_batch)
    engine = make_engine(model_of(data.base), training, noise, EngineConfig(batch_tokens=BATCH_TOKENS), row_losses)
    began = time.process_time()
    for step in range(row.steps):
        engine.step(step, physical_batches(sampler.sample(step), BATCH_TOKENS, END))
    spent = (time.process_time() - began) / row.steps
    found = {"row": row.name, "seed": seed, "epsilon": epsilon, "learning_rate": row.rate}
    sums = mechanism.noise_multiplier * prefix_error(mechanism.strategy, row.steps)
    found |= {"noise_multiplier": round(mechanism.noise_multiplier, 4), "noise_of_sums": round(sums, 3)}
    model = model_of(data.base | engine.state_dict())
    return found | {"loss": round(_loss(model, rows), 4), "cpu_s_per_step": round(spent, 4)}


@torch.no_grad()
def _loss(model: Any, rows: list[list[Document]]) -> float:
    """Mean negative log-likelihood of a token."""
    total, tokens = 0.0, 0
    for batch in physical_batches(rows, 4096, END):
        counted = (batch.weights > 0).float()
        total += float(row_losses(model, replace(batch, weights=counted)).sum())
        tokens += int(counted.sum())
    return total / tokens


def noise_cost(size: int = 2_000_000, rounds: int = 9) -> dict[str, float]:
    """CPU nanoseconds to make one coordinate's noise of one step, by bands: medians, taken in turns."""
    sources = {b: CorrelatedNoise(KeyedNoise(Key.for_tests(), "cost"), prefix_strategy(b, STEPS)) for b in BANDS}
    spent: dict[int, list[float]] = {b: [] for b in BANDS}
    for step in range(max(BANDS) + rounds):
        for bands, source in sources.items():
            began = time.process_time()
            source.normal(step, "weight", 0, size)
            spent[bands].append((time.process_time() - began) / size * 1e9)
    return {str(bands): round(statistics.median(times[-rounds:]), 2) for bands, times in spent.items()}


ROWS = [Row("sgd", b, rate) for rate in (0.025, 0.0125) for b in BANDS]


def tuned(data: Data, epsilon: float, rows: list[tuple[str, int]], shape: dict[str, int]) -> list[dict[str, Any]]:
    """Losses on the speakers kept for this, by learning rate, seed 0."""
    measure = partial(trained, data=data, epsilon=epsilon, seed=0, rows=data.tune)
    found = []
    for name, bands in rows:
        for rate in GRID[name]:
            found.append(measure(Row(name, bands, rate, **shape)))
            print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    return found


def summary(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean loss of each row with its standard error, and the paired difference from the first row of its optimizer."""
    by_row: dict[str, dict[int, float]] = {}
    for each in results:
        by_row.setdefault(each["row"], {})[each["seed"]] = each["loss"]
    found = []
    for name, losses in by_row.items():
        first = by_row[next(other for other in by_row if other.split(",")[0] == name.split(",")[0])]
        gaps = [losses[seed] - first[seed] for seed in losses]
        found.append({"row": name, "loss": _with_error(list(losses.values())), "less_first_row": _with_error(gaps)})
    return found


def _with_error(values: list[float]) -> list[float]:
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return [round(statistics.mean(values), 4), round(error, 4)]


def main() -> None:
    arguments = _arguments()
    if arguments.merge:
        parts = [json.loads(path.read_text()) for path in arguments.merge]
        results = [each for part in parts for each in part["results"]]
        cost = parts[0] | {"cpu_s": round(sum(part["cpu_s"] for part in parts), 1)}
        print(json.dumps(cost | {"summary": summary(results), "results": results}, indent=1))
        return
    torch.set_num_threads(1)
    data = load(arguments.private, arguments.public)
    base = round(_loss(model_of(data.base), data.test), 4)
    print(json.dumps({"base": base}), file=sys.stderr, flush=True)
    if arguments.tune:
        rows = [(name, bands) for name in arguments.optimizers for bands in arguments.bands]
        shape = {"steps": arguments.steps, "batch": arguments.batch}
        print(json.dumps(tuned(data, arguments.epsilon, rows, shape), indent=1))
        return
    results = []
    for seed in arguments.seeds:
        for row in ROWS:
            results.append(trained(row, data, arguments.epsilon, seed, data.test))
            print(json.dumps(results[-1]), file=sys.stderr, flush=True)
    cost = {"base_loss": base, "noise_ns_per_coordinate": noise_cost(), "cpu_s": round(time.process_time(), 1)}
    print(json.dumps({"summary": summary(results), **cost, "results": results}, indent=1 if arguments.json else None))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--private", type=Path, help="sentences by speaker")
    parser.add_argument("--public", type=Path, help="text for the base model")
    parser.add_argument("--merge", type=Path, nargs="+", help="results of several seeds, instead of running")
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--optimizers", nargs="+", choices=list(OPTIMIZERS), default=["sgd", "adamw"])
    parser.add_argument("--steps", type=int, default=STEPS, help="with --tune")
    parser.add_argument("--batch", type=int, default=BATCH, help="expected speakers of a step, with --tune")
    parser.add_argument("--bands", type=int, nargs="+", default=list(BANDS), help="with --tune")
    parser.add_argument("--tune", action="store_true", help="try learning rates instead")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
