"""Asking with and without predicted phrases (QPP; Yue et al., BIBM 2021), on the packaged base and SQuAD's sentences.

    python benchmarks/questions_asking.py --data DIR [--work WORK] [--evidences 64] [--steps 84] --json

`DIR` is that of benchmarks/squad.py. Two askers learn from public pairs: one that begins its questions itself (greedy,
nucleus), and one that predicts phrases and is told one (qpp drawn, qpp greedy). The first takes as many steps as make
it read as many questions. Both are asked about sentences of other articles, of which people's questions are known.
Where tokens are drawn there are three questions of an evidence, as there are behind drawn phrases.

- `kl`: of types of questions, from those of the public pairs, in nats x 100; `kl_of_public`: of as many public
  questions, which is not 0 because they are few;
- `first_words`: distinct first words of the questions about an evidence;
- `recall`: the share of an evidence's real phrases that were predicted; beside it, of as many of the most frequent
  phrases, which are the same for every evidence.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import ge, gt, le, lt
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import pyarrow as pa
from squad import source_and_target

from rayprivacy.core.console import nobody
from rayprivacy.generation.settings import SamplingConfig, best_engine
from rayprivacy.models.asked import Pair
from rayprivacy.models.backbone import Backbone, load_backbone
from rayprivacy.models.settings import ModelConfig
from rayprivacy.questions.asker import Writer, ask, kept_asker, known_phrases, predicted
from rayprivacy.questions.evidence import EVIDENCE
from rayprivacy.questions.phrases import Phrases, divergence, question_type, recall
from rayprivacy.questions.settings import AskerConfig, PhrasesConfig
from rayprivacy.runs.recipe import LOCAL
from rayprivacy.runs.session import ray_session

MOST, SHOWN = 3, 12
FREQUENT = "of_the_most_frequent"
NUCLEUS = SamplingConfig(max_tokens=32, top_k=2000, top_p=0.95)
ARMS: Mapping[str, tuple[str, SamplingConfig | None]] = {
    "greedy": ("none", None),
    "nucleus .95": ("none", NUCLEUS),
    "qpp drawn": ("predicted", None),
    "qpp greedy": ("greedy", None),
}
# Table E.5 of the thesis, emrQA: KL of greedy asking, of beams, and with QPP, by question generator.
PAPER_KL = {"NQG": (84.2, 45.2, 11.0), "NQG++": (84.3, 66.4, 11.2), "BERT-SQG": (74.5, 47.4, 11.2)}


@dataclass(frozen=True)
class Sets:
    """Public pairs, and the sentences that are asked about with people's questions about each."""

    pairs: list[Pair]
    evidence: list[str]
    people: list[list[str]]


def sets(data: Path, evidences: int, seed: int) -> Sets:
    source, target = ([(row["sentence"], row["question"]) for row in rows] for rows in source_and_target(data))
    asked: dict[str, list[str]] = {}
    for sentence, question in target:
        asked.setdefault(sentence, []).append(question)
    fit = [sentence for sentence in asked if 5 <= len(sentence.split()) <= 60]
    dice = np.random.default_rng(seed)
    drawn = dice.choice(len(fit), min(evidences, len(fit)), replace=False)
    evidence = [fit[place] for place in sorted(drawn.tolist())]
    learnt = [source[place] for place in dice.permutation(len(source))]  # another seed is another asker
    return Sets(learnt, evidence, [asked[sentence] for sentence in evidence])


def table_of(texts: Sequence[str]) -> pa.Table:
    columns = {
        "document": range(len(texts)),
        "passage": [f"p{number}" for number in range(len(texts))],
        "title": [""] * len(texts),
        "context": texts,
        "evidence": texts,
        "evidence_start": [0] * len(texts),
    }
    return pa.table({name: pa.array(values, EVIDENCE.field(name).type) for name, values in columns.items()})


@dataclass(frozen=True)
class Bench:
    """All arms on one draw of evidence."""

    found: Sets
    backbone: Backbone
    work: Path
    steps: int
    seed: int

    def asker(self, how: str) -> tuple[AskerConfig, PhrasesConfig, Phrases | None]:
        settings = PhrasesConfig.parse({"how": how, "most": MOST})
        known = known_phrases(self.found.pairs, settings)
        questions = len(self.found.pairs)
        share = 1.0 if known else questions / (questions + len({evidence for evidence, _ in self.found.pairs}))
        return AskerConfig(steps=round(share * self.steps)), settings, known

    def arm(self, name: str) -> tuple[dict[str, Any], list[list[str]], list[dict[str, str]]]:
        """A row, the sets of phrases, and the questions."""
        how, sampling = ARMS[name]
        asker, settings, known = self.asker(how)
        model = kept_asker(self.backbone, self.found.pairs, asker, settings, nobody, self.work, "benchmark")
        work = self.work / f"{name} {self.seed}"
        work.mkdir(exist_ok=True)
        writer = Writer(model, work, 1, best_engine(self.backbone.model.config), self.seed)
        evidence = table_of(self.found.evidence)
        asked = ask(writer, evidence, asker, settings, known, sampling).to_pylist()
        phrases = predicted(writer, self.found.evidence, asker, settings, known) if known else []
        row = {"arm": name, **figures([(each["document"], each["question"]) for each in asked], self.found)}
        losses = json.loads(model.with_suffix(".json").read_text())
        return row | losses | {"steps": asker.steps}, phrases, asked


def figures(asked: Sequence[tuple[int, str]], found: Sets) -> dict[str, Any]:
    """What is said of questions, each given with the number of its evidence."""
    first: dict[int, set[str]] = {}
    for number, question in asked:
        first.setdefault(number, set()).add(question.split()[0])
    types = [question_type(question) for _, question in asked]
    public, dice = [question for _, question in found.pairs], np.random.default_rng(0)
    by_chance = (divergence([public[n] for n in dice.integers(len(public), size=len(asked))], public) for _ in range(9))
    return {
        "questions": len(asked),
        "kl": round(divergence((question for _, question in asked), public), 1),
        "kl_of_public": round(mean(by_chance), 1),
        "first_words": round(mean(map(len, first.values())), 3),
        "share_what": round(types.count("what") / len(types), 3),
    }


def recalls(predicted_sets: list[list[str]], found: Sets, known: Phrases) -> dict[str, Any]:
    """Recall of predicted sets, and of as many of the most frequent phrases; errors are over evidence."""
    real = [[phrase for each in own if (phrase := known(each))] for own in found.people]
    frequent = [known.frequent(len(own)) for own in predicted_sets]
    rows = [row for row in zip(predicted_sets, frequent, real, strict=True) if row[2]]
    ours, common, theirs = zip(*rows, strict=True)
    apart = [recall([a], [c]) - recall([b], [c]) for a, b, c in rows]
    return {
        "phrases": round(mean(map(len, ours)), 2),
        "recall": round(recall(ours, theirs), 4),
        FREQUENT: round(recall(common, theirs), 4),
        "difference_by_evidence": round(mean(apart), 4),
        "se": round(stdev(apart) / len(apart) ** 0.5, 4),
    }


def claims(rows: Mapping[str, Mapping[str, Any]], recalled: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What the arms must show, and what is said in passing."""
    drawn, greedy, nucleus, likeliest = (rows[arm] for arm in ("qpp drawn", "greedy", "nucleus .95", "qpp greedy"))
    words = "first words of an evidence: drawn phrases >"
    told: list[tuple[str, bool, Callable[[float, float], bool], float, float]] = [
        ("KL: drawn phrases <= a third of greedy asking", True, le, drawn["kl"], greedy["kl"] / 3),
        (f"{words} greedy", True, gt, drawn["first_words"], greedy["first_words"]),
        *(
            (f"recall: {arm} >= the most frequent phrases", arm == "qpp drawn", ge, own["recall"], own[FREQUENT])
            for arm, own in recalled.items()
        ),
        ("KL: drawn phrases < nucleus", False, lt, drawn["kl"], nucleus["kl"]),
        (f"{words} nucleus", False, gt, drawn["first_words"], nucleus["first_words"]),
        ("KL: the likeliest set of phrases > twice drawn ones", False, gt, likeliest["kl"], 2 * drawn["kl"]),
    ]
    return [
        {"claim": claim, "must": must, "held": holds(ours, other), "ours": ours, "other": round(other, 4)}
        for claim, must, holds, ours, other in told
    ]


def measured(data: Path, work: Path, evidences: int, steps: int, seed: int) -> dict[str, Any]:
    """All arms and what they show."""
    work.mkdir(parents=True, exist_ok=True)
    found = sets(data, evidences, seed)
    bench = Bench(found, load_backbone(ModelConfig()), work.absolute(), steps, seed)
    rows, recalled, asked = {}, {}, []
    known = bench.asker("predicted")[2]
    assert known is not None
    with ray_session(LOCAL):
        for name in ARMS:
            rows[name], phrases, questions = bench.arm(name)
            if phrases:
                recalled[name] = recalls(phrases, found, known)
            asked += [{"arm": name, **_shown(each)} for each in questions[:SHOWN]]
    people = [(number, question) for number, own in enumerate(found.people) for question in own]
    return {
        "settings": {"evidences": len(found.evidence), "pairs": len(found.pairs), "steps": steps, "seed": seed},
        "rows": [*rows.values(), {"arm": "people", **figures(people, found)}],
        "recall": recalled,
        "claims": claims(rows, recalled),
        "paper_kl_greedy_beam_qpp": PAPER_KL,
        "questions": asked,
    }


def _shown(asked: Mapping[str, Any]) -> dict[str, str]:
    return {name: asked[name] for name in ("evidence", "phrase", "question")}


def shown(found: Mapping[str, Any]) -> list[str]:
    lines = [str(row) for row in (*found["rows"], *found["recall"].items())]
    for claim in found["claims"]:
        state = ("held" if claim["held"] else "FAILED") if claim["must"] else ("so" if claim["held"] else "not so")
        lines.append(f"{state:<6}  {claim['claim']}  {claim['ours']} {claim['other']}")
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, help="what is there already is not made again")
    parser.add_argument("--evidences", type=int, default=64)
    parser.add_argument("--steps", type=int, default=84)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        work = arguments.work or Path(scratch)
        result = measured(arguments.data, work, arguments.evidences, arguments.steps, arguments.seed)
    print(json.dumps(result, indent=1, allow_nan=False) if arguments.json else "\n".join(shown(result)))
