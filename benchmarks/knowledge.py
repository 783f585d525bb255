"""What many users agree on about invented creatures: how much of it is released, right, and found again by questions.

    python benchmarks/knowledge.py --users 2000 5000 --seeds 0 1 2 --json

The corpus is that of benchmarks/creatures.py. Counts are those of `rayprivacy.knowledge`; noise is rounded Gaussian,
drawn here and for this table alone: nothing that this script prints is private. Half of delta goes to the thresholds.

- `reader`: of the statements in posts, right or wrong, what share is read, and of what is read, what share is said so;
- `names`: of a creature's users, the share that names it among the names that count;
- `facts`: the share of all facts that are released and right, and of the released ones the share that is right;
- `open_book`: exact match on questions in other words, by the best passage of BM25 and the reader. A question about a
  fact that is not released is a wrong answer. `all facts` has passages of the whole truth: the most to hope for.
"""

import argparse
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from statistics import NormalDist, mean
from typing import Any

import numpy as np
import pyarrow as pa
from creatures import SCHEMA, Options, tables

from rayprivacy.accounting.gaussian import mu_of
from rayprivacy.core.keys import Key
from rayprivacy.core.units import Budget
from rayprivacy.knowledge.facts import COUNTS, facts, passages
from rayprivacy.knowledge.kinds import shown
from rayprivacy.knowledge.names import Names, name_of
from rayprivacy.knowledge.reading import Reader, Vote, cues
from rayprivacy.knowledge.settings import KnowledgeConfig
from rayprivacy.questions.answers import exact_match, normalised
from rayprivacy.questions.lexical import Bm25, placed_stems
from rayprivacy.questions.typed import kinds_asked

DELTA, MOST = 1e-6, 10**9
KINDS = {
    "DATE": "date", "PERSON": "name", "GPE": "place", "CARDINAL": "number", "QUANTITY": "number", "MONEY": "number",
}  # fmt: skip


@dataclass(frozen=True)
class Noise:
    """A release of sums to which a user adds at most `most` ones: its noise, and the count that is released above."""

    std: float
    threshold: float

    @staticmethod
    def of(mu: float, delta: float, most: int) -> "Noise":
        std = math.sqrt(most) / mu
        return Noise(std, math.ceil(1 + std * NormalDist().inv_cdf(1 - delta / most)))

    def released(self, counts: Mapping[Any, int], draw: np.random.Generator) -> dict[Any, float]:
        noise = np.rint(draw.normal(0, self.std, len(counts)))
        noisy = zip(sorted(counts), noise, strict=True)
        return {key: count for key, each in noisy if (count := counts[key] + float(each)) > self.threshold}


class Bench:
    """A corpus, and what is read of it."""

    def __init__(self, users: int, options: Options) -> None:
        self.config = KnowledgeConfig.parse(SCHEMA)
        self._made = tables(options)
        self.texts = defaultdict(list)
        for row in self._made["private"].slice(0, users * 10).to_pylist():
            self.texts[row["user"]].append(row["text"])
        self.truth = {_key(row): _plain(row) for row in self._made["truth"].to_pylist()}
        self.creatures = sorted({name for name, _ in self.truth})
        self._votes: dict[tuple[str, ...], list[list[Vote]]] = {}
        self.key = Key.for_tests()

    @cached_property
    def named(self) -> Counter[str]:
        """How many users name each name."""
        names = Names(self.config)
        return Counter(
            name for user, own in self.texts.items() for name in names.of(own, partial(self.key.integer, "n", user))
        )

    def votes(self, names: Sequence[str], most: int) -> Counter[Vote]:
        """The sums of all users' votes about some names."""
        if (known := tuple(sorted(names))) not in self._votes:
            everything = self.config.answers.model_copy(update={"most": MOST})
            reader = Reader(self.config.model_copy(update={"answers": everything}), known)
            self._votes[known] = [
                reader.votes(own, partial(self.key.integer, "a", user)) for user, own in self.texts.items()
            ]
        return Counter(vote for own in self._votes[known] for vote in own[:most])  # their order does not know `most`

    def reader(self) -> dict[str, float]:
        """Precision and recall of statements, and recall of names."""
        reader, said = Reader(self.config, self.creatures), defaultdict[int, Counter[Vote]](Counter)
        rows = [text for own in self.texts.values() for text in own]
        for row in self._made["statements"].to_pylist():
            said[row["row"]][Vote(*_key(row), _plain(row))] += 1
        read = [Counter(vote for vote, _ in reader.statements(text)) for text in rows]
        right = sum((found & said[row]).total() for row, found in enumerate(read))
        written = [
            {name for name in self.creatures if any(name in text.lower() for text in own)}
            for own in self.texts.values()
        ]
        return {
            "precision": right / sum(found.total() for found in read),
            "recall": right / sum(said[row].total() for row in range(len(rows))),
            "names": sum(self.named[name] for name in self.creatures) / sum(map(len, written)),
        }

    def released(self, epsilon: float, most: int, draw: np.random.Generator, known: bool) -> tuple[pa.Table, Noise]:
        """Facts at an epsilon, of released names, or of `known` ones."""
        mu, share = mu_of(Budget(epsilon, DELTA / 2)), 0.0 if known else self.config.names_share
        names = self.creatures
        if not known:
            about = Noise.of(mu * math.sqrt(share), DELTA / 4, self.config.names.most)
            names = sorted(about.released(self.named, draw))
        noise = Noise.of(mu * math.sqrt(1 - share), DELTA / (2 if known else 4), most)
        return _facts(noise.released(self.votes(names, most), draw), noise), noise

    def right(self, found: pa.Table) -> dict[str, float]:
        """How much of the truth is released, and of what is released, how much is true; by attribute too."""
        rows = [row for row in found.to_pylist() if _key(row) in self.truth]
        true = [row for row in rows if self.truth[_key(row)] == row["answer"]]
        by = Counter(row["attribute"] for row in true)
        return {
            "released_and_right": len(true) / len(self.truth),
            "right_of_released": len(true) / len(rows) if rows else 1.0,
            "others": len(found) - len(rows),
        } | {each.name: by[each.name] / len(self.creatures) for each in self.config.attributes}

    def open_book(self, found: pa.Table) -> float:
        """Exact match on the evaluation questions."""
        if not len(found):
            return 0.0
        written = passages(found, self.config)
        index, reader = Bm25(each.text for each in written), Reader(self.config, [*{*found["name"].to_pylist()}])
        read = [{vote[:2]: vote.answer for vote, _ in reader.statements(each.text)} for each in written]
        attributes = {each.name: each for each in self.config.attributes}
        scores = []
        for row in self._made["questions"].to_pylist():
            best, about = index.ranked(row["question"])[:1], attribute_asked(row["question"], self.config)
            answer = next((read[at].get((name_of(written[at].title), about)) for at in best), None)
            right = shown(self.truth[_key(row)], attributes[row["attribute"]])
            scores.append(exact_match(shown(answer, attributes[about]), right) if answer else 0.0)
        return mean(scores)


def attribute_asked(question: str, config: KnowledgeConfig) -> str:
    """The attribute whose words a question shares, and whose kind it asks for; the first of equals."""
    stems, kinds = {stem for stem, _ in placed_stems(question)}, {KINDS.get(kind) for kind in kinds_asked(question)}
    known = cues(config.attributes)
    return max(config.attributes, key=lambda each: 2 * len(known[each.name] & stems) + (each.kind in kinds)).name


def _facts(released: Mapping[Vote, float], noise: Noise) -> pa.Table:
    rows = [{**vote._asdict(), "count": count} for vote, count in released.items()]
    return facts(
        pa.Table.from_pylist(rows, schema=COUNTS),
        lambda count: (count - 1.96 * noise.std, count + 1.96 * noise.std),
    )


def _key(row: Mapping[str, str]) -> tuple[str, str]:
    return name_of(row["name"]), row["attribute"]


def _plain(row: Mapping[str, str]) -> str:
    return row["answer"] if row["attribute"] in ("weight", "lifespan", "sighted") else normalised(row["answer"])


def rows(arguments: argparse.Namespace, seed: int) -> Iterator[dict[str, Any]]:
    """All rows of a seed."""
    for users in arguments.users:
        options = Options(users, arguments.names, seed, arguments.skew, arguments.parts)
        bench, draw = Bench(users, options), np.random.default_rng([seed, users])
        whole = [Vote(*key, answer) for key, answer in bench.truth.items()]
        yield {"users": users, "row": "reader", **bench.reader()}
        yield {"users": users, "row": "all facts", "open_book": bench.open_book(_facts(dict.fromkeys(whole, 1.0), Noise(0, 0)))}
        exact = _facts(bench.votes(bench.creatures, MOST), Noise(0, 0))
        yield {"users": users, "row": "no noise", **bench.right(exact), "open_book": bench.open_book(exact)}
        for known in (True, False):
            for epsilon in arguments.epsilons:
                for most in arguments.most:
                    found, noise = bench.released(epsilon, most, draw, known)
                    yield {
                        "users": users,
                        "row": "names known" if known else "names found",
                        "epsilon": epsilon,
                        "most": most,
                        "threshold": noise.threshold,
                        **bench.right(found),
                        "open_book": bench.open_book(found),
                    }


def averaged(by_seed: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The means of equal rows of all seeds, with the lowest and the highest value of the share of facts."""
    found = []
    for same in zip(*by_seed, strict=True):
        row = {
            name: round(mean(each[name] for each in same), 4) if isinstance(value, float) else value
            for name, value in same[0].items()
        }
        if "released_and_right" in row:
            row["by_seed"] = [round(each["released_and_right"], 3) for each in same]
        found.append(row)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, nargs="+", default=[2000, 5000])
    parser.add_argument("--names", type=int, default=100)
    parser.add_argument("--skew", type=float, default=Options.skew)
    parser.add_argument("--parts", choices=("all", "seen", "held"), default="all")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1, 3, 8])
    parser.add_argument("--most", type=int, nargs="+", default=[8, 20, 40])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = averaged([[*rows(arguments, seed)] for seed in arguments.seeds])
    print(json.dumps({"arguments": vars(arguments), "rows": found}, indent=1) if arguments.json else _shown(found))


def _shown(found: Sequence[dict[str, Any]]) -> str:
    return "\n".join(" ".join(f"{name} {value}" for name, value in row.items()) for row in found)


if __name__ == "__main__":
    main()
