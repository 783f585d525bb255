"""A step of DP-SGD in rows, with states of frozen layers, and in padded batches, against an ordinary step.

    ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 python benchmarks/rows.py --json
    python benchmarks/rows.py --recipe jobs/generator/europarl.yaml --source runs/europarl/private.parquet --json
    python benchmarks/rows.py --recipe jobs/question_answering/squad.yaml --kinds lora --units 24 --rounds 2 --json

The corpus, the base, the adapter and the coins are those of the recipe; one step of it is computed by each arm in turn,
without noise and optimizer, with one thread. `ordinary` is a backward pass over the packed rows that all layers
compute, without clipping; `rows` clips units in these rows, and `short`, where texts are long, in rows of 256 tokens;
`new` computes the states below the first trained layer for all of the step's documents, and `states` clips rows that
have them; `batches` is the form of 0.6.0 before there were rows: a padded batch for each shape of unit. `run` is a step
of the whole run on the mean: states are computed for the documents that no earlier step has read, which the coins of
all steps tell. Ratios are medians over paired rounds.
"""

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from rayprivacy.core.keys import Key
from rayprivacy.corpus.sources import check_source, read_share
from rayprivacy.dpsgd.batches import Document, Row, physical_batches, rows
from rayprivacy.dpsgd.clipping import BookKeeping, Clipping
from rayprivacy.dpsgd.losses import row_losses
from rayprivacy.dpsgd.lower_layers import LowerLayers
from rayprivacy.dpsgd.sampler import PoissonSampler, Unit, unit_tag
from rayprivacy.dpsgd.settings import CPU_BATCH_TOKENS
from rayprivacy.dpsgd.units import documents_of
from rayprivacy.methods.registry import load_recipe, method_of
from rayprivacy.models.backbone import load_backbone
from rayprivacy.models.packing import can_be_packed, unpacked
from rayprivacy.models.settings import AdapterConfig
from rayprivacy.models.trainable import trainable

STREAM = "rows"


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(1)
    overrides = [f"model.dtype={arguments.dtype}"]
    overrides += [f"corpus.source={arguments.source}"] if arguments.source else []
    recipe: Any = load_recipe(arguments.recipe, overrides)
    backbone = load_backbone(recipe.model)
    sampler = _sampler(recipe, backbone)
    found: dict[str, Any] = {
        "machine": platform.machine(), "torch": torch.__version__, "cpu": torch.backends.cpu.get_cpu_capability(),
        "recipe": arguments.recipe.name, "dtype": arguments.dtype, "rounds": arguments.rounds,
    }  # fmt: skip
    for kind in arguments.kinds:
        adapter = recipe.adapter if kind == "lora" else AdapterConfig(kind="full")
        found[kind] = _figures(recipe, backbone, adapter, sampler, arguments)
    print(json.dumps(found, indent=1) if arguments.json else found)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", type=Path, default=Path(__file__).parent.parent / "jobs/generator/chat.yaml")
    parser.add_argument("--source", help="a corpus in place of the recipe's")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--units", type=int, default=110, help="users of the step that is timed, at most")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", choices=("lora", "full"), default=("lora", "full"))
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _sampler(recipe: Any, backbone: Any) -> PoissonSampler:
    """The coins of the recipe over its users."""
    key, held = Key.for_tests(), dict[str, list[Any]]()
    for table in read_share(recipe.corpus, 0, 1, check_source(recipe.corpus)):
        for row in table.to_pylist():
            own = held.setdefault(str(row["user"]), [])
            if len(own) < recipe.corpus.max_records_per_user:
                own.append(row)
    every = documents_of([row for own in held.values() for row in own], backbone, method_of(recipe).reads(recipe))
    documents = iter(every)
    units = [Unit(unit_tag(key, "user", user), tuple(islice(documents, len(own)))) for user, own in held.items()]
    return PoissonSampler(key, STREAM, recipe.training.sampling_rate, units, recipe.training.max_records)


def _figures(recipe: Any, backbone: Any, adapter: AdapterConfig, sampler: Any, arguments: Any) -> dict[str, Any]:
    units, tokens = sampler.sample(0)[: arguments.units], recipe.resources.row_tokens(recipe.training)
    low = arguments.dtype == "bfloat16"
    model = trainable(backbone, adapter)
    assert can_be_packed(model, recipe.training.max_tokens)
    gradients, cut = BookKeeping(model, Clipping(1.0, low_precision=low)), rows(units, tokens, backbone.end)
    parameters = [each for each in model.parameters() if each.requires_grad]

    def clipped(batches: Any) -> None:
        for batch in batches:
            lazy = gradients(lambda batch=batch: row_losses(model, batch, low), batch.by_unit)
            while lazy:
                lazy.popitem()[1]()

    def ordinary() -> None:
        for row in cut:
            torch.autograd.grad(row_losses(model, row, low).sum(), parameters, allow_unused=True)

    def padded() -> None:
        unpacked(model)
        clipped(physical_batches(units, CPU_BATCH_TOKENS, backbone.end))
        can_be_packed(model, 8)

    arms: dict[str, Callable[[], object]] = {"ordinary": ordinary, "rows": lambda: clipped(cut), "batches": padded}
    if tokens > CPU_BATCH_TOKENS:
        arms["short"] = lambda: clipped(rows(units, CPU_BATCH_TOKENS, backbone.end))
    if adapter.kind == "lora":
        with tempfile.TemporaryDirectory() as folder:
            arms |= _arms_of_states(model, Path(folder), cut, tokens, low, clipped)
            times = _times(arms, arguments.rounds)
    else:
        times = _times(arms, arguments.rounds)
    found: dict[str, Any] = _ratios(times) | {"computed_for_a_real_token": _computed(units, cut, backbone.end)}
    if "states" in times:
        share = _new_share(sampler, recipe.training.steps)
        runs = [
            (with_states + share * new) / plain
            for with_states, new, plain in zip(times["states"], times["new"], times["ordinary"], strict=True)
        ]
        found |= {"new_documents": round(share, 3), "run_over_ordinary": round(statistics.median(runs), 3)}
    return found


def _arms_of_states(
    model: Any, folder: Path, cut: list[Row], tokens: int, low: bool, clipped: Callable[[Any], None]
) -> dict[str, Callable[[], object]]:
    lower = LowerLayers(model, folder, tokens, low)
    assert lower.work()
    filled = lower.filled(cut)

    def anew() -> None:
        lower._kept.clear()
        lower.filled(cut)

    return {"new": anew, "states": lambda: clipped(filled)}


def _times(arms: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """CPU seconds of every arm, in turns; the first round warms up."""
    found: dict[str, list[float]] = {arm: [] for arm in arms}
    for turn in range(rounds + 1):
        for arm in list(arms) if turn % 2 else list(arms)[::-1]:
            began = time.process_time()
            arms[arm]()
            if turn:
                found[arm].append(time.process_time() - began)
    return found


def _ratios(times: dict[str, list[float]]) -> dict[str, float]:
    found = {f"{arm}_s": round(statistics.median(own), 2) for arm, own in times.items()}
    for arm, own in times.items():
        if arm != "ordinary":
            pairs = zip(own, times["ordinary"], strict=True)
            found[f"{arm}_over_ordinary"] = round(statistics.median(mine / his for mine, his in pairs), 3)
    return found


def _computed(units: list[list[Document]], cut: list[Row], pad: int) -> dict[str, float]:
    real = sum(len(document.ids) for unit in units for document in unit)
    ways: dict[str, list[Any]] = {
        "rows": cut,
        "short": rows(units, CPU_BATCH_TOKENS, pad),
        "batches": physical_batches(units, CPU_BATCH_TOKENS, pad),
    }
    return {way: round(sum(each.ids.numel() for each in made) / real, 2) for way, made in ways.items()}


def _new_share(sampler: PoissonSampler, steps: int) -> float:
    """How many of the documents that all steps read were read by none before."""
    seen, read = set(), 0
    for step in range(steps):
        for unit in sampler.sample(step):
            for document in unit:
                seen.add(document.ids.tobytes())
                read += 1
    return len(seen) / read


if __name__ == "__main__":
    main()
