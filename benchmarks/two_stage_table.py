"""Tables 1, 4 and 6 of Mireshghallah et al. (ACL 2023) on data that is to be had: one stage, one and a half, and two.

    python benchmarks/two_stage_table.py --data DIR --epsilon inf 8 3 --seeds 1 2 3 --json

`DIR` is that of benchmarks/smcalflow.py. Each row is a run in a process of its own, on an account of its own; rows that
are in the folder already are not run again. All arms read the same dialogues in as many steps; those without `as
published` begin from the public part. A dialogue is the unit, sampled by coin. Epsilon `inf` is next to no noise, as a
bound that must never be released.

Functions of a text are those of the tree of the private training utterance that is nearest to it by TF-IDF: it stands
for the paper's parser, is made of private trees without noise, and is no part of any release. Its own ceiling is
`real`, other private utterances in the place of synthetic ones: as many as there are dev utterances in a row of its
own, and in each row as many as it has texts, since all figures depend on their number. The row `public` is the public
part itself, from which the warm arms begin. All are against the dev dialogues.
The paper's own stand beside them, and what the rows show of its orderings is under `claims` (two_stage_claims.py).

With `--missing EventOnDate` the public part has no turn with a function that begins so: what a model learns of it, it
learns from private text. `missing_trees` is the share of written trees that have one. `missing` is that of texts by the
nearest utterance, and a text about a date is near one easily: compare it with the row of the public part.
"""

import argparse
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from quickstart import watched_run
from sklearn.feature_extraction.text import TfidfVectorizer
from smcalflow import DOMAINS, has, prepare
from two_stage_claims import claims, paper_of

from rayprivacy.evaluation.embeddings import embed, open_embedding
from rayprivacy.evaluation.fidelity import has_mauve, mauve
from rayprivacy.evaluation.settings import MINILM
from rayprivacy.evaluation.trees import function_figures, word_recall
from rayprivacy.structures.trees import functions, parse

TEXTS, STEPS, WITHOUT_NOISE = 1252, 100, {"epsilon": 1e6, "composition": "rdp"}
WARM = {"text": "user_utterance", "steps": 60, "max_tokens": 192}
DOMAIN = {"values": {"domain": [name for name, _ in DOMAINS]}}


def recipes(data: Path, public: str = "public.parquet") -> dict[str, dict[str, Any]]:
    """What tells the arms apart; `public` is the file that warm ones begin with."""
    warm = {"pretrain": WARM | {"source": str(data / public)}}
    rules = {"parses": {"grammar": "lispress", "functions": str(data / "functions.txt")}}
    two = {"method": "two_stage", "stages": {"trees": {"steps": 20}, "utterances": {"steps": 80}}}
    one = {"method": "generator", "training": {"steps": STEPS}}
    shuffled = {"corpus": {"labels": ["shuffled"]}, "parses": rules["parses"] | {"column": "shuffled"}}
    return {
        "1-stage": one | warm,
        "1.5-stage": one | warm | {"corpus": {"labels": ["domain"]}, "codes": DOMAIN},
        "2-stage": two | warm | rules,
        "2-stage, shuffled": two | warm | shuffled,
        "2-stage, 80-20": two | warm | rules | {"stages": {"trees": {"steps": 80}, "utterances": {"steps": 20}}},
        "1-stage, as published": one,
        "2-stage, as published": two,
    }


def row(arguments: argparse.Namespace, arm: str, epsilon: float, seed: int, judge: "Judge") -> dict[str, Any]:
    """Run one row, or find it, and read its figures."""
    missing = f"-without-{arguments.missing}" if arguments.missing else ""
    name = f"{arm}-{epsilon:g}-{seed}{missing}".replace(",", "").replace(" ", "-")
    kept = arguments.work / f"{name}.json"
    if not kept.exists():
        path = arguments.work / f"{name}.yaml"
        own = recipes(arguments.prepared, f"public{missing}.parquet")[arm]
        source = arguments.prepared / "private.parquet"
        path.write_text(yaml.safe_dump(recipe_of(own, source, arguments.work, name, epsilon, seed)))
        seconds, watch = watched_run(path, arguments.work / name, arguments.override)
        written = pq.read_table(arguments.work / name / "synthetic.parquet").to_pylist()
        texts = [each["text"] for each in written]
        metrics = json.loads((arguments.work / name / "metrics.json").read_text())
        stated = "inf" if math.isinf(epsilon) else epsilon  # JSON has no infinity
        found = {"arm": arm, "epsilon": stated, "seed": seed, "settings": arguments.override} | judge.figures(texts)
        found |= _of_missing(written, arguments.missing) if missing else {}
        found |= {"real": judge.figures(judge.real[: found["texts"]])}
        found |= {"trees": metrics["synthetic"].get("trees"), "own_trees": metrics.get("trees")}
        found |= {"heldout_perplexity": metrics["heldout"].get("perplexity"), "samples": texts[:20]}
        found |= {"paper": paper_of(arm, epsilon)}
        found |= {"seconds": round(seconds), "cpu_s": round(watch.seen[-1][1]), "stages_s": metrics["timings_s"]}
        kept.write_text(json.dumps(found, allow_nan=False))
    return dict(json.loads(kept.read_text()))


def recipe_of(
    own: dict[str, Any], source: Path, work: Path, name: str, epsilon: float, seed: int, texts: int = TEXTS
) -> dict[str, Any]:
    """A recipe on some private dialogues, with a ledger and a key of the benchmark.

    Args:
        own: the keys of the arm.
        source: the private corpus.
        work: folder of ledger and key.
        name: of the account.
        epsilon: of the budget; infinite is next to no noise.
        seed: of the release.
        texts: that are written.
    """
    training = {"sampling_rate": 0.05, "expected_batch": 130, "chunk": 20, "max_records": 1, "max_tokens": 40}
    training |= {"clipping_norm": 0.1} | own.get("training", {})
    privacy = WITHOUT_NOISE if math.isinf(epsilon) else {"epsilon": epsilon, "composition": "pld"}
    if math.isinf(epsilon):
        training["noise_multiplier"] = 0.05
    ledger = {"account": name, "ledger": f"sqlite:///{work}/ledger.db", "key": f"{work}/key"}
    columns = {"source": str(source), "text": "user_utterance", "user": "dialogue_id", "holdout": 0.05}
    return own | {
        "seed": seed,
        "corpus": columns | {"max_records_per_user": 8} | own.get("corpus", {}),
        "privacy": privacy | {"delta": 1e-6} | ledger,
        "adapter": {"kind": "lora", "rank": 8, "layers": 10},
        "training": training,
        "generation": {"texts": texts, "max_tokens": 40, "top_p": 1.0},
        "evaluation": {"users": 100},
    }


class Judge:
    """Reads figures off texts, against the dev dialogues and with the private trees."""

    def __init__(self, prepared: Path, seed: int, missing: str | None = None) -> None:
        known, self._dev = (pq.read_table(prepared / f"{name}.parquet").to_pylist() for name in ("private", "dev"))
        self._texts = [row["user_utterance"] for row in self._dev]
        self.public = pq.read_table(prepared / "public.parquet")["user_utterance"].to_pylist()
        dice = np.random.default_rng(seed)
        aside = dice.choice(len(known), len(self._dev), replace=False).tolist()
        apart = set(aside)
        self.real = [known[place]["user_utterance"] for place in aside]
        rest = [each for place, each in enumerate(known) if place not in apart]
        self._words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"(?u)\S+")
        self._known = self._words.fit_transform([each["user_utterance"] for each in rest])
        self._trees = [functions(parse(each["lispress"])) for each in rest]
        self._gold = Counter(name for each in self._dev for name in functions(parse(each["lispress"])))
        self._has = [has(each["lispress"], missing) for each in rest] if missing else []
        self._seed = seed

    def figures(self, texts: list[str]) -> dict[str, Any]:
        """Words, functions and MAUVE of some texts, as many as there are dev utterances at most."""
        texts = texts[: len(self._texts)]
        nearest = self._nearest(texts)
        read = Counter(name for each in nearest for name in self._trees[each])
        found = {"texts": len(texts), "words": word_recall(self._texts, texts), **function_figures(self._gold, read)}
        if self._has:
            found["missing"] = sum(self._has[each] for each in nearest) / max(1, len(texts))
        if has_mauve():
            real, synthetic = embed([self._texts, texts], open_embedding(MINILM), self._seed)
            found["mauve"] = mauve(real, synthetic, self._seed)
        return {name: round(value, 4) for name, value in found.items()}

    def _nearest(self, texts: list[str]) -> list[int]:
        return np.asarray((self._words.transform(texts) @ self._known.T).argmax(axis=1)).ravel().tolist()


def main(words: list[str] | None = None) -> None:
    arguments = _arguments(words)
    arguments.prepared = arguments.work / "smcalflow"
    arguments.work.mkdir(parents=True, exist_ok=True)
    prepare(arguments.data, arguments.prepared)
    judge = Judge(arguments.prepared, 0, arguments.missing)
    known = {"real": judge.real, "public": judge.public}
    if arguments.missing:
        known["public, without"] = _public(arguments)["user_utterance"].to_pylist()
    rows = [{"arm": name, "epsilon": None, "seed": 0} | judge.figures(texts) for name, texts in known.items()]
    for seed in arguments.seeds:
        for epsilon in arguments.epsilon:
            for arm in arguments.arms:
                rows.append(row(arguments, arm, epsilon, seed, judge))
    found = {"rows": rows, "claims": claims(rows)}
    print(json.dumps(found, indent=1, allow_nan=False) if arguments.json else "\n".join(map(_shown, rows)))


def _of_missing(written: list[dict[str, Any]], missing: str) -> dict[str, Any]:
    """How many of the written trees have the missing function, if trees were written."""
    trees = [has(each["parse"], missing) for each in written if "parse" in each]
    return {"without": missing} | ({"missing_trees": sum(trees) / len(trees)} if trees else {})


def _public(arguments: argparse.Namespace) -> pa.Table:
    """The public part without the turns that have the missing function, which is a file from then on."""
    table = pq.read_table(arguments.prepared / "public.parquet")
    known = table.filter([not has(tree, arguments.missing) for tree in table["lispress"].to_pylist()])
    pq.write_table(known, arguments.prepared / f"public-without-{arguments.missing}.parquet")
    return known


def _shown(found: dict[str, Any]) -> str:
    names = ("arm", "epsilon", "seed", "words", "function_recall", "function_distance", "top_25", "mauve")
    return "  ".join(str(found.get(name)) for name in names)


def _arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the SMCalFlow files")
    parser.add_argument("--work", type=lambda path: Path(path).absolute(), default=Path("runs/two_stage").absolute())
    parser.add_argument("--arms", nargs="+", default=["1-stage", "1.5-stage", "2-stage"])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[math.inf, 8.0, 3.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--missing", help="how the functions begin that no public tree has")
    parser.add_argument("-o", "--override", action="append", default=[], help="key=value of all recipes")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(words)


if __name__ == "__main__":
    main()
