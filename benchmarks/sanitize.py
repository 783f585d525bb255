"""SanText at speed: ours, from texts to texts, against the loop of published code, in one run on one core.

    python benchmarks/sanitize.py --data intents.parquet --text text --tokens 384000 --json

Ours is everything that a task does with its texts: typed values, cutting into words, the rows of the table, keyed
draws, and texts again. The reference draws with `numpy.random.choice` for one token after the other, as published code
does; its tokens are cut beforehand and its rows made beforehand, so that only drawing is timed, on a sample of the same
tokens. Both are CPU seconds of one process, in turns.
"""

# ruff: noqa: E402 - numpy reads its number of threads when it is imported

import argparse
import json
import os
import resource
import time
from itertools import cycle, islice
from pathlib import Path
from statistics import median

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np
import pyarrow.parquet as pq

from rayprivacy.core.keys import Key
from rayprivacy.sanitize.documents import Sanitizer, Words, tidy
from rayprivacy.sanitize.entities import PatternDetector, Surrogates
from rayprivacy.sanitize.mechanism import Coins, SanText
from rayprivacy.sanitize.settings import KINDS
from rayprivacy.sanitize.table import Table, epsilon_for_keep
from rayprivacy.sanitize.vocabulary import load_glove

REFERENCE = 3000  # tokens that the loop draws in a round
MOST = 64


def texts_of(path: Path, column: str, words: Words, tokens: int) -> tuple[list[str], int]:
    """Texts with at least so many tokens, those of the file again and again; and how many tokens they have."""
    every = [str(text) for text in pq.read_table(path, columns=[column])[column].to_pylist() if text]
    _, lengths = words.ids([tidy(text) for text in every], MOST)
    rounds = -(-tokens // int(lengths.sum()))
    ends = np.cumsum(np.tile(lengths, rounds))
    count = int(np.searchsorted(ends, tokens)) + 1
    return list(islice(cycle(every), count)), int(ends[count - 1])


def ours(sanitizer: Sanitizer, texts: list[str]) -> float:
    began = time.process_time()
    written = sanitizer.sanitise(texts, np.arange(len(texts), dtype=np.uint64))
    assert len(written) == len(texts)
    return time.process_time() - began


def reference(table: Table, ids: np.ndarray, dice: np.random.Generator) -> float:
    sample = dice.choice(ids, size=REFERENCE)
    words, places = np.unique(sample, return_inverse=True)
    weights = table.weights(words)
    rows = weights / weights.sum(1)[:, None]
    every = np.arange(table.outcomes)
    began = time.process_time()
    for place in places:
        np.random.choice(every, p=rows[place])
    return time.process_time() - began


def measured(arguments: argparse.Namespace) -> dict[str, object]:
    vocabulary = load_glove(arguments.words, unit_length=True)
    table = Table(vocabulary, epsilon_for_keep(vocabulary, arguments.keep))
    words, coins = Words(vocabulary.words), Coins(Key.for_tests(), "benchmark")
    sanitizer = Sanitizer(words, SanText(table), PatternDetector(KINDS), Surrogates(coins), coins, MOST)
    texts, tokens = texts_of(arguments.data, arguments.text, words, arguments.tokens)
    ids, _ = words.ids([tidy(text) for text in texts[:20_000]], MOST)
    ids, dice = np.minimum(ids, words.unknown), np.random.default_rng(0)
    mine, theirs = [], []
    for _ in range(arguments.rounds):
        theirs.append(REFERENCE / reference(table, ids, dice))
        mine.append(tokens / ours(sanitizer, texts))
    return {
        "tokens": tokens,
        "texts": len(texts),
        "types": len(np.unique(ids)),
        "words": arguments.words,
        "ours_tokens_per_cpu_s": round(median(mine)),
        "reference_tokens_per_cpu_s": round(median(theirs)),
        "ratio": round(median(mine) / median(theirs), 1),
        "peak_rss_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a Parquet file with texts")
    parser.add_argument("--text", default="text", help="its column")
    parser.add_argument("--tokens", type=int, default=384_000)
    parser.add_argument("--words", type=int, default=30_000, help="size of the vocabulary")
    parser.add_argument("--keep", type=float, default=0.5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    found = measured(parser.parse_args())
    print(json.dumps(found) if parser.parse_args().json else "\n".join(f"{k:30}{v}" for k, v in found.items()))


if __name__ == "__main__":
    main()
