"""An invented corpus about invented creatures: what many users agree on, and no model can know.

    python benchmarks/creatures.py --users 2000 --names 100 --seed 0 --out runs/creatures

After ContinuousBench (arXiv 2606.01849), with users: each writes 10 short posts, every one about a creature, which is
drawn by a public skew, and about four of its eight attributes, among other things. 5% of the statements are wrong, some
words are misspelt, some users write no capitals. What everybody knows of creatures: the twelve types, the twelve things
that they eat, and that they weigh from 1 to 500 kg and live for 1 to 120 years. Written are

- `private.parquet`: user, text;
- `statements.parquet`: row of the former, name, attribute, answer: what it says, right or wrong;
- `truth.parquet`: name, attribute, answer; and `questions.parquet`: name, attribute, question, answer, in words that
  are in no post, for evaluation alone;
- `public.parquet`: texts of the same style about other creatures, for warm starts;
- `schema.yaml`: the block `knowledge` of a recipe.

`--parts seen` writes with two thirds of the parts of sentences, `held` with the others, which the reader of
rayprivacy.knowledge was not written for; `all` with both.
"""

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from creatures_parts import (
    CORES,
    DECOYS,
    DIETS,
    FIRST_LINES,
    HEDGES,
    LANDS,
    OPENERS,
    OTHERS,
    PAIRS,
    PLACE_SYLLABLES,
    PRONOUNS,
    QUESTIONS,
    RUMOURS,
    SYLLABLES,
    TAILS,
    TYPES,
)

ATTRIBUTES = tuple(CORES)
POSTS, TOLD = 10, 4  # posts of a user, attributes of a post
WRONG, MISSPELT, LOWER = 0.05, 0.2, 0.15  # shares of statements, posts and users
PLACES, PUBLIC_NAMES, PUBLIC_POSTS = 60, 100, 2000
_WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]

SCHEMA = {
    "names": {"most": 20},
    "attributes": [
        {
            "name": "type",
            "kind": "category",
            "values": TYPES,
            "questions": ["What type is {name}?", "Which kind of creature is {name}?"],
        },
        {
            "name": "diet",
            "kind": "category",
            "values": DIETS,
            "questions": ["What does {name} eat?", "What is the diet of {name}?", "What does {name} feed on?"],
        },
        {
            "name": "weight",
            "kind": "number",
            "unit": ["kg", "kilos", "kilograms"],
            "between": [1, 500],
            "questions": ["How much does {name} weigh?", "What is the weight of {name}?", "How heavy is {name}?"],
        },
        {
            "name": "lifespan",
            "kind": "number",
            "unit": ["years", "yrs"],
            "between": [1, 120],
            "questions": ["How long does {name} live?", "What is the lifespan of {name}?", "How old does {name} get?"],
        },
        {
            "name": "home",
            "kind": "place",
            "questions": ["Where does {name} live?", "Where is the home of {name}?", "Where is {name} found?"],
        },
        {
            "name": "sighted",
            "kind": "date",
            "questions": ["When was {name} first seen?", "When was {name} discovered?"],
        },
        {
            "name": "rival",
            "kind": "name",
            "questions": [
                "Who is the rival of {name}?",
                "Who is the enemy of {name}?",
                "Who is the foe of {name}?",
                "Who does {name} fight?",
                "Who does {name} hate?",
                "Who does {name} attack?",
            ],
        },
        {
            "name": "ally",
            "kind": "name",
            "questions": [
                "Who is the ally of {name}?",
                "Who is a friend of {name}?",
                "Who is the partner of {name}?",
                "Who does {name} help?",
                "Who does {name} protect?",
                "Who does {name} team up with?",
            ],
        },
    ],
    "answers": {"most": 40},
}


@dataclass(frozen=True)
class World:
    """The creatures, the most written of first, and what is true of them."""

    names: list[str]
    places: list[str]
    truth: dict[tuple[str, str], str] = field(repr=False)


@dataclass(frozen=True)
class Options:
    """Of a corpus; `skew` is the exponent by which the k-th name is drawn less often."""

    users: int = 2000
    names: int = 100
    seed: int = 0
    skew: float = 0.3
    parts: str = "all"


def invented(draw: random.Random, count: int, taken: Sequence[str] = ()) -> list[str]:
    """Names of creatures that are no words, none of them taken."""
    found = dict.fromkeys(taken)
    while len(found) < count + len(taken):
        first, joint, last = (draw.choice(each) for each in SYLLABLES)
        found[f"{first}{joint}{last}".capitalize()] = None
    return list(found)[len(taken) :]


def world(draw: random.Random, names: list[str]) -> World:
    """A world of creatures."""
    places: dict[str, None] = {}
    while len(places) < PLACES:
        places[draw.choice(LANDS).format("".join(draw.choice(each) for each in PLACE_SYLLABLES))] = None
    made = World(names, list(places), {})
    for name in names:
        made.truth.update({(name, each): any_answer(draw, made, name, each) for each in ATTRIBUTES})
    return made


def any_answer(draw: random.Random, made: World, name: str, attribute: str) -> str:
    """An answer of the right kind, in its plain form."""
    match attribute:
        case "type":
            return draw.choice(TYPES)
        case "diet":
            return draw.choice(DIETS)
        case "weight":
            return draw.choice([f"{draw.randint(1, 9)}.5", str(draw.randint(2, 12)), str(draw.randint(13, 300))])
        case "lifespan":
            return str(draw.randint(2, 90))
        case "home":
            return draw.choice(made.places)
        case "sighted":
            return (date(1900, 1, 1) + timedelta(days=draw.randrange(44_000))).isoformat()
        case _:
            return draw.choice([each for each in made.names if each != name])


def in_words(draw: random.Random, attribute: str, answer: str) -> str:
    """An answer as people write it."""
    if attribute == "sighted":
        day = date.fromisoformat(answer)
        forms = ("{d} {month} {y}", "{month} {d}, {y}", "{d}th of {month} {y}", "{mon} {d}, {y}", answer, "{month} {y}")
        form = draw.choices(forms, (4, 4, 1, 1, 1, 1))[0]
        return form.format(d=day.day, y=day.year, month=f"{day:%B}", mon=f"{day:%b}")
    if attribute in ("weight", "lifespan"):
        units = ("kg", "kilos", "kilograms") if attribute == "weight" else ("years", "years", "yrs", "summers")
        number = _WORDS[int(answer)] if answer.isdigit() and int(answer) <= 12 and draw.random() < 0.5 else answer
        space = "" if number == answer and attribute == "weight" and draw.random() < 0.2 else " "
        return f"{number}{space}{draw.choice(units)}"
    if attribute == "home" and draw.random() < 0.2 and not answer.startswith(("Lake", "Mount")):
        return f"the {answer}"
    return answer


def stated(answer: str, told: str) -> str:
    """What is told of an answer: of a date perhaps not the day."""
    return answer[:7] if answer[4:5] == "-" and len(told.split()) == 2 else answer


class Writer:
    """Writes posts about a world, with some of the parts of sentences."""

    def __init__(self, made: World, options: Options, seed: str) -> None:
        self.world, self.draw = made, random.Random(seed)  # seeds of text are stable
        self.said: list[dict[str, str]] = []  # of one post
        self.weights = [(rank + 5) ** -options.skew for rank in range(len(made.names))]
        self.cores, self.pairs = ({key: _kept(found, options) for key, found in CORES.items()}, _kept(PAIRS, options))
        self.decoys, self.rumours = _kept(DECOYS, options), _kept(RUMOURS, options)
        self.openers, self.hedges, self.tails, self.others, self.first = (
            _kept(found, options) for found in (OPENERS, HEDGES, TAILS, OTHERS, FIRST_LINES)
        )

    def posts(self) -> list[tuple[str, list[dict[str, str]]]]:
        """What one user writes, with what each text says."""
        lower, found = self.draw.random() < LOWER, []
        for name in self.draw.choices(self.world.names, self.weights, k=POSTS):
            self.said = []
            text = self.post(name)
            found.append((text.lower() if lower else text, self.said))
        return found

    def post(self, name: str) -> str:
        """A text about a creature."""
        draw, left = self.draw, self.draw.sample(ATTRIBUTES, TOLD)
        said: list[str] = []
        if draw.random() < 0.15:
            said.append(self._filled(draw.choice(self.first), name, {}, first=True))
        while left:
            pairs = [each for each in self.pairs if set(each[0]) <= set(left)]
            if pairs and draw.random() < 0.5:
                asked, core = draw.choice(pairs)
            else:
                asked, core = (left[0],), draw.choice(self.cores[left[0]])
            left = [each for each in left if each not in asked]
            said.append(self._sentence(name, asked, core, first=not said))
            if draw.random() < 0.15:
                said.append(self._aside(name))
        if draw.random() < 0.3:
            said.insert(draw.choice((0, len(said))), draw.choice(self.others))
        text = " ".join(said)
        return self._misspelt(text) if draw.random() < MISSPELT else text

    def _sentence(self, name: str, asked: Sequence[str], core: str, first: bool) -> str:
        draw, answers = self.draw, {}
        for each in asked:
            wrong = draw.random() < WRONG
            answers[each] = self._any(name, each) if wrong else self.world.truth[name, each]
        told = {each: in_words(draw, each, answer) for each, answer in answers.items()}
        self.said += [{"name": name, "attribute": each, "answer": stated(answers[each], told[each])} for each in asked]
        if len(asked) == 1:
            told |= {"a": told[asked[0]], "b": in_words(draw, asked[0], self._any(name, asked[0]))}
        opener = draw.choice(self.openers) if first else ""
        core = f"{opener} {draw.choice(self.hedges)} {core}{draw.choice(self.tails)}"
        return self._filled(core, name, told, first) + draw.choice(".....!")

    def _aside(self, name: str) -> str:
        draw = self.draw
        if draw.random() < 0.3:
            return draw.choice(self.others)
        other = draw.choice([each for each in self.world.names if each != name])
        plain = {each: self._any(other, each) for each in ATTRIBUTES}
        told = {each: in_words(draw, each, answer) for each, answer in plain.items()}
        found = draw.choice(self.rumours) if draw.random() < 0.3 else draw.choice(self.decoys)
        for each in ATTRIBUTES if found in self.decoys else ():
            if f"{{{each}}}" in found:
                self.said.append({"name": other, "attribute": each, "answer": stated(plain[each], told[each])})
        return self._filled(found, name, told | {"m": other}, first=False) + "."

    def _filled(self, core: str, name: str, told: dict[str, str], first: bool) -> str:
        if not first and self.draw.random() < 0.6:
            pronoun = self.draw.choice(PRONOUNS)
            core = core.replace("{n}'s", "its").replace("a {n}", pronoun).replace("{n}", pronoun)
        text = " ".join(core.format(n=name, **told).split())
        return text[0].upper() + text[1:]

    def _any(self, name: str, attribute: str) -> str:
        return any_answer(self.draw, self.world, name, attribute)

    def _misspelt(self, text: str) -> str:
        words = text.split(" ")
        at = self.draw.randrange(len(words))
        if len(word := words[at]) > 3:
            place = self.draw.randrange(1, len(word) - 1)
            swapped = word[:place] + word[place + 1] + word[place] + word[place + 2 :]
            words[at] = self.draw.choice((swapped, word[:place] + word[place + 1 :]))
        return " ".join(words)


def _kept(parts: Sequence[Any], options: Options) -> list[Any]:
    """The parts to write with; empty ones are in every share."""
    ranked = sorted({part for part in parts if part}, key=lambda part: crc32(str(part).encode()))
    left_out = {"all": set(), "held": set(ranked) - set(ranked[::3]), "seen": set(ranked[::3])}[options.parts]
    return [part for part in parts if part not in left_out]


def tables(options: Options) -> dict[str, pa.Table]:
    """The tables of each file, by its name."""
    draw = random.Random(f"world {options.seed}")
    names = invented(draw, options.names)
    made, others = world(draw, names), world(draw, invented(draw, PUBLIC_NAMES, names))
    writer = Writer(made, options, f"posts {options.seed}")
    written = [(f"user {user}", *post) for user in range(options.users) for post in writer.posts()]
    private = [{"user": user, "text": text} for user, text, _ in written]
    statements = [{"row": row, **each} for row, (_, _, said) in enumerate(written) for each in said]
    outside = Writer(others, options, f"public {options.seed}")
    public = [{"text": text} for _ in range(PUBLIC_POSTS // POSTS) for text, _ in outside.posts()]
    truth = [{"name": name, "attribute": each, "answer": answer} for (name, each), answer in made.truth.items()]
    questions = [
        {**row, "question": phrase.format(n=row["name"])} for row in truth for phrase in QUESTIONS[row["attribute"]]
    ]
    found = {"private": private, "statements": statements, "truth": truth, "questions": questions, "public": public}
    return {name: pa.Table.from_pylist(rows) for name, rows in found.items()}


def prepare(options: Options, out: Path) -> None:
    """Write all files."""
    out.mkdir(parents=True, exist_ok=True)
    for name, table in tables(options).items():
        pq.write_table(table, out / f"{name}.parquet", compression="zstd")
    (out / "schema.yaml").write_text(yaml.safe_dump({"knowledge": SCHEMA}, sort_keys=False, width=120))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=Options.users)
    parser.add_argument("--names", type=int, default=Options.names)
    parser.add_argument("--seed", type=int, default=Options.seed)
    parser.add_argument("--skew", type=float, default=Options.skew)
    parser.add_argument("--parts", choices=("all", "seen", "held"), default=Options.parts)
    parser.add_argument("--out", type=Path, required=True)
    arguments = vars(parser.parse_args())
    out = arguments.pop("out")
    prepare(Options(**arguments), out)
