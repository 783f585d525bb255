"""How fast teachers train and vote, and that the number of teachers hardly matters.

    python benchmarks/europarl.py --data europarl_by_speaker.parquet
    python benchmarks/teachers.py --json

The same corpus is split among 100 and among 2,000 teachers (`--teachers`), each ensemble in a process of its own:
teachers see all their examples four times in both, and answer the same queries. Where there are more teachers than
users, some have no user and vote as the public model does. Against it stands what one would do without this
project, one adapter of the same shape after the other in plain PyTorch on all cores, with the trunk run on every
batch (`sequential`), and the same loop on features that were cached (`sequential_cached`).

`--layers 0` has features made by so many layers of the base, here by its embeddings alone: as many and as wide, so that
teachers do the same work on them, without an hour's pass of the trunk. Times are of this machine as it is; CPU seconds,
of all processes, and `flatness_of_cpu` depend less on what else it does.
"""

import argparse
import json
import multiprocessing
import platform
import shutil
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
import torch
from cpu_time import in_a_process, peak_mb, timed
from ensembles import learnt_tokens, prepared
from europarl import EARLIER
from safetensors.torch import load_file

from rayprivacy.corpus.manifest import read_manifest, read_part
from rayprivacy.corpus.public import load_prompts
from rayprivacy.methods.registry import load_recipe
from rayprivacy.methods.seqpate.plan import GATE, plan_run
from rayprivacy.methods.seqpate.public_side import ensemble, select_queries
from rayprivacy.methods.seqpate.recipe import SeqPateRecipe
from rayprivacy.models.adapters import Basis, HeadAdapter
from rayprivacy.models.backbone import Backbone, load_backbone
from rayprivacy.models.features import encode, join
from rayprivacy.models.save import save_model
from rayprivacy.runs.directory import Run
from rayprivacy.runs.session import ray_session
from rayprivacy.teachers.encoding import groups_of
from rayprivacy.teachers.pool import teacher_pool
from rayprivacy.teachers.spec import GroupSpec

RECIPE = Path(__file__).parent.parent / "jobs" / "seqpate" / "europarl.yaml"
SEQUENTIAL_TEACHERS = 12


def main() -> None:
    arguments = _arguments()
    found = {count: in_a_process(_ensemble, arguments, count) for count in arguments.teachers}
    if not arguments.without_sequential:
        found["sequential"] = in_a_process(_sequential, arguments, arguments.teachers[1])
    figures = _figures(found, arguments)
    print(json.dumps(figures, indent=1) if arguments.json else _table(figures))


def _figures(found: dict[Any, dict[str, float]], arguments: argparse.Namespace) -> dict[str, Any]:
    few, many = arguments.teachers
    times = {count: found[count]["train_s"] + found[count]["vote_s"] for count in (few, many)}
    train = found[many]["tokens"] / found[many]["train_s"]
    of_each = {
        f"{name}_m{count}{unit}": round(value, 1)
        for count in (few, many)
        for name, unit, value in (
            ("time", "_s", times[count]),
            ("train", "_s", found[count]["train_s"]),
            ("vote", "_s", found[count]["vote_s"]),
            ("cpu", "_s", found[count]["cpu_s"]),
            ("driver_growth_mb", "", found[count]["driver_growth_mb"]),
        )
    }
    return {
        "train_tokens_per_s": round(train),
        "votes_per_s": round(found[many]["pairs_per_s"]),
        "bytes_per_teacher": round(found[many]["bytes"] / many),
        **of_each,
        "flatness": round(times[many] / times[few], 3),
        "flatness_of_cpu": round(found[many]["cpu_s"] / found[few]["cpu_s"], 3),
        **(_against(train, found["sequential"]) if "sequential" in found else {}),
        "layers": arguments.layers,
        "sentences": found[many]["sentences"],
        "queries": arguments.queries,
        "candidates": 50,
        "overrides": arguments.override,
        "cores": multiprocessing.cpu_count(),
        "python": platform.python_version(),
    }


def _against(train: float, alone: dict[str, float]) -> dict[str, Any]:
    """What one adapter after the other reaches, and how much faster `train` tokens a second are."""
    return {
        "sequential_tokens_per_s": round(alone["tokens_per_s"]),
        "speedup": round(train / alone["tokens_per_s"], 1),
        "sequential_cached_tokens_per_s": round(alone["cached_tokens_per_s"]),
        "speedup_over_cached": round(train / alone["cached_tokens_per_s"], 1),
    }


def _ensemble(arguments: argparse.Namespace, count: int) -> dict[str, float]:
    """Train and ask one ensemble."""
    recipe, run = _run(arguments, count)
    backbone = load_backbone(recipe.model)
    with ray_session("local"):
        rows, _, warm, spec = prepared(run, backbone, load_prompts(recipe.prompts))
        shutil.rmtree(spec.workspace.root, ignore_errors=True)
        spec.workspace.prepare()
        queries = select_queries(rows, warm, backbone, recipe.votes, arguments.queries, recipe.seed)
        mechanism = replace(plan_run(recipe).stage(GATE).mechanism, queries=len(queries))
        before = peak_mb()
        with teacher_pool(spec, recipe.resources) as pool:
            ray.get([worker.actor.ready.remote() for worker in pool.actors.workers])
            train, train_cpu = timed(lambda: deque(pool.train(), maxlen=0))
            vote, vote_cpu = timed(lambda: pool.vote(queries, mechanism))
            again = min(vote, timed(lambda: pool.vote(queries, mechanism))[0])
        growth = peak_mb() - before
    size = sum(path.stat().st_size for path in spec.workspace.root.rglob("*") if path.is_file())
    return {
        "train_s": train,
        "vote_s": vote,
        "cpu_s": train_cpu + vote_cpu,
        "pairs_per_s": len(queries) * count / again,
        "sentences": sum(entry.rows for entry in read_manifest(spec.shards).training_files),
        "tokens": learnt_tokens(spec),
        "bytes": size,
        "driver_growth_mb": growth,
    }


def _run(arguments: argparse.Namespace, count: int) -> tuple[SeqPateRecipe, Run]:
    work = arguments.work
    overrides = [
        f"teachers.count={count}", "teachers.max_steps=1000000", "teachers.stack=50",
        f"corpus.source={work}/private.parquet", f"prompts={work}/prompts.txt",
        f"privacy.key={work}/bench.key", f"resources.features={work}/features", f"votes.queries={arguments.queries}",
        *arguments.override,
    ]  # fmt: skip
    recipe, root = load_recipe(RECIPE, [*EARLIER, *overrides]), work / f"teachers-{count}"
    if arguments.layers is not None:
        overrides.append(f"model.base={_lower_layers(recipe, arguments.layers, work / f'base-{arguments.layers}')}")
        recipe = load_recipe(RECIPE, [*EARLIER, *overrides])
    run, first = Run.open(root, recipe, resume=True), work / f"teachers-{arguments.teachers[0]}" / "public"
    if count != arguments.teachers[0]:  # the public side does not depend on the number of teachers
        shutil.copytree(first, root / "public", dirs_exist_ok=True)
    return recipe, run


def _lower_layers(recipe: SeqPateRecipe, layers: int, folder: Path) -> Path:
    """The base with its first layers alone."""
    if not folder.exists():
        backbone = load_backbone(recipe.model)
        backbone.model.model.layers = backbone.model.model.layers[:layers]
        backbone.model.config.num_hidden_layers = layers
        save_model(backbone.model, backbone.tokenizer, folder, "none", "The lower layers of another model.")
    return folder


def _sequential(arguments: argparse.Namespace, count: int) -> dict[str, float]:
    """One adapter after the other, in plain PyTorch on all cores."""
    recipe, run = _run(arguments, count)
    backbone = load_backbone(recipe.model)
    spec = ensemble(run, backbone, run.recipe.model)
    shards: list[list[list[str]]] = []
    for part in range(spec.teachers.parts):
        members = spec.teachers.members(part)
        shards += [own for own in groups_of(read_part(spec.shards, part), spec.unit, members) if own]
    step = max(1, len(shards) // SEQUENTIAL_TEACHERS)
    chosen = shards[::step][:SEQUENTIAL_TEACHERS]
    found = [_alone(spec, backbone, own) for own in chosen]
    tokens = sum(tokens for tokens, _, _ in found)
    trunk, steps = sum(trunk for _, trunk, _ in found), sum(steps for _, _, steps in found)
    return {"tokens_per_s": tokens / (trunk + steps), "cached_tokens_per_s": tokens / steps}


def _alone(spec: GroupSpec, backbone: Backbone, groups: list[list[str]]) -> tuple[int, float, float]:
    """Train one adapter; returns tokens, seconds in the trunk, and seconds in steps."""
    config, warm = spec.teachers, HeadAdapter(Basis.load(spec.basis), load_file(spec.warm)["matrix"])
    shortlist, rank = warm.basis.shortlist, spec.teachers.width
    short, place = backbone.head[shortlist], torch.full((len(backbone.head),), -1)
    place[shortlist] = torch.arange(len(shortlist))
    inward, outward = warm.basis.inward[:, :rank], warm.basis.outward[:rank]
    matrix = torch.nn.Parameter(torch.zeros(rank, rank))
    optimizer = torch.optim.AdamW([matrix], lr=config.step_size)
    documents = [[backbone.document(text, config.max_tokens) for text in group] for group in groups]
    tokens, trunk, stepping = 0, 0.0, 0.0
    for _ in range(round(config.epochs)):
        began = time.perf_counter()
        examples = join([encode(backbone, own, config.row_tokens, config.max_rows) for own in documents],
                        config.row_tokens, backbone.width).examples  # fmt: skip
        between = time.perf_counter()
        keep = place[examples.targets] >= 0
        hidden, targets = examples.hidden[keep], place[examples.targets[keep]]
        for states, wanted in zip(hidden.split(config.batch), targets.split(config.batch), strict=True):
            start = warm(states)
            loss = torch.nn.functional.cross_entropy((start + start @ inward @ matrix @ outward) @ short.T, wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        tokens += len(targets)
        trunk, stepping = trunk + between - began, stepping + time.perf_counter() - between
    return tokens, trunk, stepping


def _table(figures: dict[str, Any]) -> str:
    return "\n".join(f"{name:<32}{value}" for name, value in figures.items())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--work", type=lambda path: Path(path).absolute(), default=Path("runs/europarl").absolute())
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--teachers", type=int, nargs=2, default=[100, 2000], metavar=("FEW", "MANY"))
    parser.add_argument("--layers", type=int, help="of the base that makes the features; all by default")
    parser.add_argument("--without-sequential", action="store_true", help="leave the plain loop out")
    parser.add_argument("-o", dest="override", action="append", default=[], help="one more setting of the recipe")
    return parser.parse_args()


if __name__ == "__main__":
    main()
