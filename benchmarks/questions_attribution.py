"""The judge of answers (AttributionLens; Yue et al., EMNLP Findings 2023, chapter 5 of the thesis) on XQuAD and BEGIN.

    python benchmarks/questions_table.py --system attribution --data DIR --work WORK --seeds 0 1 2 [--encoder minilm-l6]
        [--prompts zero-shot few-shot] --json

`DIR` is that of benchmarks/squad.py, with `begin_attribution.parquet`. A judge learns from claims simulated from one
half of XQuAD's titles, and is tested on those of the other half, in both directions, easy and harder; `words` reads
words alone, and `tuned` an encoder too. `without B` is `words` without that variant in training. Rows of `tuned` take
the first seed alone. `--prompts` asks the small base itself (questions_prompts.py) about 38 of the harder claims of
each seed and direction; `words, few` are the judge's figures on the same claims. BEGIN: a dialogue's response as the
answer; AUC of P(attributable) on its Wizard-of-Wikipedia test, without generic responses, learnt from simulated claims
and its dev part; what words tell of such answers was chosen on the dev part. The product: of 1,000 questions 30% have
another answer of their passage; how many of those called attributable are right, and how many of the right ones are
called so. Trials that are in WORK already are not run again.
"""

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from time import process_time
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from questions_claims import difference, said
from questions_prompts import PROMPTS, SHOTS, labels
from squad import splits

from rayprivacy.models.backbone import load_backbone
from rayprivacy.models.settings import ModelConfig
from rayprivacy.questions.answers import holds
from rayprivacy.questions.attribution import EVERY, LABELS, Claim, Label, Simulated, Variant, simulated
from rayprivacy.questions.entities import Finder, finder
from rayprivacy.questions.judge import Judge, trained_judge
from rayprivacy.questions.overlap import Idf, words
from rayprivacy.questions.settings import JudgeConfig

ASKED, PLANTED, FEW = 1000, 0.3, 38
PRECISION = 1  # of what words tell: the share of an answer's words that the reference has
ARMS = ("majority", "words", "without B", "without C", "without D")
PAPER = {  # table 5.2, on AttrEval-Simulation: F1 attributable, contradictory, extrapolatory, overall
    "zero-shot Vicuna-13B": (46.3, 8.3, 21.6, 34.6),
    "zero-shot GPT-4": (58.7, 23.2, 61.5, 55.6),
    "tuned RoBERTa-330M": (62.5, 54.6, 74.7, 65.0),
    "tuned Vicuna-13B": (66.2, 49.1, 78.6, 66.0),
}
WHY_D = (
    "D is the lowest: without its answer in the passage it looks like C, which lacks it too, and with another answer"
    " there like A and B. How near the question's words are to the answer finds most of B: four figures"
    " without it had .53."
)
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
    """F1 of each label, micro-F1, and the share of each variant that is judged rightly, D's by where its answer is."""
    true = [each.label for each in made]
    found = {}
    for label in LABELS:
        both = sum(one == other == label for one, other in zip(said, true, strict=True))
        found[f"f1_{label}"] = 2 * both / max(1, said.count(label) + true.count(label))
    right = [one == other for one, other in zip(said, true, strict=True)]
    found["micro_f1"] = mean(right)
    stands = [holds(one.claim.reference, one.claim.answer) for one in made]
    parts = {variant: [one.variant == variant for one in made] for variant in EVERY}
    for name, there in (("D, answer there", True), ("D, answer not there", False)):
        parts[name] = [of_d and stood == there for of_d, stood in zip(parts["D"], stands, strict=True)]
    for name, own in parts.items():
        if any(own):
            found[name] = mean(each for each, one in zip(right, own, strict=True) if one)
    return {name: round(each, 4) for name, each in found.items()}


def by_article(said: Sequence[Label], made: Sequence[Simulated], rows: Rows) -> dict[str, Any]:
    """How many claims there are of each article, and how many are judged rightly."""
    count, right = Counter[str](), Counter[str]()
    for label, one in zip(said, made, strict=True):
        count[rows[one.row]["title"]] += 1
        right[rows[one.row]["title"]] += label == one.label
    names = sorted(count)
    asked, found = [count[name] for name in names], [right[name] for name in names]
    return {"articles": names, "asked_by_article": asked, "right_by_article": found}


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
            return [row | self.told(["contradictory"] * len(tests), tests, theirs)]
        shares: dict[Variant, float] = {
            variant: share for variant, share in EVERY.items() if arm != f"without {variant}"
        }
        start = process_time()
        judge = learnt(simulated(ours, self.find, shares, harder=harder, seed=seed), JudgeConfig(encoder=encoder))
        row["training_cpu_s"] = round(process_time() - start, 1)
        said = judged(judge, [each.claim for each in tests])
        found = [row | self.told(said, tests, theirs)]
        if harder and "without" not in arm:
            found[0] |= self.product(judge, way, seed)
            few = [tests[place] for place in self.few(tests, seed, way)]
            told = self.told([said[place] for place in self.few(tests, seed, way)], few, theirs)
            found.append(row | {"arm": f"{arm}, few"} | told)
        return found

    def told(self, said: Sequence[Label], tests: Sequence[Simulated], rows: Rows) -> dict[str, Any]:
        found = figures(said, tests)
        return found | {"accuracy": found["micro_f1"]} | by_article(said, tests, rows)

    def few(self, tests: Sequence[Simulated], seed: int, way: int) -> list[int]:
        """The claims that prompts are tried on, by their places."""
        dice = np.random.default_rng([seed, way, 1])
        return [int(place) for place in dice.permutation(len(tests))[:FEW]]

    def prompted(self, how: str, seed: int, way: int) -> list[dict[str, Any]]:
        """The small base itself, by four prompts, without examples or with three."""
        tests, backbone = simulated(self.rows[1 - way], self.find, seed=seed), load_backbone(ModelConfig())
        few, found = [tests[place] for place in self.few(tests, seed, way)], []
        for name, prompt in PROMPTS.items():
            said = labels(backbone, prompt, [each.claim for each in few], SHOTS[how])
            row = {"table": "harder", "seed": seed, "way": way, "arm": f"{how} {name}"}
            found.append(row | self.told(said, few, self.rows[1 - way]))
        return found

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
            if name not in ("table", "seed", "way", "arm", "accuracy") and "article" not in name:
                found[f"{row['table']}: {row['arm']}"][name].append(figure)
    return {arm: {name: round(mean(each), 4) for name, each in own.items()} for arm, own in found.items()}


def claims_of(found: dict[str, dict[str, float]], rows: Rows) -> list[dict[str, Any]]:
    """What must hold, and what came out; a trial is a seed and a direction."""
    claims: list[dict[str, Any]] = []
    harder = [row | {"seed": f"{row['seed']} {row['way']}"} for row in rows if row["table"] == "harder"]

    def state(claim: str, held: bool, why: str = "", **figures: Any) -> None:
        claims.append({"claim": claim, "must": True, "held": held} | figures | ({} if held else {"why": why}))

    def over_trials(arm: str, name: str) -> dict[str, float | None]:
        every = [row[name] for row in harder if row["arm"] == arm]
        return {"figure": round(mean(every), 4), "se": round(stdev(every) / len(every) ** 0.5, 4)}

    for arm in ("words", "tuned"):
        if own := found.get(f"harder: {arm}"):
            lowest = min(EVERY, key=lambda variant: own[variant])
            shares = {variant: own[variant] for variant in (*EVERY, "D, answer there", "D, answer not there")}
            state(f"harder, {arm}: B is the lowest variant", lowest == "B", WHY_D, **shares)
            right = over_trials(arm, "right_of_attributable")
            state(f"product, {arm}: right among attributable is at least .80", right["figure"] >= 0.8, **right)
            recall = over_trials(arm, "recall")
            state(f"product, {arm}: recall is at least .6", recall["figure"] >= 0.6, **recall)
    aucs = [row["auc"] for row in rows if (row["table"], row["arm"]) == ("begin", "words")]
    state("BEGIN: AUC of simulated claims and BEGIN's dev part is at least .926", mean(aucs) >= 0.926, aucs=aucs)
    if gap := difference(harder, "tuned", "words"):
        state("harder: micro-F1 of tuned >= that of words - a point", gap["difference"] >= -0.01, **gap)
    prompts = [arm.removeprefix("harder: ") for arm in found if "-shot" in arm]
    if prompts:
        best = max(prompts, key=lambda arm: found[f"harder: {arm}"]["micro_f1"])
        for arm in ("words", "tuned"):
            if gap := difference(harder, f"{arm}, few", best):
                said_of = f"harder, same claims: micro-F1 of {arm} >= the best prompt's ({best}) + 15 points"
                state(said_of, gap["difference"] >= 0.15, **gap)
    return claims


def table(data: Path, seeds: Sequence[int], words: Sequence[str]) -> dict[str, Any]:
    """All rows, and what they show."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--encoder", help="add the row `tuned`, of this base")
    parser.add_argument("--prompts", nargs="*", choices=SHOTS, default=[], help="add rows of the base model itself")
    given = parser.parse_args(words)
    given.work.mkdir(parents=True, exist_ok=True)
    parts = splits(data)
    halves = Halves((parts.annotations, parts.heldout), known_entities([*parts.annotations, *parts.heldout]))
    rows: list[dict[str, Any]] = []
    for seed in seeds:
        for harder, way, arm in product((True, False), (0, 1), ARMS):
            path = given.work / f"{seed} {'harder' if harder else 'easy'} {way} {arm}.json"
            rows += kept(path, halves.trial, harder, seed, way, arm, None)
        rows += kept(given.work / f"{seed} begin.json", begin, data, halves, seed)
    for how, seed, way in product(given.prompts, seeds, (0, 1)):
        rows += kept(given.work / f"{seed} {how} {way}.json", halves.prompted, how, seed, way)
    for way in (0, 1) if given.encoder else ():
        path = given.work / f"{seeds[0]} tuned {way}.json"
        rows += kept(path, halves.trial, True, seeds[0], way, "tuned", given.encoder)
    found = means(rows)
    bare = [{name: each for name, each in row.items() if "article" not in name} for row in rows]
    return {"system": "attribution", "means": found, "claims": claims_of(found, rows), "paper": PAPER, "rows": bare}


def kept(path: Path, trial: Callable[..., list[dict[str, Any]]], *what: Any) -> list[dict[str, Any]]:
    """The rows of a trial, from its file if it was run before."""
    if not path.exists():
        path.write_text(json.dumps(trial(*what), allow_nan=False))
    found: list[dict[str, Any]] = json.loads(path.read_text())
    return found


def shown(found: dict[str, Any]) -> list[str]:
    """The table in lines of text."""
    return [*(f"{arm:<32} {own}" for arm, own in found["means"].items()), *map(said, found["claims"])]
