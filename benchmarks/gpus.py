"""What a GPU, whole or shared, does for SeqPATE: seconds of encoding, training and voting beside those of the CPUs.

    python benchmarks/europarl.py --data europarl_by_speaker.parquet
    python benchmarks/gpus.py --json

Every arm is a set of actors: as many as there are CPUs (share 0), one that has the GPU to itself (1), or several that
share it. All arms see the same corpus and the same public side, each arm encodes it anew, and each figure begins when
its actors answer; what they load afterwards is part of it. The arm on CPUs comes last, as it takes longest.
"""

import argparse
import json
import os
import platform
import shutil
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from ensembles import before_features
from europarl import EARLIER

from rayprivacy.corpus.public import load_prompts
from rayprivacy.methods.registry import load_recipe
from rayprivacy.methods.seqpate.plan import GATE, plan_run
from rayprivacy.methods.seqpate.public_side import FIRST, select_queries
from rayprivacy.models.backbone import load_backbone
from rayprivacy.models.features import PAD
from rayprivacy.runs.directory import Run
from rayprivacy.runs.session import ray_session
from rayprivacy.teachers.encoding import shards_of
from rayprivacy.teachers.encoding_job import cache_features
from rayprivacy.teachers.pool import teacher_pool
from rayprivacy.teachers.settings import ResourcesConfig
from rayprivacy.teachers.spec import GroupSpec, places

RECIPE = Path(__file__).parent.parent / "jobs" / "seqpate" / "europarl.yaml"


def main() -> None:
    arguments = _arguments()
    with ray_session("local"):
        rows = [row for kind in arguments.kinds for row in _kind(kind, arguments)]
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    machine = {"gpu": gpu, "cores": os.cpu_count(), "python": platform.python_version(), "torch": torch.__version__}
    print(json.dumps({"rows": rows, **machine}, indent=1) if arguments.json else rows)


def _kind(kind: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """All arms of one kind of teacher."""
    work: Path = arguments.work
    layers = ["teachers.layers=2", "teachers.batch=256"] if kind == "lora" else []
    overrides = [
        f"corpus.source={work}/private.parquet", f"prompts={work}/prompts.txt", f"privacy.key={work}/bench.key",
        f"corpus.max_records_per_user={arguments.records}", f"votes.queries={arguments.queries}",
        f"resources.features={work}/gpu-features-{kind}", "pseudo.texts=256", "student={kind: head}",
        f"teachers.count={arguments.teachers}", f"teachers.kind={kind}", *layers, *arguments.override,
    ]  # fmt: skip
    recipe: Any = load_recipe(RECIPE, [*EARLIER, *overrides])
    run = Run.open(work / f"gpu-{kind}", recipe, resume=True)
    backbone = load_backbone(recipe.model)
    rows, _, warm, spec = before_features(run, backbone, load_prompts(recipe.prompts))
    queries = select_queries(rows, warm, backbone, recipe.votes, arguments.queries, recipe.seed)
    mechanism = replace(plan_run(recipe).stage(GATE).mechanism, queries=len(queries))
    found: list[dict[str, Any]] = []
    sums: list[Any] = []
    for share in arguments.shares:
        resources = ResourcesConfig(gpus_per_actor=share, actors=0)
        here = _fresh(spec, share)
        encode = _seconds(lambda here=here, own=resources: deque(cache_features(here, own), maxlen=0))
        with teacher_pool(here, resources) as pool:
            ray.get([worker.actor.ready.remote() for worker in pool.actors.workers])
            train = _seconds(lambda pool=pool: deque(pool.train(), maxlen=0))
            rows_file = None if kind == "square" else FIRST.rows(run)
            vote = _seconds(lambda pool=pool, file=rows_file: sums.append(pool.vote(queries, mechanism, file)[0]))
        seconds = {"encode_s": encode, "train_s": train, "vote_s": vote}
        names = {"kind": kind, "gpus_per_actor": share, "actors": places(resources), "teachers": spec.teachers.count}
        found.append(names | {"positions": _positions(here), "queries": len(queries)} | seconds)
        print(json.dumps(found[-1]), flush=True)
    return [row | {"apart": _apart(each, sums[0])} for row, each in zip(found, sums, strict=True)]


def _fresh(spec: GroupSpec, share: float) -> GroupSpec:
    """The same ensemble, which nothing was computed for yet."""
    store = replace(spec.store, root=spec.store.root.with_name(f"{spec.store.root.name}-{share:g}"))
    workspace = replace(spec.workspace, root=spec.workspace.root.with_name(f"teachers-{share:g}"))
    for folder in (store.root, workspace.root):
        shutil.rmtree(folder, ignore_errors=True)
    workspace.prepare()
    return replace(spec, store=store, workspace=workspace, gpu=share > 0)


def _apart(sums: Any, first: Any) -> float:
    """How far the votes are from those of the first arm, of the length of these."""
    one, other = (np.asarray(each.reveal(), dtype=np.float64) for each in (sums, first))
    return round(float(np.linalg.norm(one - other) / np.linalg.norm(other)), 6)


def _positions(spec: GroupSpec) -> int:
    """Tokens that were encoded."""
    shards = [own for part in range(spec.teachers.parts) for own in shards_of(spec, spec.teachers.members(part))]
    return sum(int((group.segment != PAD).sum()) for own in shards for group in spec.store.read(own))


def _seconds(act: Callable[[], Any]) -> float:
    began = time.perf_counter()
    act()
    return round(time.perf_counter() - began, 2)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=lambda path: Path(path).absolute(), default=Path("runs/europarl").absolute())
    parser.add_argument("--kinds", nargs="+", choices=["square", "lora"], default=["square", "lora"])
    parser.add_argument("--shares", type=float, nargs="+", default=[1.0, 0.125, 0.0], help="of a GPU, for each actor")
    parser.add_argument("--records", type=int, default=40, help="sentences of a speaker at most")
    parser.add_argument("--teachers", type=int, default=1000)
    parser.add_argument("--queries", type=int, default=1024)
    parser.add_argument("-o", "--override", action="append", default=[], help="key=value of the recipe")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
