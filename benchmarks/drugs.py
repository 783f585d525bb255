"""What reviewers of drugs agree on: `method: knowledge` on a real corpus, against the columns of the data set.

    python benchmarks/drugs.py --data DIR --out runs/drugs      # the corpus of jobs/knowledge/reviews.yaml
    python benchmarks/drugs.py --data DIR --json

`DIR` holds `reviews_druglib.parquet`: 4,143 reviews (CC BY 4.0), each of a reviewer of its own, with the drug, the
condition, and what was said of benefits, side effects and all else. A reviewer's texts are the filled-in form. With the
condition (`form`) it stands in the heading, as on the site; without (`text`) it has to be read in what was written.

Votes are those of `rayprivacy.knowledge`, and noise and thresholds those of the packaged recipe; only Ray and the
ledger are left out. Means of some draws of noise. A released condition is right if it is the one that most of the
drug's reviews have in their column, as far as its words are in the list of answers; a released side effect, if it is
among the three that most of the drug's reviews of side effects name, counted by a search for its words.
"""

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rayprivacy.core.keys import Key
from rayprivacy.knowledge.facts import answers, facts
from rayprivacy.knowledge.kinds import finder
from rayprivacy.knowledge.names import Names, name_of, public_names
from rayprivacy.knowledge.reading import Reader, Vote
from rayprivacy.methods.knowledge.counting import Asked
from rayprivacy.methods.knowledge.plan import ANSWERS, NAMES, plan_run, users_needed
from rayprivacy.methods.registry import load_recipe
from rayprivacy.questions.lexical import placed_stems
from rayprivacy.release.thresholded import KeySums, KnownKeys, ReleasedCounts, ThresholdedCounts

JOBS = Path(__file__).parent.parent / "jobs" / "knowledge"
CONDITION, EFFECT = "condition", "side effect"
RIGHT = {CONDITION: 1, EFFECT: 3}  # among how many of the commonest an answer is right
NAMED = 3  # names of a reviewer that count, where they are found
FEW = 5  # reviewers: a name of fewer is never released, and is not read for
DRAWS = 5
REVIEWS = (4, 9, 20, 40, 60)


def form(review: Mapping[str, str], condition: bool) -> list[str]:
    """A review as its author filled it in: what it is about, and what its author had to bear."""
    drug, said = (
        review["urlDrugName"].capitalize(),
        (review[f"{part}Review"] or "" for part in ("benefits", "comments")),
    )
    taken = f"I took {drug} for {review['condition']}." if condition else f"I took {drug}."
    return [" ".join([taken, *said]), f"Side effects of {drug}: {review['sideEffectsReview'] or ''}"]


class Bench:
    """All reviews, and what is read in them once."""

    def __init__(self, data: Path, condition: bool) -> None:
        self._reviews = pq.read_table(data / "reviews_druglib.parquet").to_pylist()
        self.texts = {f"reviewer {each['review_id']}": form(each, condition) for each in self._reviews}
        self.drugs = public_names(str(JOBS / "drugs.txt"))
        self._key = Key.for_tests()

    def counts(self, epsilon: float, found: bool) -> dict[str, ThresholdedCounts]:
        """The counts of the packaged recipe at an epsilon; with the names `found`, one of names too."""
        names = {"most": NAMED} if found else {"file": str(JOBS / "drugs.txt")}
        changes = {"privacy.epsilon": epsilon, "knowledge.names": names}
        return {each.name: each.mechanism for each in plan_run(load_recipe(JOBS / "reviews.yaml", changes)).charged}

    @cached_property
    def config(self) -> Any:
        """The block `knowledge` of the packaged recipe."""
        return load_recipe(JOBS / "reviews.yaml").knowledge

    @cached_property
    def named(self) -> Counter[str]:
        """How many reviewers name what the rule takes for names."""
        names = Names(self.config.model_copy(update={"names": self.config.names.model_copy(update={"most": NAMED})}))
        return Counter(name for user, own in self.texts.items() for name in names.of(own, self._order("names", user)))

    @cached_property
    def _votes(self) -> list[list[Vote]]:
        reader = Reader(self.config, {*self.drugs, *(name for name, count in self.named.items() if count > FEW)})
        return [reader.votes(own, self._order("answers", user)) for user, own in self.texts.items()]

    def _order(self, stage: str, user: str) -> Any:
        return partial(self._key.integer, stage, user)

    def sums(self, names: Collection[str]) -> Counter[str]:
        """The sums of votes about some names."""
        about = ([vote for vote in own if vote.name in names] for own in self._votes)
        return Counter(vote.key for own in about for vote in own[: self.config.answers.most])

    def released(self, epsilon: float, found: bool) -> pa.Table:
        """Facts at an epsilon, with fresh noise, of listed names or of those that are `found`."""
        counts = self.counts(epsilon, found)
        names = drawn(counts[NAMES], self.named).keys if found else self.drugs
        known = Asked(self.config, tuple(names)).known()
        return facts(answers(drawn(counts[ANSWERS], self.sums({*names}), known)))

    @cached_property
    def columns(self) -> dict[tuple[str, str], Counter[str]]:
        """How many reviews of a drug have each answer in their columns, wherever it stands there."""
        asked = {each.name: finder(each) for each in self.config.attributes}
        found = defaultdict[tuple[str, str], Counter[str]](Counter)
        for review in self._reviews:
            for attribute, column in ((CONDITION, "condition"), (EFFECT, "sideEffectsReview")):
                text = review[column] or ""
                said = {each.answer for each in asked[attribute](text, placed_stems(text))}
                found[name_of(review["urlDrugName"]), attribute].update(said)
        return found

    def reviews(self) -> dict[int, int]:
        """How many drugs have at least so many reviews."""
        each = Counter(name_of(review["urlDrugName"]) for review in self._reviews)
        return {least: sum(count >= least for count in each.values()) for least in REVIEWS}

    def right(self, fact: Mapping[str, str]) -> bool:
        """Whether the columns say so."""
        said = self.columns.get((fact["name"], fact["attribute"]), Counter())
        places = sorted(said.values(), reverse=True)[: RIGHT[fact["attribute"]]]
        return bool(places) and said[fact["answer"]] >= places[-1]


def drawn(mechanism: ThresholdedCounts, sums: KeySums, known: KnownKeys = ()) -> ReleasedCounts:
    """What passes, with fresh noise."""
    return mechanism.to_counts(mechanism.draw(sums, known))


def row(bench: Bench, epsilon: float, found: bool, draws: int = DRAWS) -> dict[str, Any]:
    """How many facts are released, and how many of them are right: means of some draws."""
    mechanism, drugs = bench.counts(epsilon, found)[ANSWERS], {*bench.drugs}
    needed = max(users_needed(mechanism, len(each.values)) for each in bench.config.attributes)
    every = [fact for _ in range(draws) for fact in bench.released(epsilon, found).to_pylist()]
    figures: dict[str, Any] = {"names": "found" if found else "listed", "epsilon": epsilon, "a_fact_needs": needed}
    for attribute in RIGHT:
        own = [bench.right(fact) for fact in every if fact["attribute"] == attribute and fact["name"] in drugs]
        figures[attribute] = {"released": len(own) / draws, "right": round(sum(own) / max(1, len(own)), 3)}
    return figures | {"about_no_drug": sum(fact["name"] not in drugs for fact in every) / draws}


def rows(data: Path) -> Iterator[dict[str, Any]]:
    """All rows."""
    for condition in (True, False):
        bench, texts = Bench(data, condition), "form" if condition else "text"
        if condition:
            yield {"drugs_of_reviews": bench.reviews()}
        yield from ({"texts": texts, **row(bench, *each)} for each in product((3.0, 8.0), (False, True)))


def prepare(data: Path, out: Path) -> None:
    """Write the corpus of the packaged recipe."""
    out.mkdir(parents=True, exist_ok=True)
    written = [{"user": user, "text": text} for user, own in Bench(data, True).texts.items() for text in own]
    pq.write_table(pa.Table.from_pylist(written), out / "private.parquet", compression="zstd")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, help="write the corpus here, and measure nothing")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.out:
        return prepare(arguments.data, arguments.out)
    found = [*rows(arguments.data)]
    print(json.dumps({"rows": found}, indent=1) if arguments.json else "\n".join(map(str, found)))


if __name__ == "__main__":
    main()
