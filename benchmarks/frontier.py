"""The frontier: how good released text is at each epsilon, by method, corpus and lever, as the evaluation measures it.

    python benchmarks/frontier.py --json
    python benchmarks/frontier.py --corpora chat reviews --data ../shared/data --epsilon 1 3 8 --seeds 0 1 2 --json
    python benchmarks/frontier.py --kept --json > benchmarks/results/frontier.json; python benchmarks/frontier_page.py

Each row is a run of the packaged recipe in a process of its own, on an account of its own: its figures are those that
a user sees. Rows that are in the folder already are not run again. Features of private text are kept beside them, and
serve all rows of SeqPATE on a corpus, so that the first of a seed takes longer. The epsilon `inf` trains with next to
no noise, to compare with: it must never be released. A lever is a change to the recipe; `shipped` is none, and `base`
is a model that learnt nothing, so that its figures are those of the public base.

A seed draws teachers and texts anew. Noise and held-out users follow the key alone, and so does all training of the
generator: rows that shall differ in them are asked for with several keys.
"""

import argparse
import json
import math
import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from quickstart import watched_run

JOBS = Path(__file__).parent.parent / "jobs"
EARLIER = [  # what the packaged recipe had before: 100 openers, fewer tokens to draw from, and fewer candidates
    f"prompts={Path(__file__).with_name('earlier_openers.txt')}", "generation.prompt_words=[1,4]",
    "generation.top_k=50", "generation.top_p=0.95", "match.candidates=1.5",
]  # fmt: skip
SHORT_ROWS = [  # of Europarl: own texts as long as the rows that hold them, which cut them
    "pretrain.texts=6000", "pretrain.text_tokens=16", "pretrain.sentences=null", "pretrain.batch=32",
    "pretrain.max_tokens=16", "generation.max_tokens=24",
]  # fmt: skip
NARROW = ["generation.top_k=50", "generation.top_p=0.9"]  # what the generator's packaged recipe had before
METHODS = ("seqpate", "generator")
CORPORA = ("chat", "reviews", "europarl")
LEVERS: dict[str, dict[str, list[str]]] = {
    "shipped": {"seqpate": [], "generator": []},  # the packaged recipe as it is
    "plain": {"seqpate": ["match=null"], "generator": ["match=null"]},
    "earlier recipe": {"seqpate": EARLIER},
    "68 openings": {"seqpate": []},
    "earlier recipe, match noise 5": {"seqpate": [*EARLIER, "match.noise_multiplier=5"]},  # as at epsilon 3 and more
    "lora student": {"seqpate": ["student.kind=lora"]},
    "two rounds": {"seqpate": ["votes.rounds=2"]},
    "bands": {"generator": ["training.bands=5"]},
    "base": {"generator": [*NARROW, "match=null", "training.steps=1", "training.optimizer.learning_rate=1e-9"]},
    "narrow sampling": {"generator": NARROW},
    "codes noise 5": {"generator": ["codes.noise_multiplier=5"]},  # as at epsilon 3 and more
    "learning rate 0.002": {"generator": [*NARROW, "training.optimizer.learning_rate=0.002"]},
    "learning rate 0.006": {"generator": [*NARROW, "training.optimizer.learning_rate=0.006"]},
    "rows of 16 tokens": {"seqpate": SHORT_ROWS, "generator": SHORT_ROWS},
}
OF_THE_RECIPE = ("shipped", "narrow sampling")  # levers that leave the trained model as it is
FIGURES = (
    "mauve", "precision", "recall", "frechet", "topic_total_variation", "length_total_variation", "words_mean",
    "perplexity", "distinct_2", "self_bleu_4", "duplicate_share", "accuracy",
)  # fmt: skip
SAMPLES, ON_GPU = 20, "resources.gpu=true"
PUBLIC = ("base", "pretrained", "base_pseudo")  # models that read no private text
_ROLES = {"student": "released", "generator": "released"}  # of the models whose perplexity is measured
WITHOUT_NOISE = {
    "seqpate": ["privacy.epsilon=1e6"],  # votes have noise of 1e-5 then
    "generator": ["privacy.epsilon=1e6", "privacy.composition=rdp", "training.noise_multiplier=0.05"],
}


# Reviews of medicines are three times as long as chat, and begin in other ways.
REVIEWS = ["corpus.text=benefitsReview", "corpus.user=review_id", "corpus.max_records_per_user=1"]
LONGER = ["pseudo.max_tokens=60", "teachers.max_tokens=62", "generation.max_tokens=80"]  # of SeqPATE
EARLIER_OPENINGS = ("earlier recipe", "68 openings")  # levers whose prompts are the 68 openings of reviews


def row(
    arguments: argparse.Namespace, corpus: str, method: str, epsilon: float, lever: str, seed: int, key: int = 0
) -> Any:
    """Run one row, or find it, and read its figures."""
    name = f"{corpus}-{method}-{epsilon:g}-{lever.replace(' ', '-')}-{seed}" + (f"-key{key}" if key else "")
    kept = arguments.work / f"{name}.json"
    if not kept.exists():
        changes = [
            f"seed={seed}",
            f"evaluation.compare={arguments.compare}",
            *LEVERS[lever][method],
            *arguments.override,
        ]
        changes += WITHOUT_NOISE[method] if math.isinf(epsilon) else [f"privacy.epsilon={epsilon}"]
        changes += [f"privacy.account={name}", f"privacy.ledger=sqlite:///{arguments.work}/ledger.db"]
        changes += [f"privacy.key={arguments.work}/key{key or ''}", *_source(arguments, corpus, method, lever)]
        if method == "seqpate":
            changes += [f"resources.features={arguments.work}/features{key or ''}"]
        out = arguments.work / name
        seconds, watch = watched_run(_recipe(corpus, method), out, changes)
        names = {"corpus": corpus, "method": method, "epsilon": epsilon, "lever": lever, "seed": seed, "key": key}
        found = names | _figures(out) | {"seconds": round(seconds), "overrides": arguments.override}
        if ON_GPU not in arguments.override:  # beside a GPU, minutes of a core say nothing
            found["cpu_s"] = round(watch.seen[-1][1])
        kept.write_text(json.dumps(found))
    return json.loads(kept.read_text())


def _recipe(corpus: str, method: str) -> Path:
    own = JOBS / method / f"{corpus}.yaml"
    return own if own.exists() else JOBS / method / "chat.yaml"


def _source(arguments: argparse.Namespace, corpus: str, method: str, lever: str) -> list[str]:
    if corpus == "chat":
        return []
    if corpus == "reviews":
        made = [f"corpus.source={arguments.data / 'reviews_druglib.parquet'}", *REVIEWS]
        openings = "earlier_reviews_prompts.txt" if lever in EARLIER_OPENINGS else "reviews_prompts.txt"
        return made + ([*LONGER, f"prompts={Path(__file__).with_name(openings)}"] if method == "seqpate" else [])
    made = [f"corpus.source={arguments.europarl}/private.parquet"]  # see europarl.py
    made += [f"pretrain.prompts={arguments.europarl}/prompts.txt"]
    return made + ([f"prompts={arguments.europarl}/prompts.txt"] if method == "seqpate" else [])


def _figures(out: Path) -> dict[str, Any]:
    evaluation, metrics = (json.loads((out / f"{name}.json").read_text()) for name in ("evaluation", "metrics"))
    found = {each["name"]: each for each in evaluation["rows"]}
    sides = {
        side: {name: round(found[name][side], 4) for name in FIGURES if found.get(name, {}).get(side) is not None}
        for side in ("synthetic", "reference")
    }
    heldout = {_ROLES.get(name, name): value for name, value in metrics["heldout"].get("perplexity", {}).items()}
    texts = pq.read_table(out / "synthetic.parquet")["text"].to_pylist()
    stages = json.loads((out / "certificate.json").read_text())["stages"]
    return {
        "figures": sides["synthetic"],
        "other_real_users": sides["reference"],
        "heldout_perplexity": {name: round(value, 2) for name, value in heldout.items()},
        "epsilon_by_stage": {stage["name"]: round(stage["epsilon"], 3) for stage in stages},
        "samples": random.Random(0).sample(texts, min(SAMPLES, len(texts))),
    }


def gap_closed(found: dict[str, Any], rows: list[dict[str, Any]]) -> float | None:
    """How far the released model went from the best public model to one without privacy, in log-perplexity.

    The best public model may be what the base became on text of its own: what private text added counts from there.
    Without privacy is what the run measured beside (SeqPATE's head, of some steps, which is no bound), or else the row
    of the same training with next to no noise, if that was run.
    """
    heldout = found["heldout_perplexity"]
    best = heldout.get("nonprivate") or _without_noise(found, rows)
    if best is None or "released" not in heldout:
        return None
    public, ours, best = (math.log(value) for value in (best_public(heldout), heldout["released"], best))
    return round((public - ours) / (public - best), 3)


def best_public(heldout: dict[str, float]) -> float:
    """The least perplexity of a model that read no private text."""
    return min(heldout[name] for name in PUBLIC if name in heldout)


def main() -> None:
    arguments = _arguments()
    arguments.work.mkdir(parents=True, exist_ok=True)
    rows = _kept(arguments.work) if arguments.kept else _run(arguments)
    rows = [found | {"gap_closed": gap_closed(found, rows)} for found in rows]
    told = [found | ({"epsilon": "inf"} if math.isinf(found["epsilon"]) else {}) for found in rows]
    print(json.dumps({"rows": told}, indent=1, allow_nan=False) if arguments.json else "\n".join(map(_shown, rows)))


def _kept(work: Path) -> list[dict[str, Any]]:
    """All rows that are in the folder."""
    return [json.loads(path.read_text()) for path in sorted(work.glob("*.json"))]


def _run(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows that are asked for, run where they are not there yet."""
    return [
        row(arguments, corpus, method, epsilon, lever, seed, key)
        for corpus in arguments.corpora
        for key in arguments.keys
        for seed in arguments.seeds
        for method in arguments.methods
        for epsilon in arguments.epsilon
        for lever in arguments.levers
        if method in LEVERS[lever]
    ]


def _without_noise(found: dict[str, Any], rows: list[dict[str, Any]]) -> float | None:
    """The perplexity of the same training with next to no noise."""
    own = {name: found[name] for name in ("corpus", "method", "seed", "key")}
    for each in rows:
        if each.items() >= own.items() and math.isinf(float(each["epsilon"])) and each["lever"] in OF_THE_RECIPE:
            return float(each["heldout_perplexity"]["released"])
    return None


def _shown(found: dict[str, Any]) -> str:
    names = ("corpus", "method", "epsilon", "lever", "seed")
    return " ".join(str(found[name]) for name in names) + f" {found['figures']} {found['heldout_perplexity']}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=lambda path: Path(path).absolute(), default=Path("runs/frontier").absolute())
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of reviews_druglib.parquet")
    parser.add_argument("--europarl", type=lambda path: Path(path).absolute(), default=Path("runs/europarl").absolute())
    parser.add_argument("--corpora", nargs="+", choices=CORPORA, default=["chat"])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--levers", nargs="+", choices=list(LEVERS), default=["shipped"])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 3.0, 8.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--keys", type=int, nargs="+", default=[0], help="numbers of keys, which are made")
    parser.add_argument("--compare", type=int, default=400, help="texts of each side that are compared")
    parser.add_argument("-o", "--override", action="append", default=[], help="key=value of all recipes")
    parser.add_argument("--kept", action="store_true", help="print all rows that are in the folder, and run none")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
