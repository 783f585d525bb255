"""The judge of answers (AttributionLens; Yue et al., EMNLP Findings 2023, chapter 5 of the thesis) on XQuAD and BEGIN.

    python benchmarks/questions_attribution.py --data DIR --seeds 0 1 --work WORK [--encoder minilm-l6] --json

`DIR` is that of benchmarks/squad.py, with `begin_attribution.parquet`. A judge learns from claims simulated from one
half of XQuAD's titles, and is tested on those of the other half, in both directions, easy and harder; `words` reads
words alone, and `tuned` an encoder too. `without B` is `words` without that variant in training. Rows of `tuned` take
the first seed alone. BEGIN: a dialogue's response as the answer; AUC of P(attributable) on its Wizard-of-Wikipedia
test, without generic responses, learnt from simulated claims and its dev part. The product: of 1,000 questions 30% have
another answer of their passage; how many of those called attributable are right, and how many of the right ones are
called so. Trials that are in WORK already are not run again.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean
from time import process_time
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from squad import splits

from rayprivacy.questions.attribution import EVERY, LABELS, Claim, Label, Simulated, Variant, simulated
from rayprivacy.questions.entities import Finder, finder
from rayprivacy.questions.judge import Judge, trained_judge
from rayprivacy.questions.overlap import Idf, words
from rayprivacy.questions.settings import JudgeConfig

ASKED, PLANTED = 1000, 0.3
PRECISION = 1  # of what words tell: the share of an answer's words that the reference has
ARMS = ("majority", "words", "without B", "without C", "without D")
PAPER = {  # table 5.2, on AttrEval-Simulation: F1 attributable, contradictory, extrapolatory, overall
    "zero-shot Vicuna-13B": (46.3, 8.3, 21.6, 34.6),
    "zero-shot GPT-4": (58.7, 23.2, 61.5, 55.6),
    "tuned RoBERTa-330M": (62.5, 54.6, 74.7, 65.0),
    "tuned Vicuna-13B": (66.2, 49.1, 78.6, 66.0),
}
Rows = Sequence[dict[str, Any]]


def known_entities(rows: Rows) -> Finder:
    """The finder, which looks at each passage once."""
    texts = [*dict.fromkeys(row["context"] for row in rows)]
    known = dict(zip(texts, finder("spacy")(texts), strict=True))
    return lambda asked: [known[text] for text in asked]


def idf_of(texts: Sequence[str]) -> Idf:
    return Idf.of(map(words, dict.fromkeys(texts)))


def learnt(made: Sequence[Simulated], config: JudgeConfig) -> Judge:
    idf = idf_of([each.claim.reference for each in made])
    return trained_judge([each.claim for each in made], [each.label for each in made], idf, config)


def figures(said: Sequence[Label], made: Sequence[Simulated]) -> dict[str, float]:
    """F1 of each label, micro-F1, and the share of each variant that is judged rightly."""
    true = [each.label for each in made]
    found = {}
    for label in LABELS:
        both = sum(one == other == label for one, other in zip(said, true, strict=True))
        found[f"f1_{label}"] = 2 * both / max(1, said.count(label) + true.count(label))
    right = [one == other for one, other in zip(said, true, strict=True)]
    found["micro_f1"] = mean(right)
    for variant in EVERY:
        found[variant] = mean(each for each, one in zip(right, made, strict=True) if one.variant == variant)
    return {name: round(each, 4) for name, each in found.items()}


def judged(judge: Judge, claims: Sequence[Claim]) -> list[Label]:
    return [LABELS[place] for place in judge.probabilities(claims).argmax(axis=1)]


@dataclass(frozen=True)
class Halves:
    """The two halves of XQuAD, of which a judge learns from one and is tested on the other."""

    rows: tuple[Rows, Rows]
    find: Finder

    def trial(self, harder: bool, seed: int, way: int, arm: str, encoder: str | None) -> list[dict[str, Any]]:
        """One judge: what it says of simulated claims, and, on the harder ones, of the product."""
        ours, theirs = self.rows[way], self.rows[1 - way]
        tests = simulated(theirs, self.find, harder=harder, seed=seed)
        row: dict[str, Any] = {"table": "harder" if harder else "easy", "seed": seed, "way": way, "arm": arm}
        if arm == "majority":
            return [row | figures(["contradictory"] * len(tests), tests)]
        shares: dict[Variant, float] = {
            variant: share for variant, share in EVERY.items() if arm != f"without {variant}"
        }
        start = process_time()
        judge = learnt(simulated(ours, self.find, shares, harder=harder, seed=seed), JudgeConfig(encoder=encoder))
        row["training_cpu_s"] = round(process_time() - start, 1)
        row |= figures(judged(judge, [each.claim for each in tests]), tests)
        return [row | self.product(judge, way, seed) if harder and "without" not in arm else row]

    def product(self, judge: Judge, way: int, seed: int) -> dict[str, float]:
        """500 answers of which about 30% are wrong: drawn by another seed than those that the judge learnt from."""
        theirs = self.rows[1 - way]
        wrong = {each.row: each.claim for each in simulated(theirs, self.find, {"B": 1.0}, seed=seed + 1000)}
        dice = np.random.default_rng([seed, way])
        chosen = dice.permutation([*wrong])[: ASKED // 2].tolist()
        planted = np.arange(len(chosen)) < PLANTED * len(chosen)
        right = [Claim(row["question"], row["answers"]["text"][0], row["context"]) for row in theirs]
        claims = [wrong[row] if bad else right[row] for row, bad in zip(chosen, planted, strict=True)]
        called = np.array([label == "attributable" for label in judged(judge, claims)])
        return {
            "asked": len(chosen),
            "right": round(float((~planted).mean()), 4),
            "right_of_attributable": round(float((~planted)[called].mean()), 4),
            "recall": round(float(called[~planted].mean()), 4),
        }


def begin(data: Path, halves: Halves, seed: int) -> list[dict[str, Any]]:
    """AUC on the test of Wizard of Wikipedia: of the share of a response's words that the knowledge has, and ours."""
    rows = [row for row in pq.read_table(data / "begin_attribution.parquet").to_pylist() if row["label"] != "Generic"]
    tests = [row for row in rows if row["split"] == "test"]
    tested = {row["knowledge"] for row in tests}
    dev = [row for row in rows if row["split"] == "dev" and row["knowledge"] not in tested]
    made = simulated([*halves.rows[0], *halves.rows[1]], halves.find, seed=seed)
    claims = [*(each.claim for each in made), *map(_claim, dev)]
    labels: list[Label] = [each.label for each in made]
    labels += ["attributable" if _full(row) else "extrapolatory" for row in dev]
    asked, full = [_claim(row) for row in tests], np.array([_full(row) for row in tests])
    idf = idf_of([claim.reference for claim in claims])
    judge = trained_judge(claims, labels, idf, JudgeConfig(encoder=None))
    alone = trained_judge(claims[len(made) :], labels[len(made) :], idf, JudgeConfig(encoder=None))
    precision = judge.figures(asked)[:, PRECISION]
    found = {
        "token precision": precision,
        "words": _supported(judge, asked),
        "words, BEGIN alone": _supported(alone, asked),
    }
    return [{"table": "begin", "seed": seed, "arm": arm, "auc": area(each, full)} for arm, each in found.items()]


def _supported(judge: Judge, claims: Sequence[Claim]) -> np.ndarray:
    return judge.probabilities(claims)[:, LABELS.index("attributable")]


def _claim(row: dict[str, Any]) -> Claim:
    return Claim(row["message"], row["response"], row["knowledge"])


def _full(row: dict[str, Any]) -> bool:
    return row["label"] == "Fully attributable"


def area(scores: np.ndarray, right: np.ndarray) -> float:
    """AUC: the chance that a right one has the higher score; equal ones count half."""
    ends = [np.searchsorted(np.sort(scores[~right]), scores[right], side) for side in ("left", "right")]
    return round(float(np.mean(ends) / (~right).sum()), 4)


def means(rows: Rows) -> dict[str, dict[str, float]]:
    """Each figure by its table and arm, over seeds and directions."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        for name, figure in row.items():
            if name not in ("table", "seed", "way", "arm"):
                found[f"{row['table']}: {row['arm']}"][name].append(figure)
    return {arm: {name: round(mean(each), 4) for name, each in own.items()} for arm, own in found.items()}


def claims_of(found: dict[str, dict[str, float]], rows: Rows) -> list[dict[str, Any]]:
    """What must hold, and what came out."""
    said: list[dict[str, Any]] = []

    def state(claim: str, figure: float, held: bool) -> None:
        said.append({"claim": claim, "must": True, "held": held, "figure": round(figure, 4)})

    for arm in ("words", "tuned"):
        if own := found.get(f"harder: {arm}"):
            lowest = min(EVERY, key=lambda variant: own[variant])
            state(f"harder, {arm}: B is the lowest variant (it is {lowest})", own["B"], lowest == "B")
            right, recall = own["right_of_attributable"], own["recall"]
            state(f"product, {arm}: right among attributable is at least .80", right, right >= 0.8)
            state(f"product, {arm}: recall is at least .6", recall, recall >= 0.6)
    auc = found["begin: words"]["auc"]
    state("BEGIN: AUC is at least .926", auc, auc >= 0.926)
    by_words = {(row["seed"], row["way"]): row for row in rows if (row["table"], row["arm"]) == ("harder", "words")}
    if tuned := [row for row in rows if row["arm"] == "tuned"]:
        gap = mean(row["micro_f1"] - by_words[row["seed"], row["way"]]["micro_f1"] for row in tuned)
        state("harder: micro-F1 of tuned is at most a point below that of words, same seed and way", gap, gap >= -0.01)
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--encoder", help="add the row `tuned`, of this base")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    parts = splits(arguments.data)
    halves = Halves((parts.annotations, parts.heldout), known_entities([*parts.annotations, *parts.heldout]))
    rows: list[dict[str, Any]] = []
    for seed in arguments.seeds:
        work = arguments.work / str(seed)
        work.mkdir(parents=True, exist_ok=True)
        for harder, way, arm in product((True, False), (0, 1), ARMS):
            name = f"{'harder' if harder else 'easy'} {way} {arm}"
            rows += kept(work / f"{name}.json", halves.trial, harder, seed, way, arm, None)
        rows += kept(work / "begin.json", begin, arguments.data, halves, seed)
    for way in (0, 1) if arguments.encoder else ():
        seed, path = arguments.seeds[0], arguments.work / f"tuned {way}.json"
        rows += kept(path, halves.trial, True, seed, way, "tuned", arguments.encoder)
    found = means(rows)
    result = {"system": "attribution", "means": found, "claims": claims_of(found, rows), "paper": PAPER, "rows": rows}
    print(json.dumps(result, indent=1, allow_nan=False) if arguments.json else "\n".join(shown(result)))


def kept(path: Path, table: Callable[..., list[dict[str, Any]]], *what: Any) -> list[dict[str, Any]]:
    """The rows of a trial, from its file if it was run before."""
    if not path.exists():
        path.write_text(json.dumps(table(*what), allow_nan=False))
    found: list[dict[str, Any]] = json.loads(path.read_text())
    return found


def shown(found: dict[str, Any]) -> list[str]:
    """The table in lines of text."""
    lines = [f"{arm:<24} {figures}" for arm, figures in found["means"].items()]
    return lines + [
        f"{'held' if claim['held'] else 'FAILED':<6} {claim['claim']}  {claim['figure']}" for claim in found["claims"]
    ]


if __name__ == "__main__":
    main()
