"""How long an evaluation takes: 5,000 synthetic against 5,000 real texts, with both default embeddings.

    python benchmarks/evaluation.py --json
    python benchmarks/evaluation.py --json --real speeches.parquet --text text --user speaker

What is timed is `evaluate` with the base model read from disk, not the reading of the corpus. Texts of half of the
users play the synthetic ones: the time does not depend on who wrote them, and the figures must come out near the
reference. The corpus is the public chat data of the quickstart (pip install chitchat-dataset), or a file.
"""

import argparse
import json
import multiprocessing
import os
import platform
import time
from typing import Any

import numpy as np
import torch

from rayprivacy.evaluation.evaluate import evaluate
from rayprivacy.evaluation.settings import EvaluationConfig
from rayprivacy.evaluation.texts import Texts, halves, plain, read_texts, sample

SHOWN = ("precision", "recall", "density", "coverage", "frechet", "mauve", "perplexity")


def main() -> None:
    arguments = _arguments()
    config = EvaluationConfig(text=arguments.text, user=arguments.user, max_texts=arguments.texts)
    enough = config.model_copy(update={"max_texts": 4 * config.max_texts})  # for two halves
    corpus = read_texts(arguments.real, "--real", enough) if arguments.real else _chat()
    figures = measure(corpus, config) | _machine()
    print(json.dumps(figures) if arguments.json else "\n".join(f"{name:<24}{each}" for name, each in figures.items()))


def measure(corpus: Texts, config: EvaluationConfig) -> dict[str, Any]:
    """Seconds of each stage and in all, and a few figures beside their references."""
    parts = halves(corpus.users, 0)
    assert parts is not None, "the corpus has too few users"
    real, synthetic = (corpus.take(rows[sample(len(rows), config.max_texts, 0)]) for rows in parts)
    stamps, names = [_clocks()], ["base model"]

    def say(stage: str) -> None:
        stamps.append(_clocks())
        names.append(stage)

    found = evaluate(real, plain(synthetic.texts), None, config, say)
    stamps.append(_clocks())
    wall, processor = np.diff(stamps, axis=0).T.round(1).tolist()
    rows = {row["name"]: [row["synthetic"], row["reference"]] for row in found["rows"]}
    return {
        "real_texts": len(real),
        "synthetic_texts": len(synthetic),
        "words_per_text": round(float(np.mean([len(text.split()) for text in real.texts])), 1),
        "seconds": round(sum(wall), 1),
        "processor_seconds": round(sum(processor), 1),
        "stages_s": dict(zip(names, wall, strict=True)),
        "stages_processor_s": dict(zip(names, processor, strict=True)),
        "figures": {name: [round(value, 4) for value in rows[name]] for name in SHOWN},
    }


def _clocks() -> tuple[float, float]:
    """Wall clock, and the processor's time of all threads, which other work on the machine hardly changes."""
    return time.perf_counter(), time.process_time()


def _chat() -> Texts:
    from chitchat_dataset import Dataset  # not needed with --real

    messages = [
        (message["text"].strip(), message["sender"])
        for conversation in Dataset().values()
        for turn in conversation["messages"]
        for message in turn
    ]
    texts, users = zip(*[each for each in messages if each[0]], strict=True)
    return plain(list(texts), list(users))


def _machine() -> dict[str, Any]:
    return {
        "cores": multiprocessing.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_before": round(os.getloadavg()[2], 1),
        "python": platform.python_version(),
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--real", help="a corpus with users, in place of the chat")
    parser.add_argument("--text", default="text")
    parser.add_argument("--user")
    parser.add_argument("--texts", type=int, default=5000)
    return parser.parse_args()


if __name__ == "__main__":
    main()
