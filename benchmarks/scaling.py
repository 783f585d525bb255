"""What Ray costs on one node and on two, where the time of a run goes, and a simulation of a corpus of 10^9 records.

    OMP_NUM_THREADS=1 python benchmarks/scaling.py --json > scaling.json
    python benchmarks/scaling.py --simulate scaling.json

Sharding, teacher training and voting run on a plain Python loop in one process, on a Ray node with one CPU, on one with
two, and on two nodes with one each (`ray.cluster_utils.Cluster`). All four read the same files, and must leave the same
part files, teachers and votes, byte for byte. On a machine of two cores, two nodes show overhead, not speed-up. CPU
seconds of all processes stand beside wall seconds, and Ray's workers run without the niceness that it gives them, since
other work may share the machine. Rounds are interleaved; medians are reported. Each arm does its work once before it
is timed, so that starting processes is not in it (`first_s` has it).

The model is a tiny random one: with a real one, its own work hides what is around it. What a real one takes is in the
costs, which come from `scaling_costs.py` and from other benchmarks on the same machine.

The second command reads the costs that the first has measured; `scaling_model.py` says how they are put together.
"""

import argparse
import json
import multiprocessing
import os
import pickle
import platform
import shutil
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray
from cpu_time import in_a_process, timed
from ensembles import learnt_tokens
from ray.cluster_utils import Cluster
from rich.console import Console
from safetensors.torch import save
from scaling_costs import costs, gathered, placed, read
from scaling_model import report
from tiny_base import write_tiny_base

from rayprivacy.core.keys import load_key, load_or_create_key
from rayprivacy.core.private import digest_bytes, digest_file
from rayprivacy.corpus.layout import Layout, finish
from rayprivacy.corpus.manifest import write_part
from rayprivacy.corpus.public import load_prompts
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.corpus.shards import shard_corpus
from rayprivacy.methods.registry import load_recipe, method_of
from rayprivacy.methods.seqpate.plan import GATE, plan_run
from rayprivacy.methods.seqpate.public_side import Round, bases, ensemble, pseudo_rows, round_queries, warm_students
from rayprivacy.models.backbone import load_backbone
from rayprivacy.models.features import Queries
from rayprivacy.release.votes import VoteMechanism
from rayprivacy.runs.decide import decided
from rayprivacy.runs.directory import Run, stored_recipe
from rayprivacy.runs.drive import drive
from rayprivacy.teachers.group import TeacherGroup
from rayprivacy.teachers.pool import QUERY_BATCH, teacher_pool
from rayprivacy.teachers.settings import ResourcesConfig
from rayprivacy.teachers.spec import GroupSpec
from rayprivacy.teachers.votes import Question

JOBS = Path(__file__).parent.parent / "jobs"
ARMS = {"plain": (), "ray, 1 node of 1 CPU": (1,), "ray, 1 node of 2": (2,), "ray, 2 nodes of 1": (1, 1)}
USERS, RECORDS, FILES = 1600, 50, 8
SHARDS, PER_PART = 1000, 50
SMALL = {
    "seqpate": [
        "corpus.max_records_per_user=4", "pseudo.texts=64", "votes.queries=512", "votes.top_k=20",
        "teachers={count: 400, stack: 25, rank: 16}",
        "student={steps: 50, warm_steps: 50}", "generation={texts: 64, max_tokens: 20}",
        "evaluation={users: 20, completions: 8, nonprivate_steps: 20}",
    ],
    "generator": [
        "corpus.max_records_per_user=4", "adapter={kind: lora, rank: 4}", "training.steps=8", "training.chunk=4",
        "generation={texts: 64, max_tokens: 20}", "evaluation={users: 20}",
    ],
}  # fmt: skip


@dataclass(frozen=True)
class Task:
    """What every arm does: a corpus to shard, and an ensemble to train and ask."""

    corpus: CorpusConfig
    key: Path
    spec: GroupSpec
    queries: Queries
    mechanism: VoteMechanism
    tokens: int


def main() -> None:
    arguments = _arguments()
    if arguments.simulate:
        print(report(json.loads(arguments.simulate.read_text())["costs"]))
        return
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0"}
    figures = measure(arguments.work, arguments.rounds)
    print(json.dumps(figures, indent=1) if arguments.json else _table(figures))


def measure(work: Path, rounds: int) -> dict[str, Any]:
    """Every figure. What is finished is kept in the folder, so that a benchmark that was stopped goes on."""
    work.mkdir(parents=True, exist_ok=True)
    if not (work / "base").exists():
        write_tiny_base(work / "base")
    _kept(work / "corpus.json", _write_corpus, work)
    measured = _kept(work / "costs.json", _costs, work)
    stages = {"seqpate": _kept(work / "seqpate.json", _whole_run, work, "seqpate")}
    _kept(work / "prepared.json", _prepare, work)  # the arms train the teachers of that run again
    found = _rounds(work, rounds)
    _check_same(found)
    task = _task(work)
    medians = {name: _medians(rows) for name, rows in found.items()}
    stages["generator"] = _kept(work / "generator.json", _whole_run, work, "generator")
    return {
        "arms": medians,
        "over_plain": _over_plain(medians),
        "spread": {name: _spread(rows) for name, rows in found.items()},
        "stages_s": stages,
        "costs": measured,
        "sizes": {"rows": USERS * RECORDS, "users": USERS, "part_files": SHARDS // PER_PART, "rounds": rounds}
        | {"teachers": task.spec.teachers.count, "stacks": task.spec.teachers.parts, "train_tokens": task.tokens}
        | {"queries": len(task.queries), "candidates": task.mechanism.candidates},
        "machine": {"cores": multiprocessing.cpu_count(), "python": platform.python_version(), "ray": ray.__version__}
        | {"load_average": os.getloadavg()[0]},
    }


def _rounds(work: Path, rounds: int) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in ARMS}
    for turn in range(rounds):
        order = list(ARMS)[turn % len(ARMS) :] + list(ARMS)[: turn % len(ARMS)]
        for name in order:
            found[name].append(_kept(work / f"arm-{turn}-{list(ARMS).index(name)}.json", _arm, work, ARMS[name]))
            print(f"round {turn + 1} of {rounds}: {name}", file=sys.stderr)
    return found


def _kept(path: Path, call: Any, *arguments: Any) -> Any:
    """The answer of a call in a process of its own, or the one that is there."""
    if not path.exists():
        path.write_text(json.dumps(in_a_process(call, *arguments)))
    return json.loads(path.read_text())


def _whole_run(work: Path, method: str) -> dict[str, float]:
    """Seconds of each stage of one small run."""
    recipe = _recipe(work, method)
    run, _ = drive(method_of(recipe), recipe, work / method, console=Console(quiet=True))
    return run.timings()


def _recipe(work: Path, method: str) -> Any:
    own = [f"privacy.ledger=sqlite:///{work}/{method}.db", f"privacy.key={work}/key"]
    own += [f"model.base={work}/base", "model.dtype=float32"]
    return load_recipe(JOBS / method / "chat.yaml", [*SMALL[method], *own])


def _write_corpus(work: Path) -> None:
    """What is sharded: public words in random order, by many users."""
    draw, words = np.random.default_rng(0), np.array(sorted({w for line in load_prompts(None) for w in line.split()}))
    (work / "corpus").mkdir()
    for number in range(FILES):
        size = USERS * RECORDS // FILES
        users = [f"user-{user}" for user in draw.integers(0, USERS, size)]
        texts = [" ".join(chosen) for chosen in draw.choice(words, (size, 12))]
        table = pa.table({"user": users, "text": pa.array(texts, pa.large_string())})
        pq.write_table(table, work / "corpus" / f"{number}.parquet")
    load_or_create_key(work / "key")


def _costs(work: Path) -> dict[str, float]:
    return costs(work / "costs", _config(work), work / "key", Layout(_config(work), SHARDS, PER_PART))


def _config(work: Path) -> CorpusConfig:
    return CorpusConfig(source=str(work / "corpus"))


def _prepare(work: Path) -> None:
    """The ensemble and the questions of the run that is there."""
    recipe = decided(_recipe(work, "seqpate"), stored_recipe(work / "seqpate"))
    run = Run.open(work / "seqpate", recipe, resume=True, console=Console(quiet=True))
    backbone = load_backbone(run.recipe.model)
    rows = pseudo_rows(run, backbone, load_prompts(run.recipe.prompts), backbone.model, Round(0, "0"))
    _, warm = warm_students(run, backbone, bases(run, backbone, rows), rows)
    votes = plan_run(recipe).stage(GATE).mechanism
    queries = round_queries(run, backbone, rows, warm, Round(0, "0"), votes.queries)
    spec, mechanism = ensemble(run, backbone, recipe.model), replace(votes, queries=len(queries))
    task = Task(_config(work), work / "key", spec, queries, mechanism, learnt_tokens(spec))
    (work / "task.pickle").write_bytes(pickle.dumps(task))


def _task(work: Path) -> Task:
    task = pickle.loads((work / "task.pickle").read_bytes())
    assert isinstance(task, Task)
    return task


def _arm(work: Path, nodes: tuple[int, ...]) -> dict[str, Any]:
    """Shard, train and vote, each twice; the second time is timed."""
    task, folder = _task(work), work / "arm"
    shutil.rmtree(folder, ignore_errors=True)
    spec = replace(task.spec, workspace=replace(task.spec.workspace, root=folder / "teachers"))
    found: dict[str, Any] = {}
    with _cluster(nodes):
        shard = _plain_shards if not nodes else _ray_shards
        found |= _timed("shard", lambda turn: shard(task, folder / f"shards-{turn}"), lambda: None)
        with _trainer(spec, task, nodes) as (train, vote):
            found |= _timed(
                "train", lambda _: train(), spec.workspace.prepare, lambda: shutil.rmtree(folder / "teachers")
            )
            found |= _timed("vote", lambda _: found.update(votes=digest_bytes(vote())), lambda: None)
    trained = spec.workspace.read(range(spec.teachers.count))
    found["files"] = _digests(folder / "shards-1") | {
        name: digest_bytes(save({name: trained[name]})) for name in trained
    }
    return found


def _timed(name: str, call: Callable[[int], Any], before: Callable[[], Any], between: Any = None) -> dict[str, float]:
    before()
    first = timed(lambda: call(0))[0]
    if between:
        between()
    before()
    wall, cpu = timed(lambda: call(1))
    return {f"{name}_s": wall, f"{name}_cpu_s": cpu, f"{name}_first_s": first}


@contextmanager
def _cluster(nodes: tuple[int, ...]) -> Iterator[None]:
    """Ray on nodes with so many CPUs each; nothing without nodes."""
    if not nodes:
        yield
        return
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": nodes[0], "include_dashboard": False})
    for cpus in nodes[1:]:
        cluster.add_node(num_cpus=cpus)
    ray.init(address=cluster.address, log_to_driver=False)
    cluster.wait_for_nodes()
    try:
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()


def _ray_shards(task: Task, out: Path) -> None:
    shard_corpus(task.corpus, task.key, SHARDS, PER_PART, out)


def _plain_shards(task: Task, out: Path) -> None:
    out.mkdir(parents=True)
    key, layout = load_key(task.key), Layout(task.corpus, SHARDS, PER_PART)
    for part, rows in gathered(placed(read(task.corpus), key, layout)).items():
        write_part(finish(rows, part, key, layout)[0], part, key, out)


@contextmanager
def _trainer(
    spec: GroupSpec, task: Task, nodes: tuple[int, ...]
) -> Iterator[tuple[Callable[[], Any], Callable[[], Any]]]:
    """How this arm trains all teachers, and how it gathers all votes."""
    if nodes:
        with teacher_pool(spec, ResourcesConfig()) as pool:
            ray.get([worker.actor.ready.remote() for worker in pool.actors.workers])
            yield lambda: list(pool.train()), lambda: pool.vote(task.queries, task.mechanism)[0].reveal().tobytes()
        return
    group = TeacherGroup(spec)

    def vote() -> bytes:
        sums = []
        for number, start in enumerate(range(0, len(task.queries), QUERY_BATCH)):
            question = Question.of(task.queries.rows(start, start + QUERY_BATCH), task.mechanism, None, number)
            group.vote(range(spec.teachers.count), question)
            sums.append(group.collect(question.digest).sums)
        return np.concatenate(sums).tobytes()

    yield lambda: [group.train(spec.teachers.members(part)) for part in range(spec.teachers.parts)], vote


def _digests(folder: Path) -> dict[str, str]:
    return {path.name: digest_file(path) for path in sorted(folder.glob("*.parquet"))}


def _check_same(found: dict[str, list[dict[str, Any]]]) -> None:
    for rows in found.values():
        for row in rows:
            for what in ("files", "votes"):
                assert row[what] == found["plain"][0][what], f"an arm left other {what}"


def _figures(rows: list[dict[str, Any]]) -> list[str]:
    return [name for name in rows[0] if name.endswith("_s")]


def _medians(rows: list[dict[str, Any]]) -> dict[str, float]:
    return {name: round(statistics.median(row[name] for row in rows), 3) for name in _figures(rows)}


def _spread(rows: list[dict[str, Any]]) -> dict[str, list[float]]:
    return {name: [round(call(row[name] for row in rows), 3) for call in (min, max)] for name in _figures(rows)}


def _over_plain(medians: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    plain = medians["plain"]
    compared = [figure for figure, value in plain.items() if "first" not in figure and value]
    return {
        name: {figure: round(row[figure] / plain[figure], 2) for figure in compared}
        for name, row in medians.items()
        if name != "plain"
    }


def _table(figures: dict[str, Any]) -> str:
    names = list(next(iter(figures["arms"].values())))
    lines = [f"{'':<24}" + "".join(f"{name:>16}" for name in names)]
    lines += [f"{arm:<24}" + "".join(f"{row[name]:>16.2f}" for name in names) for arm, row in figures["arms"].items()]
    rest = {name: figures[name] for name in figures if name not in ("arms", "spread")}
    return "\n".join([*lines, json.dumps(rest, indent=1)])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=lambda path: Path(path).absolute(), default=Path("runs/scaling").absolute())
    parser.add_argument(
        "--simulate", type=Path, metavar="FILE", help="the JSON of an earlier run: print the simulation"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
