"""What reviewers of drugs agree on: the functions of `rayprivacy.knowledge` on a real corpus, without noise.

    python benchmarks/drugs.py --data DIR --most 10

`DIR` holds `reviews_druglib.parquet`: 4,143 reviews (CC BY 4.0), each of a reviewer of its own, with the drug, the
condition, and what was said of benefits, side effects and all else. Printed are the names that the rule finds, how many
of the drugs are among them, and the facts with the largest counts. The lists of answers are public: common conditions
and side effects, written before a look at the counts.
"""

import argparse
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rayprivacy.core.keys import Key
from rayprivacy.knowledge.facts import FACTS, facts, passages
from rayprivacy.knowledge.names import Names, name_of
from rayprivacy.knowledge.reading import Reader
from rayprivacy.knowledge.settings import KnowledgeConfig

SUPPORT = 10  # users of a name that is read for, and reviews of a drug that is looked for among the names
CONDITIONS = (
    "acne", "adhd", "allergies", "anxiety", "arthritis", "asthma", "back pain", "bipolar disorder", "birth control",
    "cancer", "cold sores", "depression", "diabetes", "epilepsy", "fibromyalgia", "heartburn", "high blood pressure",
    "high cholesterol", "hypothyroidism", "insomnia", "menopause", "migraine", "multiple sclerosis", "osteoporosis",
    "panic attacks", "psoriasis", "acid reflux", "rosacea", "sinus infection", "smoking", "urinary tract infection",
    "wrinkles",
)  # fmt: skip
EFFECTS = (
    "appetite loss", "bloating", "blurred vision", "breakouts", "constipation", "cough", "diarrhea", "dizziness",
    "drowsiness", "dry eyes", "dry mouth", "dry skin", "fatigue", "hair loss", "headache", "hot flashes", "itching",
    "joint pain", "loss of appetite", "memory loss", "mood swings", "muscle pain", "nausea", "nightmares", "peeling",
    "rash", "redness", "sexual dysfunction", "sleepiness", "stomach pain", "sweating", "tremor", "vivid dreams",
    "vomiting", "weight gain", "weight loss",
)  # fmt: skip
SCHEMA = {
    "names": {"most": 5},
    "attributes": [
        {
            "name": "condition",
            "kind": "category",
            "values": CONDITIONS,
            "questions": ["What is {name} taken for?", "What does {name} treat?", "Which condition does {name} help?"],
        },
        {
            "name": "side effect",
            "kind": "category",
            "values": EFFECTS,
            "questions": ["What is a side effect of {name}?", "What does {name} cause?"],
        },
    ],
    "answers": {"most": 4},
}


def texts(data: Path) -> Iterator[tuple[str, str, list[str]]]:
    """Reviewer, drug and texts of each review."""
    for row in pq.read_table(data / "reviews_druglib.parquet").to_pylist():
        said = " ".join((row[f"{part}Review"] or "").strip() for part in ("benefits", "comments"))
        drug = row["urlDrugName"].capitalize()
        about = f"I took {drug} for {row['condition']}. {said}"
        yield f"reviewer {row['review_id']}", drug, [about, f"Side effects of {drug}: {row['sideEffectsReview'] or ''}"]


def measured(data: Path) -> dict[str, Any]:
    """Names and facts of all reviews."""
    config, key, reviews = KnowledgeConfig.parse(SCHEMA), Key.for_tests(), [*texts(data)]
    finder = Names(config)
    named = Counter(name for user, _, own in reviews for name in finder.of(own, partial(key.integer, "names", user)))
    drugs = Counter(name_of(drug) for _, drug, _ in reviews)
    known = {drug for drug, count in drugs.items() if count >= SUPPORT}
    asked = {name for name, count in named.items() if count >= SUPPORT}
    reader = Reader(config, asked)
    votes = Counter(vote for user, _, own in reviews for vote in reader.votes(own, partial(key.integer, "a", user)))
    counts = [{**vote._asdict(), **dict.fromkeys(("count", "low", "high"), n)} for vote, n in votes.items()]
    found = facts(pa.Table.from_pylist(counts, schema=FACTS)).sort_by([("count", "descending"), ("name", "ascending")])
    return {
        "names": len(asked),
        "drugs_of_many_reviews": len(known),
        "found_of_these": len(known & asked),
        "names_that_are_drugs": len(asked & set(drugs)) / len(asked),
        "commonest_other_names": [name for name, _ in named.most_common() if name not in drugs][:30],
        "facts": found.to_pylist(),
        "passage": passages(found, config)[0].text,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--most", type=int, default=10, help="facts that are printed")
    arguments = parser.parse_args()
    found = measured(arguments.data)
    rows = found.pop("facts")[: arguments.most]
    print("\n".join(f"{name}: {value}" for name, value in found.items()))
    print("\n".join(f"{row['count']:5.0f} {row['name']}: {row['attribute']} {row['answer']}" for row in rows))


if __name__ == "__main__":
    main()
