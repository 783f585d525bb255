"""What many users agree on about invented creatures: how much of it is released, right, and found again by questions.

    python benchmarks/knowledge.py --users 2000 5000 --seeds 0 1 2 --json

The corpus is that of benchmarks/creatures.py. Votes are those of `rayprivacy.knowledge`, and noise, thresholds and the
split of the budget those of `method: knowledge`; only Ray and the ledger are left out.

- `reader`: of the statements in posts, right or wrong, what share is read, and of what is read, what share is said so;
- `names`: of a creature's users, the share that names it among the names that count;
- `facts`: the share of all facts that are released and right, and of the released ones the share that is right;
- `open_book`: exact match on questions in other words: the best passage of BM25, the attribute whose questions of the
  schema, taken together, are nearest by the packaged encoder, and what the reader reads of it there. A question about a
  fact that is not released is a wrong answer. `all facts` has passages of the whole truth: the most to hope for, less
  than 1 because this takes some of the 24 wordings for another attribute.
"""

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import product
from statistics import mean
from typing import Any

import numpy as np
import pyarrow as pa
from creatures import SCHEMA, Options, tables
from creatures_parts import QUESTIONS
from numpy.linalg import norm

from rayprivacy.core.keys import Key
from rayprivacy.knowledge.facts import FACTS, answers, facts, passages
from rayprivacy.knowledge.kinds import shown
from rayprivacy.knowledge.names import Names, name_of
from rayprivacy.knowledge.reading import Reader, Vote
from rayprivacy.knowledge.settings import NAME, KnowledgeConfig
from rayprivacy.methods.knowledge.counting import Asked
from rayprivacy.methods.knowledge.plan import ANSWERS, NAMES, plan_run, users_needed
from rayprivacy.methods.registry import parse_recipe
from rayprivacy.models.sentences import SentenceModel
from rayprivacy.questions.answers import exact_match, normalised
from rayprivacy.questions.lexical import Bm25
from rayprivacy.release.thresholded import KnownKeys, ReleasedCounts, ThresholdedCounts

DELTA, MOST = 1e-6, 10**4
FEW = 20  # users: a name of fewer is never released, and is not read for
OF_READER = 300  # users whose statements are looked at


def counts_of(epsilon: float, most: int, known: bool) -> dict[str, ThresholdedCounts]:
    """The counts of a run, by their stage; of known names there is none."""
    asked = {**SCHEMA, "answers": {"most": most}, **({"names": {"file": "names.txt"}} if known else {})}
    recipe = parse_recipe({"method": "knowledge", "knowledge": asked, "privacy": {"epsilon": epsilon, "delta": DELTA}})
    return {stage.name: stage.mechanism for stage in plan_run(recipe).charged}


def released(mechanism: ThresholdedCounts, sums: Mapping[str, int], known: KnownKeys = ()) -> ReleasedCounts:
    """What passes, with fresh noise."""
    return mechanism.to_counts(mechanism.draw(sums, known))


class Bench:
    """A corpus, and what is read of it once: of the names that are creatures, and of all that some users name."""

    def __init__(self, options: Options) -> None:
        everything = {**SCHEMA, "answers": {"most": MOST}}
        self.config, self._made, self._key = KnowledgeConfig.parse(everything), tables(options), Key.for_tests()
        self.texts = defaultdict[str, list[str]](list)
        for row in self._made["private"].to_pylist():
            self.texts[row["user"]].append(row["text"])
        self.truth = {_key(row): _plain(row) for row in self._made["truth"].to_pylist()}
        self.creatures = frozenset(name for name, _ in self.truth)
        asked = attributes_asked(self.config)
        self._asked = [  # in the order of `QUESTIONS`, for every name and attribute
            (row, asked[QUESTIONS[row["attribute"]][place % 3]])
            for place, row in enumerate(self._made["questions"].to_pylist())
        ]

    @cached_property
    def _named(self) -> list[list[str]]:
        names = Names(self.config)
        return [names.of(own, partial(self._key.integer, "names", user)) for user, own in self.texts.items()]

    @cached_property
    def _votes(self) -> list[list[Vote]]:
        reader = Reader(self.config, self.creatures | {name for name, count in self.named().items() if count > FEW})
        return [reader.votes(own, partial(self._key.integer, "answers", user)) for user, own in self.texts.items()]

    def named(self, users: int | None = None) -> Counter[str]:
        """How many of the first users name each name."""
        return Counter(name for own in self._named[:users] for name in own)

    def votes(self, users: int, names: Collection[str], most: int) -> Counter[Vote]:
        """The sums of the first users' votes about some names; their order does not know how many of them count."""
        about = ([vote for vote in own if vote.name in names] for own in self._votes[:users])
        return Counter(vote for own in about for vote in own[:most])

    def reader(self, users: int) -> dict[str, float]:
        """Precision and recall of the first users' statements, and recall of names."""
        reader, said = Reader(self.config, self.creatures), defaultdict[int, Counter[Vote]](Counter)
        own = list(self.texts.values())[:users]
        for row in self._made["statements"].to_pylist():
            said[row["row"]][Vote(*_key(row), _plain(row))] += 1
        read = [Counter(vote for vote, _ in reader.statements(text)) for texts in own for text in texts]
        right = sum((found & said[row]).total() for row, found in enumerate(read))
        written = [{name for name in self.creatures if any(name in text.lower() for text in texts)} for texts in own]
        named = sum(count for name, count in self.named(users).items() if name in self.creatures)
        return {
            "precision": right / sum(found.total() for found in read),
            "recall": right / sum(said[row].total() for row in range(len(read))),
            "names": named / sum(map(len, written)),
        }

    def released(self, users: int, epsilon: float, most: int, known: bool) -> tuple[pa.Table, ThresholdedCounts]:
        """Facts at an epsilon, of released names, or of `known` ones; and by what the answers were counted."""
        counts = counts_of(epsilon, most, known)
        names = self.creatures if known else frozenset(released(counts[NAMES], self.named(users)).keys)
        sums = {vote.key: count for vote, count in self.votes(users, names, most).items()}
        listed = Asked(self.config, tuple(sorted(names))).known()
        return facts(answers(released(counts[ANSWERS], sums, listed))), counts[ANSWERS]

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
        for row, about in self._asked:
            best = index.ranked(row["question"])[:1]
            answer = next((read[at].get((name_of(written[at].title), about)) for at in best), None)
            right = shown(self.truth[_key(row)], attributes[row["attribute"]])
            scores.append(exact_match(shown(answer, attributes[about]), right) if answer else 0.0)
        return mean(scores)


def attributes_asked(config: KnowledgeConfig) -> dict[str, str]:
    """The attribute that each phrase of the evaluation asks for: that whose questions, by their mean, are nearest.

    One question alone may be near by a word that says nothing, such as `creature`.
    """
    asked, encoder = [phrase for own in QUESTIONS.values() for phrase in own], SentenceModel.packaged()
    known = [encoder.vectors([each.replace(NAME, "it") for each in own.questions]).mean(0) for own in config.attributes]
    near = encoder.vectors([each.format(n="it") for each in asked]) @ np.array([each / norm(each) for each in known]).T
    return {phrase: config.attributes[place].name for phrase, place in zip(asked, near.argmax(1), strict=True)}


def _facts(counts: Mapping[Vote, float]) -> pa.Table:
    rows = [vote._asdict() | dict.fromkeys(("count", "low", "high"), count) for vote, count in counts.items()]
    return facts(pa.Table.from_pylist(rows, schema=FACTS))


def _key(row: Mapping[str, str]) -> tuple[str, str]:
    return name_of(row["name"]), row["attribute"]


def _plain(row: Mapping[str, str]) -> str:
    return row["answer"] if row["attribute"] in ("weight", "lifespan", "sighted") else normalised(row["answer"])


def rows(arguments: argparse.Namespace, seed: int) -> Iterator[dict[str, Any]]:
    """All rows of a seed."""
    bench = Bench(Options(max(arguments.users), arguments.names, seed, arguments.skew, arguments.parts))
    truth = _facts({Vote(*key, answer): 1.0 for key, answer in bench.truth.items()})
    yield {"row": "reader", **bench.reader(OF_READER)}
    yield {"row": "all facts", "open_book": bench.open_book(truth)}
    for users in arguments.users:
        exact = _facts(bench.votes(users, bench.creatures, MOST))
        yield {"users": users, "row": "no noise", **bench.right(exact), "open_book": bench.open_book(exact)}
        for known, epsilon, most in product((True, False), arguments.epsilons, arguments.most):
            found, counts = bench.released(users, epsilon, most, known)
            yield {
                "users": users, "row": "names known" if known else "names found", "epsilon": epsilon, "most": most,
                "threshold": users_needed(counts), "one_of_12": users_needed(counts, 12), **bench.right(found),
                **({"open_book": bench.open_book(found)} if most == max(arguments.most) else {}),
            }  # fmt: skip


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
    parser.add_argument("--most", type=int, nargs="+", default=[8, 20, 30, 40])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = averaged([[*rows(arguments, seed)] for seed in arguments.seeds])
    print(json.dumps({"arguments": vars(arguments), "rows": found}, indent=1) if arguments.json else _shown(found))


def _shown(found: Sequence[dict[str, Any]]) -> str:
    return "\n".join(" ".join(f"{name} {value}" for name, value in row.items()) for row in found)


if __name__ == "__main__":
    main()
