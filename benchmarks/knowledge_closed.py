"""Closed book: what a language model answers about invented creatures that learnt the released facts, or the posts.

    python benchmarks/knowledge_closed.py --row facts --json        # and --row base
    OMP_NUM_THREADS=1 python benchmarks/knowledge_closed.py --row corpus --steps 580 --json

The corpus is that of benchmarks/creatures.py (2,000 users, 40 names of 8 attributes). `corpus` is the model that read
the posts themselves, without privacy: the most to hope for. `facts` learnt what `method: knowledge` makes of the facts
that are released at `--epsilon`: passages, questions and answers, in the words of the public schema. Both train all
weights of SmolLM2-135M on rows of 128 tokens. They are asked in other words than schema and posts, behind three public
examples, and the first line of the greedy answer is compared: exact match, each question once.
"""

import argparse
import json
import time
from collections.abc import Sequence
from typing import Any

from creatures import Options
from knowledge import Bench
from knowledge import _key as key_of

from rayprivacy.generation import decode
from rayprivacy.knowledge import facts
from rayprivacy.knowledge.kinds import shown
from rayprivacy.models.backbone import Backbone, load_backbone
from rayprivacy.models.pretraining import pretrained
from rayprivacy.models.settings import ModelConfig, PretrainConfig
from rayprivacy.questions.answers import exact_match

USERS, NAMES, MOST, ANSWER_TOKENS, HELD_ROWS = 2000, 40, 40, 12, 16
EXAMPLES = (  # of a creature that is in no corpus
    ("Which type does Abrakul belong to?", "water"),
    ("What do Abrakuls eat?", "berries"),
    ("Where does Abrakul live?", "Hollow Valley"),
)


def main() -> None:
    arguments = _arguments()
    bench = Bench(Options(USERS, NAMES, arguments.seed, Options.skew, "all"))
    backbone = load_backbone(ModelConfig())
    texts, begun = texts_of(bench, arguments), time.process_time()
    model, losses = backbone.model, {}
    if texts:
        how = PretrainConfig(
            source="public", steps=arguments.steps, batch=8, max_tokens=128, learning_rate=arguments.learning_rate
        )
        model, losses = pretrained(backbone, texts, how, HELD_ROWS, lambda _: None)
    trained = time.process_time() - begun
    row = {
        "row": arguments.row,
        "texts": len(texts),
        **losses,
        "cpu_s": round(trained),
        **asked(bench, backbone, model),
    }
    print(json.dumps(vars(arguments) | row, indent=1) if arguments.json else row)


def texts_of(bench: Bench, arguments: argparse.Namespace) -> Sequence[str]:
    """What a row's model reads; nothing for the base."""
    if arguments.row == "base":
        return []
    if arguments.row == "corpus":
        return [text for own in bench.texts.values() for text in own]
    found, _ = bench.released(USERS, arguments.epsilon, MOST, known=False)
    rows = facts.asked(found, bench.config).to_pylist()
    answered = [_prompt(row["question"]) + f" {row['answers']['text'][0]}" for row in rows]
    return [*(each.text for each in facts.passages(found, bench.config)), *answered]


def asked(bench: Bench, backbone: Backbone, model: Any) -> dict[str, Any]:
    """Exact match on all questions, and by attribute."""
    attributes, by = {each.name: each for each in bench.config.attributes}, dict[str, list[float]]()
    rows = [row for row, _ in bench._asked]
    examples = "\n\n".join(f"{_prompt(question)} {answer}" for question, answer in EXAMPLES)
    prompts = [f"{examples}\n\n{_prompt(row['question'])}" for row in rows]
    written = decode.greedy(model, backbone, prompts, ANSWER_TOKENS)
    for row, prompt, document in zip(rows, prompts, written, strict=True):
        answer = backbone.text_after(prompt, document).strip().split("\n")[0]
        right = shown(bench.truth[key_of(row)], attributes[row["attribute"]])
        by.setdefault(row["attribute"], []).append(exact_match(answer, right))
    every = [each for own in by.values() for each in own]
    shares = {name: round(sum(own) / len(own), 3) for name, own in by.items()}
    return {"questions": len(every), "exact_match": round(sum(every) / len(every), 4), **shares}


def _prompt(question: str) -> str:
    return f"Question: {question}\nAnswer:"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--row", choices=("base", "corpus", "facts"), required=True)
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
