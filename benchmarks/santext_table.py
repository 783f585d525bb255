"""The table of Yue et al. (2021) on data that is to be had: utility of sanitised text by mechanism and epsilon.

    python benchmarks/santext_table.py --data DIR --seeds 1 2 3 --json
    python benchmarks/santext_table.py --data DIR --attacks 2000 --json

Training and test text are both sanitised, as in the paper. Mechanisms: Random, FBDD (Feyisetan et al., 2020), k-ary
randomised response that keeps as many words as SanText does, SanText and SanText+ (w 0.9, p 0.3), on GloVe 50d with
raw vectors as in the paper. Tasks: domain of a query (CLINC150), intent of a banking query (BANKING77), rating of a
drug review (DrugLib), and whether a sentence answers a question. `DIR` holds their Parquet files. Classifiers are
TF-IDF with logistic regression; for pairs logistic regression on overlap and mean vectors.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import pyarrow.parquet as pq
from santext_baselines import fbdd, random_words
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from rayprivacy.accounting.events import document_epsilon
from rayprivacy.core.keys import Key
from rayprivacy.sanitize.documents import Words, places_in, tidy
from rayprivacy.sanitize.mechanism import Coins, Mechanism, RandomizedResponse, SanText, randomized_response_epsilon
from rayprivacy.sanitize.table import Table
from rayprivacy.sanitize.vocabulary import Vocabulary, load_glove

EPSILONS = (1.0, 2.0, 3.0, 4.0, 6.0)
SIZE, MOST = 30_000, 64
W, P = 0.9, 0.3
MECHANISMS = ("random", "fbdd", "randomised_response", "santext", "santext+")
PATTERN = r"(?u)\b\w+\b"


@dataclass(frozen=True)
class Task:
    """Texts with labels; of a pair, the second text stands behind the first ones."""

    texts: list[str]
    labels: list[str]
    pairs: bool = False


def domains(data: Path, dice: np.random.Generator) -> Task:
    rows = [row for row in _rows(data, "intents_clinc150_banking77") if row["dataset"] == "clinc150"]
    return _drawn([(row["text"], row["domain"]) for row in rows if row["domain"] != "oos"], 12_000, dice)


def banking(data: Path, dice: np.random.Generator) -> Task:
    rows = [row for row in _rows(data, "intents_clinc150_banking77") if row["dataset"] != "clinc150"]
    return _drawn([(row["text"], row["intent"]) for row in rows], 9_000, dice)


def reviews(data: Path, dice: np.random.Generator) -> Task:
    rows = [
        (f"{row['benefitsReview']} {row['commentsReview']}", int(row["rating"]))
        for row in _rows(data, "reviews_druglib")
    ]
    return _drawn(
        [(text, "high" if rating >= 7 else "low") for text, rating in rows if rating >= 7 or rating <= 4], 4_200, dice
    )


def answers(data: Path, dice: np.random.Generator) -> Task:
    rows = _rows(data, "squad_nqg_sentence_question")
    places = dice.permutation(len(rows))[:3000]
    questions = [rows[place]["question"] for place in places]
    right = [rows[place]["sentence"] for place in places]
    wrong = right[1:] + right[:1]
    return Task(questions * 2 + right + wrong, ["yes"] * len(places) + ["no"] * len(places), pairs=True)


TASKS: dict[str, Callable[[Path, np.random.Generator], Task]] = {
    "clinc_domain": domains,
    "banking_intent": banking,
    "druglib_rating": reviews,
    "sentence_answers": answers,
}


def _rows(data: Path, name: str) -> list[dict[str, Any]]:
    return pq.read_table(data / f"{name}.parquet").to_pylist()


def _drawn(rows: list[tuple[str, str]], most: int, dice: np.random.Generator) -> Task:
    kept = [rows[place] for place in dice.permutation(len(rows))[:most]]
    return Task([text for text, _ in kept], [label for _, label in kept])


@cache
def vocabulary() -> Vocabulary:
    return load_glove(SIZE, unit_length=False)


@cache
def table(epsilon: float, w: float = 1.0) -> Table:
    return Table(vocabulary(), epsilon, SIZE - round(w * SIZE))


def mechanism(name: str, epsilon: float, w: float = W, p: float = P) -> Mechanism:
    """A mechanism; randomised response is the one that keeps as many words as SanText."""
    if name == "santext+":
        return SanText(table(epsilon, w), round(p * 2**32))
    plain = SanText(table(epsilon))
    if name == "santext":
        return plain
    return RandomizedResponse(SIZE, randomized_response_epsilon(float(np.median(plain.table.keep_rates)), SIZE))


def sanitised(ids: np.ndarray, lengths: np.ndarray, draw: Callable[..., np.ndarray], seed: int) -> np.ndarray:
    coins = Coins(Key.for_tests(), "table", str(seed))
    tags = np.repeat(np.arange(len(lengths), dtype=np.uint64), lengths)
    return draw(ids, tags, places_in(lengths), coins)


def accuracy(task: Task, ids: np.ndarray, lengths: np.ndarray) -> float:
    """Trained on four fifths and tested on one; both are as given."""
    words = Words((*vocabulary().words, "unknownword"))
    texts = list(words.join(ids, lengths))
    count = len(task.labels)
    train = np.arange(count) % 5 > 0
    labels = np.array(task.labels)
    if task.pairs:
        features, model = (
            _pair_features(texts, ids, lengths, count),
            make_pipeline(StandardScaler(), LogisticRegression()),
        )
        model.fit(features[train], labels[train])
        return float((model.predict(features[~train]) == labels[~train]).mean())
    seen = TfidfVectorizer(token_pattern=PATTERN, ngram_range=(1, 2), sublinear_tf=True, min_df=2, dtype=np.float32)
    model = make_pipeline(seen, LogisticRegression(max_iter=60, tol=1e-3, C=10.0))
    model.fit([text for text, one in zip(texts, train, strict=True) if one], labels[train])
    return float(
        (model.predict([text for text, one in zip(texts, train, strict=True) if not one]) == labels[~train]).mean()
    )


def _pair_features(texts: list[str], ids: np.ndarray, lengths: np.ndarray, count: int) -> np.ndarray:
    vectors, ends = vocabulary().vectors, np.cumsum(lengths)
    sums = np.add.reduceat(np.vstack([vectors[ids], np.zeros(50)]), ends - lengths)
    means = sums / np.maximum(lengths, 1)[:, None]
    one, other = means[:count], means[count:]
    bags = [set(text.split()) for text in texts]
    shared = np.array([len(bags[at] & bags[count + at]) / max(len(bags[at]), 1) for at in range(count)])
    norms = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return np.column_stack([shared, (one * other).sum(1) / np.maximum(norms, 1e-9), one * other])


def cells(data: Path, name: str, seed: int) -> list[dict[str, Any]]:
    """All rows of one task and seed."""
    task = TASKS[name](data, np.random.default_rng(seed))
    words = Words(vocabulary().words)
    ids, lengths = words.ids([tidy(text) for text in task.texts], MOST)
    ids = np.minimum(ids, words.unknown)
    row = {"task": name, "seed": seed}
    dice = np.random.default_rng([seed, 7])
    found = [row | {"mechanism": "unsanitised", "epsilon": None, "accuracy": accuracy(task, ids, lengths)}]
    random = random_words(ids, SIZE, dice)
    found.append(row | {"mechanism": "random", "epsilon": None, "accuracy": accuracy(task, random, lengths)})
    for epsilon in EPSILONS:
        noisy = fbdd(vocabulary().vectors, ids, epsilon, dice)
        found.append(row | {"mechanism": "fbdd", "epsilon": epsilon, "accuracy": accuracy(task, noisy, lengths)})
        for kind in MECHANISMS[2:]:
            after = sanitised(ids, lengths, mechanism(kind, epsilon).draw, seed)
            found.append(row | {"mechanism": kind, "epsilon": epsilon, "accuracy": accuracy(task, after, lengths)})
    return found


def grid(data: Path, seed: int) -> list[dict[str, Any]]:
    """SanText+ at epsilon 3 by share of sensitive words and chance of replacement (S6)."""
    task = domains(data, np.random.default_rng(seed))
    words = Words(vocabulary().words)
    ids, lengths = words.ids([tidy(text) for text in task.texts], MOST)
    ids = np.minimum(ids, words.unknown)
    return [
        {
            "w": w,
            "p": p,
            "accuracy": accuracy(task, sanitised(ids, lengths, mechanism("santext+", 3.0, w, p).draw, seed), lengths),
        }
        for w in (0.8, 0.9, 0.97)
        for p in (0.1, 0.3, 0.6)
    ]


def public_figures() -> list[dict[str, Any]]:
    """What the public table says of each mechanism: kept words, outcomes, and the epsilon of a document."""
    found = []
    sample = np.linspace(3000, SIZE - 1, 200).astype(np.int64)
    for epsilon in EPSILONS:
        for kind in MECHANISMS[2:]:
            made = mechanism(kind, epsilon)
            row: dict[str, Any] = {"mechanism": kind, "epsilon": epsilon}
            row["document_epsilon"] = round(document_epsilon(made.event(MOST)), 1)
            if isinstance(made, SanText):
                row["kept"] = round(float(np.median(made.table.keep_rates)), 4)
                row["distinct_outcomes"] = round(float(np.median(made.table.distinct_outcomes(sample))), 1)
                row["distinct_inputs"] = round(float(np.median(made.table.distinct_inputs(sample))), 1)
            else:
                row["kept"] = round(made.keep_rate, 4)
            found.append(row)
    return found


def summary(
    rows: list[dict[str, Any]], figures: list[dict[str, Any]], by_share: list[dict[str, Any]]
) -> dict[str, Any]:
    """Means over seeds, and the orderings S1 to S6 as far as they hold."""
    means: dict[tuple[str, str, float | None], float] = {}
    for row in rows:
        key = (row["task"], row["mechanism"], row["epsilon"])
        means[key] = float(
            np.mean([each["accuracy"] for each in rows if (each["task"], each["mechanism"], each["epsilon"]) == key])
        )
    orderings: dict[str, Any] = {}
    for task in sorted({row["task"] for row in rows}):
        at = partial(_at, means, task)
        orderings[task] = {
            "S1_santext_plus_not_worse": {e: at("santext+", e) >= at("santext", e) - 0.01 for e in (3.0, 4.0)},
            "S1_santext_beats_fbdd_by_5": {e: at("santext", e) > at("fbdd", e) + 0.05 for e in (3.0, 4.0)},
            "S1_fbdd_within_3_of_random": {e: abs(at("fbdd", e) - at("random", None)) <= 0.03 for e in (3.0, 4.0)},
            "S2_rises": {
                kind: all(at(kind, low) <= at(kind, high) + 0.01 for low, high in pairwise(EPSILONS))
                for kind in ("santext", "santext+")
            },
            "unsanitised_is_best": at("unsanitised", None)
            >= max(at(kind, e) for kind in MECHANISMS[1:] for e in EPSILONS),
            "santext_within_2_of_randomised_response": {
                e: round(at("santext", e) - at("randomised_response", e), 4) for e in EPSILONS
            },
        }
    plain = [row for row in figures if row["mechanism"] == "santext"]
    rising = all(
        low["kept"] < high["kept"]
        and low["distinct_outcomes"] > high["distinct_outcomes"]
        and low["distinct_inputs"] > high["distinct_inputs"]
        for low, high in pairwise(plain)
    )
    cell = {(row["w"], row["p"]): row["accuracy"] for row in by_share}
    falls = (
        {
            "p": all(cell[w, 0.1] >= cell[w, 0.3] >= cell[w, 0.6] for w in (0.8, 0.9, 0.97)),
            "w": all(cell[0.8, p] >= cell[0.9, p] >= cell[0.97, p] for p in (0.1, 0.3, 0.6)),
        }
        if by_share
        else None
    )
    table_rows = [
        {"task": task, "mechanism": kind, "epsilon": epsilon, "accuracy": round(value, 4)}
        | next(
            (
                {k: row[k] for k in ("kept", "document_epsilon")}
                for row in figures
                if (row["mechanism"], row["epsilon"]) == (kind, epsilon)
            ),
            {},
        )
        for (task, kind, epsilon), value in means.items()
    ]
    return {
        "rows": table_rows,
        "public": figures,
        "orderings": orderings,
        "S5_exact": rising,
        "S6_falls": falls,
        "grid": by_share,
    }


def _at(means: dict[tuple[str, str, float | None], float], task: str, kind: str, epsilon: float | None) -> float:
    return means[task, kind, epsilon]


def attacks(data: Path, words_wanted: int) -> dict[str, Any]:
    """Four attacks on the same words of queries, at every epsilon."""
    from rayprivacy.methods.santext.heldout import attack
    from rayprivacy.models.backbone import load_backbone
    from rayprivacy.models.settings import ModelConfig
    from rayprivacy.sanitize.mechanism import log_likelihoods, public_prior

    backbone, words = load_backbone(ModelConfig(dtype="float32")), Words(vocabulary().words)
    task = domains(data, np.random.default_rng(0))
    ids, lengths = words.ids([tidy(text) for text in task.texts[: words_wanted // 8]], MOST)
    ids = np.minimum(ids, words.unknown)
    known, found = ids < SIZE, {}
    for epsilon in EPSILONS:
        made = mechanism("santext", epsilon)
        assert isinstance(made, SanText)
        after, ends = sanitised(ids, lengths, made.draw, 0), np.cumsum(lengths)[:-1]
        pairs = [both for both in zip(np.split(ids, ends), np.split(after, ends), strict=True) if len(both[0])]
        results = attack(pairs, vocabulary().words, partial(log_likelihoods, made), public_prior(SIZE), backbone)
        expected = made.table.keep_rates[ids[known]]
        error = float(np.sqrt((expected * (1 - expected)).sum()) / known.sum())
        found[str(epsilon)] = {name: round(each.rate, 4) for name, each in results.items()} | {
            "words": int(known.sum()),
            "mean_N_x": round(float(expected.mean()), 4),
            "identity_off_by_standard_errors": round(abs(results["identity"].rate - float(expected.mean())) / error, 2),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a folder with the Parquet files")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--attacks", type=int, default=0, help="attack so many words instead")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    arguments, began = parser.parse_args(), time.monotonic()
    if arguments.attacks:
        found = {"attacks": attacks(arguments.data, arguments.attacks)}
    else:
        with ProcessPoolExecutor(arguments.processes) as pool:
            public = pool.submit(public_figures)
            shares = pool.submit(grid, arguments.data, arguments.seeds[0])
            each = [
                pool.submit(cells, arguments.data, name, seed) for seed in arguments.seeds for name in arguments.tasks
            ]
            rows = [row for future in each for row in future.result()]
            found = summary(rows, public.result(), shares.result())
    found |= {"minutes": round((time.monotonic() - began) / 60, 1)}
    print(json.dumps(found, indent=None if arguments.json else 1))


if __name__ == "__main__":
    main()
