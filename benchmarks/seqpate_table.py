"""SeqPATE's tables and figure 2 on Europarl: the paper's rows, and what this project tries beyond it.

    python benchmarks/europarl.py --data europarl_by_speaker.parquet
    python benchmarks/seqpate_table.py --seeds 1 2 3 --json > table.json

A row is a recipe of jobs/seqpate/ablations: its `votes` and `student` blocks change jobs/seqpate/europarl.yaml. All
rows of a seed share the corpus, its cached features, the public side and the teachers, and rows that ask the same
questions share the sums; every row is released through the gate, with noise of its own, by an account of its own. So
one row costs seconds, and rows differ in nothing but what they say. `--run DIR` takes corpus, public side and teachers
of a run of any recipe of SeqPATE, and `--curves` shows what limits it (see seqpate_curves.py).

What is measured is the perplexity of held-out speakers under the full vocabulary. Rows were chosen on seed 0 and on
the `dev` half of those speakers; the figures to quote are the other half's (`--half test`, the default), on other
seeds.
"""

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import yaml
from ensembles import HALVES, heldout_rows, prepared
from europarl import EARLIER
from seqpate_curves import curves

from rayprivacy.blocks.pretrain import pretrained_base
from rayprivacy.core.console import nobody
from rayprivacy.core.keys import load_or_create_key
from rayprivacy.core.private import Private, digest_json
from rayprivacy.core.units import NeighbouringRelation
from rayprivacy.corpus.manifest import read_manifest
from rayprivacy.corpus.phrases import load_phrases
from rayprivacy.corpus.public import load_prompts
from rayprivacy.evaluation.language import perplexity, row_nll
from rayprivacy.ledger.store import Ledger
from rayprivacy.methods.registry import load_recipe
from rayprivacy.methods.seqpate.deep_student import DeepStudent
from rayprivacy.methods.seqpate.heldout import nonprivate_student, phrase_metrics
from rayprivacy.methods.seqpate.plan import GATE, plan_run, queries_by_round
from rayprivacy.methods.seqpate.public_side import Round, pseudo_rows, question_of, select_queries
from rayprivacy.methods.seqpate.recipe import WARM_BATCH, WARM_LEARNING_RATE, SeqPateRecipe
from rayprivacy.methods.seqpate.students import Student, vote_targets
from rayprivacy.models.backbone import load_backbone
from rayprivacy.release.gate import Asked, Gate
from rayprivacy.runs.directory import Run
from rayprivacy.runs.session import ray_session
from rayprivacy.teachers.pool import teacher_pool

RECIPES = Path(__file__).parent.parent / "jobs" / "seqpate"
PAPER = ("plain", "merge_p", "kl", "no_pseudo", "no_efficient_kd", "laplace", "top_k_200", "top_p", "curriculum")
BEYOND = ("default", "wide_clip", "mixed", "entropy", "auto_queries", "rounds")


def _votes(recipe: SeqPateRecipe) -> Any:
    """All queries of a row as one mechanism."""
    return plan_run(recipe).stage(GATE).mechanism


class Bench:
    """One seed: corpus, public side and trained teachers, ready for rows."""

    def __init__(self, recipe: SeqPateRecipe, root: Path, half: str) -> None:
        """Do all that rows share, or find it done; Ray must be started."""
        self.recipe, self.run = recipe, Run.open(root, recipe, resume=True)
        self.prompts = load_prompts(recipe.prompts)
        self.backbone, model = load_backbone(recipe.model), recipe.model
        if recipe.pretrain:
            found = pretrained_base(self.run, self.backbone, recipe.pretrain, nobody)
            self.backbone, model = found.backbone, found.config
        self.rows, self.base, self.warm, self.spec = prepared(self.run, self.backbone, self.prompts, model)
        self.key = load_or_create_key(Path(recipe.privacy.key).absolute())
        self.corpus = read_manifest(self.run.private("shards")).corpus_digest(self.key)
        self.ledger = Ledger.open(f"sqlite:///{root}/rows.db")
        self._sums: dict[str, Any] = {}
        self.heldout = heldout_rows(self.run.private("shards"), self.backbone, recipe.teachers, half)

    def perplexity(self, student: Student) -> float:
        """Of the held-out speakers."""
        if isinstance(student, DeepStudent):
            return perplexity(*student.nll(self.heldout))
        losses = row_nll(student.hidden(self.heldout), self.heldout, self.backbone.head)
        return perplexity(float(losses.sum()), int(self.heldout.predicts.sum()))

    def baselines(self) -> dict[str, float]:
        """Pub, Pub+pseudo, and Pri, which has no guarantee."""
        private = nonprivate_student(self.run, self.warm, self.spec)
        models = {"pub": self.base, "pub_pseudo": self.warm, "pri_not_private": private}
        return {name: round(self.perplexity(model), 3) for name, model in models.items()}

    def phrases(self, recipe: SeqPateRecipe) -> dict[str, Any]:
        """What each phrase costs by the shards it occurs in, for the noise of a recipe; internal."""
        shards = self.run.private("shards")
        manifest, phrases = read_manifest(shards), load_phrases(recipe.corpus.phrases)
        return phrase_metrics(shards, manifest, phrases, _votes(recipe), recipe.privacy.delta)

    def row(self, recipe: SeqPateRecipe, pool: Any) -> dict[str, Any]:
        """Release the votes of one row, train its student, and measure it."""
        began = time.perf_counter()
        student, rows, asked_queries = self.start(recipe), self.rows, 0
        gate, votes = self._gate(recipe), _votes(recipe)
        for number in range(recipe.votes.rounds):
            asked = Round.of(number, student)
            if number:
                rows = pseudo_rows(self.run, self.backbone, self.prompts, student.model(), asked)
            count = queries_by_round(votes.queries, recipe.votes.rounds)[number]
            queries = select_queries(rows, student, self.backbone, recipe.votes, count, recipe.seed + number)
            mechanism = replace(votes, queries=len(queries))
            asked_queries += len(queries)
            sums, manifest = self.voted(pool, queries, mechanism, asked.rows(self.run))
            question = question_of(self.spec, self.backbone.tokenizer, asked, queries, asked.rows(self.run))
            named = Asked(self.corpus, question)
            released = gate.release_votes(recipe.release_id, mechanism, sums, manifest, asked=named)
            noisy = torch.from_numpy(released.value).float()
            targets = vote_targets(noisy, queries, recipe.votes.radius is not None, recipe.student)
            student = student.distilled(queries, targets, rows, recipe.student)
        found = {"perplexity": round(self.perplexity(student), 3), "queries": asked_queries, "sigma": mechanism.sigma}
        return found | {"seconds": round(time.perf_counter() - began, 1)}

    def start(self, recipe: SeqPateRecipe) -> Student:
        """The warm student of the row's kind."""
        if recipe.student.kind == "head":
            return self.warm
        deep, config = DeepStudent.untrained(self.backbone, recipe.student), recipe.student
        return deep.fitted(self.rows, config.warm_steps, WARM_BATCH, WARM_LEARNING_RATE, config.seed)

    def _gate(self, recipe: SeqPateRecipe) -> Gate:
        """A gate on an account that holds this row's budget and nothing else."""
        privacy, account = recipe.privacy, digest_json([recipe.release_id, recipe.student.model_dump(mode="json")])[:16]
        relation = NeighbouringRelation.ADD_OR_REMOVE
        plan = plan_run(recipe).charges
        self.ledger.ensure_account(
            account, privacy.unit, relation, privacy.budget, privacy.composition, corpus=privacy.corpus, plan=plan
        )
        return Gate(self.ledger, account, self.key)

    def voted(self, pool: Any, queries: Any, mechanism: Any, rows: Path | None) -> Any:
        """The private sums of all teachers and their manifest; the same question is asked once."""
        name = digest_json([queries.digest, mechanism.ballot, mechanism.clip])
        if name not in self._sums:
            sums, manifest = pool.vote(queries, mechanism, rows)
            self._sums[name] = sums.reveal(), manifest
        sums, manifest = self._sums[name]
        return Private(sums), manifest


@contextmanager
def bench(recipe: SeqPateRecipe, root: Path, half: str) -> Iterator[tuple[Bench, Any]]:
    """The bench of a seed with its trained teachers."""
    found = Bench(recipe, root, half)
    with teacher_pool(found.spec, recipe.resources) as pool:
        for _ in pool.train():
            pass
        yield found, pool


UNITS = {
    "user": [],
    "record": ["corpus.max_records_per_user=null"],
    "phrase": ["corpus.phrases={work}/phrases.txt", "corpus.max_shards_per_phrase=8"],
}


def base_recipe(seed: int, work: Path, teachers: int, unit: str = "user", changes: Sequence[str] = ()) -> SeqPateRecipe:
    """The recipe that rows change, for one seed: other pseudo-sentences, queries and students, the same shards."""
    overrides = [
        f"seed={seed}", f"student={{seed: {seed}}}", f"teachers.count={teachers}",
        f"corpus.source={work}/private.parquet", f"prompts={work}/prompts.txt",
        f"privacy.key={work}/bench.key", f"resources.features={work}/features",
    ]  # fmt: skip
    overrides += [f"privacy.unit={unit}", *(option.format(work=work) for option in UNITS[unit])]
    return load_recipe(RECIPES / "europarl.yaml", [*EARLIER, *overrides, *changes])


def row_recipe(base: SeqPateRecipe, row: str, epsilon: float) -> SeqPateRecipe:
    """A row: the votes and student blocks of an ablation over the base's, then keys of its own.

    Args:
        base: the recipe to change.
        row: `default`, or the name of an ablation; further settings follow as in `plain,student.steps=400`.
        epsilon: the budget.
    """
    name, *overrides = row.split(",")
    path = RECIPES / "ablations" / f"{name}.yaml"
    changes = {} if name == "default" else yaml.safe_load(path.read_text())
    data = base.model_dump(mode="json")
    for block in ("votes", "student"):
        data[block] |= changes.get(block, {})
    data["privacy"] |= {"epsilon": epsilon, "composition": changes.get("privacy", {}).get("composition", "gdp")}
    for override in overrides:
        place, value = override.split("=")
        block, key = place.split(".")
        data[block][key] = yaml.safe_load(value)
    return SeqPateRecipe.parse(data)


def bases(arguments: argparse.Namespace) -> Iterator[tuple[SeqPateRecipe, Path]]:
    """The recipe that rows change, and its folder, for each seed; or those of a run."""
    if arguments.run:
        recipe = load_recipe(arguments.run / "recipe.yaml")
        assert isinstance(recipe, SeqPateRecipe)
        yield recipe, arguments.run
        return
    for seed in arguments.seeds:
        changed = f"-{digest_json(arguments.override)[:12]}" if arguments.override else ""
        root = arguments.work / f"table-{arguments.unit}-{arguments.teachers}-{seed}{changed}"
        yield base_recipe(seed, arguments.work, arguments.teachers, arguments.unit, arguments.override), root


def measure(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One result after the other: a seed, a row, an epsilon."""
    for base, root in bases(arguments):
        with bench(base, root, arguments.half) as (found, pool):
            names = {"seed": base.seed, "teachers": base.teachers.count, "unit": str(base.privacy.unit)}
            shown = names | {"half": arguments.half}
            for name, value in found.baselines().items() if arguments.baselines else ():
                yield shown | {"row": name, "perplexity": value}
            for epsilon in arguments.epsilon:
                if base.corpus.phrases:
                    report = found.phrases(row_recipe(base, "default", epsilon))
                    yield shown | {"row": "n_s report", "epsilon": epsilon} | report
                for row in arguments.rows:
                    recipe, names = row_recipe(base, row, epsilon), {**shown, "row": row, "epsilon": epsilon}
                    if arguments.curves:
                        yield from (names | each for each in curves(found, pool, recipe, arguments.curves))
                    else:
                        yield names | found.row(recipe, pool)


def summary(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean and standard deviation over seeds of every row."""
    groups: dict[tuple[str, float | None, str], list[float]] = {}
    for result in results:
        if "perplexity" in result:
            curve = f"{result['curve']}, {result.get('queries', 'no')} queries" if "curve" in result else ""
            groups.setdefault((result["row"], result.get("epsilon"), curve), []).append(result["perplexity"])
    return [
        {
            "row": row,
            "epsilon": epsilon,
            **({"curve": curve} if curve else {}),
            "perplexity": round(statistics.mean(found), 2),
            "std": round(statistics.stdev(found), 2) if len(found) > 1 else None,
            "seeds": len(found),
        }
        for (row, epsilon, curve), found in groups.items()
    ]


def main() -> None:
    arguments = _arguments()
    began, results = time.perf_counter(), []
    with ray_session("local"):
        for result in measure(arguments):
            print(json.dumps(result), file=sys.stderr, flush=True)
            results.append(result)
    machine = {"cores": torch.get_num_threads(), "python": platform.python_version()}
    report = {"summary": summary(results), "results": results, "seconds": round(time.perf_counter() - began), **machine}
    print(json.dumps(report, indent=1) if arguments.json else _table(report["summary"]))


def _table(rows: list[dict[str, Any]]) -> str:
    lines = [
        f"{row.get('curve', row['row']):<36}{row['epsilon'] or '-':>8}{row['perplexity']:>10}{row['std'] or '-':>8}"
        for row in rows
    ]
    return "\n".join([f"{'row':<36}{'epsilon':>8}{'ppl':>10}{'std':>8}", *lines])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=lambda path: Path(path).absolute(), default=Path("runs/europarl").absolute())
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[3.0])
    parser.add_argument("--rows", nargs="+", default=list(dict.fromkeys([*PAPER, *BEYOND])))
    parser.add_argument("--run", type=lambda path: Path(path).absolute(), help="a run of SeqPATE, not cleaned, instead")
    parser.add_argument("--teachers", type=int, default=2000)
    parser.add_argument("--curves", type=int, nargs="+", default=[], help="numbers of queries; see seqpate_curves.py")
    parser.add_argument("--unit", choices=list(UNITS), default="user")
    parser.add_argument("--half", choices=HALVES, default="test")
    parser.add_argument("--baselines", action="store_true")
    parser.add_argument("-o", "--override", action="append", default=[], help="key=value of the recipe of all rows")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
