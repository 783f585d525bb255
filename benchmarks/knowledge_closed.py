"""Closed book: what a language model answers about invented creatures that learnt released facts, posts, or neither.

    OMP_NUM_THREADS=1 python benchmarks/knowledge_closed.py --work DIR --rows base facts corpus --minutes 60 --json
    python benchmarks/knowledge_closed.py --work DIR --rows generator seqpate --json

The corpus is that of benchmarks/creatures.py (2,000 users, 40 names of 8 attributes). The rows:

- `base`: SmolLM2-135M as it is;
- `corpus`: it read the posts themselves, without privacy: the most to hope for;
- `facts`: it learnt what `method: knowledge` makes of the facts that are released at `--epsilon`: passages, questions
  and answers, in the words of the public schema;
- `generator`, `seqpate`: the released model of a run at `--epsilon` on the posts (knowledge_runs.py);
- `generator-texts`, `seqpate-texts`: SmolLM2-135M, which read the synthetic texts of that run.

What is learnt is learnt by all weights, in `--steps` of 1,024 tokens (knowledge_learning.py). All are asked in other
words than schema and posts, behind three public examples, and the first line of the greedy answer is compared: exact
match, each of a fact's `--phrases` questions once. The interval is of 95%, over facts (bootstrap).

Each row is kept in the folder `--work`, with the state of whatever was stopped: a row that is there is not made again,
one that runs out of `--minutes` goes on the next time, and all that are there are printed.
"""

import argparse
import json
from collections import defaultdict
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from creatures import Options
from knowledge import Bench
from knowledge import _key as key_of
from knowledge_learning import Learning, learnt
from knowledge_runs import finished

from rayprivacy.generation import decode
from rayprivacy.knowledge import facts
from rayprivacy.knowledge.kinds import shown
from rayprivacy.models.backbone import Backbone, load_backbone
from rayprivacy.models.settings import ModelConfig
from rayprivacy.questions.answers import exact_match

USERS, NAMES, MOST, ANSWER_TOKENS, RESAMPLED = 2000, 40, 40, 12, 2000
EXAMPLES = (  # of a creature that is in no corpus
    ("Which type does Abrakul belong to?", "water"),
    ("What do Abrakuls eat?", "berries"),
    ("Where does Abrakul live?", "Hollow Valley"),
)
RUNS = ("generator", "seqpate")
TEXTS = {f"{method}-texts": method for method in RUNS}
ROWS = ("base", "corpus", "facts", *RUNS, *TEXTS)
NOT_LEARNT, NOT_PRIVATE = ("base", *RUNS), ("base", "corpus")
Model = tuple[Backbone, Any, dict[str, Any]]  # a tokenizer's, what is asked, and figures of how it came to be


class Rows:
    """The rows of a seed, and what they share, which is made when it is asked for."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._given, self._work = arguments, arguments.work
        self._options = Options(USERS, NAMES, arguments.seed, Options.skew, "all")

    @cached_property
    def bench(self) -> Bench:
        """The corpus, its truth and the questions."""
        return Bench(self._options)

    def made(self, row: str) -> dict[str, Any] | None:
        """A row; None where there was too little time for it."""
        given = self._given
        steps = [] if row in NOT_LEARNT else [f"{given.steps} steps"]
        path = self._work / f"{' '.join([self._state(row), *steps, f'{given.phrases} phrases'])}.json"
        if not path.exists():
            found = self._ran(row) if row in RUNS else self._learnt(row)
            if found is None:
                return None
            backbone, model, figures = found
            epsilon = None if row in NOT_PRIVATE else given.epsilon
            asked = {"row": row, "seed": given.seed, "epsilon": epsilon, **figures, **self.asked(backbone, model)}
            path.write_text(json.dumps(asked, indent=1))
        return json.loads(path.read_text())

    def _state(self, row: str) -> str:
        """A row as its state is called: by all but how many steps there are to be."""
        given = self._given
        epsilon = [] if row in NOT_PRIVATE else [f"epsilon {given.epsilon:g}"]
        rate = [] if row in NOT_LEARNT else [f"rate {given.learning_rate:g}"]
        return " ".join([row, f"seed {given.seed}", *epsilon, *rate])

    def _ran(self, row: str) -> Model:
        run = finished(row, self._options, self._given.epsilon, self._work)
        backbone = load_backbone(ModelConfig(base=str(run.path / "model")))
        return backbone, backbone.model, {}

    def _learnt(self, row: str) -> Model | None:
        given = self._given
        backbone = load_backbone(ModelConfig(base=given.base))
        if row == "base":
            return backbone, backbone.model, {}
        kept = (
            self._work / f"{self._state(row)}.texts"
        )  # noise on facts is fresh each time: what goes on reads the same
        if not kept.exists():
            kept.write_text(json.dumps(self.texts(row)))
        texts, how = json.loads(kept.read_text()), Learning(given.steps, given.learning_rate)
        found = learnt(backbone, texts, how, kept.with_suffix(".pt"), given.minutes)
        if found is None:
            return None
        return backbone, found[0], {"texts": len(texts), "steps": how.steps, "rate": how.learning_rate, **found[1]}

    def texts(self, row: str) -> list[str]:
        """What a row's model reads."""
        if row == "corpus":
            return [text for own in self.bench.texts.values() for text in own]
        if row in TEXTS:
            run = finished(TEXTS[row], self._options, self._given.epsilon, self._work)
            return pq.read_table(run.path / "synthetic.parquet")["text"].to_pylist()
        found, _ = self.bench.released(USERS, self._given.epsilon, MOST, known=False)
        rows = facts.asked(found, self.bench.config).to_pylist()
        answered = [prompt_of(row["question"]) + f" {row['answers']['text'][0]}" for row in rows]
        return [*(each.text for each in facts.passages(found, self.bench.config)), *answered]

    def asked(self, backbone: Backbone, model: Any) -> dict[str, Any]:
        """Exact match on the questions, and by attribute."""
        attributes = {each.name: each for each in self.bench.config.attributes}
        rows = [row for place, (row, _) in enumerate(self.bench._asked) if place % 3 < self._given.phrases]
        examples = "\n\n".join(f"{prompt_of(question)} {answer}" for question, answer in EXAMPLES)
        prompts = [f"{examples}\n\n{prompt_of(row['question'])}" for row in rows]
        written = decode.greedy(model, backbone, prompts, ANSWER_TOKENS)
        by_fact = defaultdict[tuple[str, str], list[float]](list)
        for row, prompt, document in zip(rows, prompts, written, strict=True):
            right = shown(self.bench.truth[key_of(row)], attributes[row["attribute"]])
            by_fact[key_of(row)].append(exact_match(answer_in(backbone.text_after(prompt, document)), right))
        return scores(by_fact)


def answer_in(written: str) -> str:
    """The first line of what a model wrote."""
    return written.strip().split("\n")[0]


def scores(by_fact: dict[tuple[str, str], list[float]]) -> dict[str, Any]:
    """The mean over all questions with its interval over facts, and the means by attribute."""
    facts_of = defaultdict[str, list[float]](list)
    for (_, attribute), own in by_fact.items():
        facts_of[attribute].append(float(np.mean(own)))
    every = np.array([each for own in facts_of.values() for each in own])
    drawn = np.random.default_rng(0).integers(len(every), size=(RESAMPLED, len(every)))
    low, high = np.quantile(every[drawn].mean(1), [0.025, 0.975])
    return {
        "questions": sum(map(len, by_fact.values())),
        "exact_match": round(float(every.mean()), 4),
        "interval": [round(float(low), 4), round(float(high), 4)],
        "by_attribute": {name: round(float(np.mean(own)), 3) for name, own in facts_of.items()},
    }


def prompt_of(question: str) -> str:
    """A question as a model is asked it."""
    return f"Question: {question}\nAnswer:"


def main() -> None:
    arguments = _arguments()
    arguments.work.mkdir(parents=True, exist_ok=True)
    rows = Rows(arguments)
    unfinished = [row for row in arguments.rows if rows.made(row) is None]
    for row in unfinished:
        print(f"{row} is not finished: start this again to go on")
    found = [json.loads(path.read_text()) for path in sorted(arguments.work.glob("*.json"))]
    print(json.dumps({"rows": found}, indent=1) if arguments.json else "\n".join(map(str, found)))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder of rows, states and runs")
    parser.add_argument("--rows", choices=ROWS, nargs="*", default=[])
    parser.add_argument(
        "--base",
        default=ModelConfig().base,
        help="of the rows that are learnt here; for another one take another folder",
    )
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--phrases", type=int, choices=(1, 2, 3), default=3, help="questions of a fact")
    parser.add_argument("--minutes", type=float, default=60.0, help="for the steps of a row")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
