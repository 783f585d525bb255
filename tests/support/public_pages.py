"""Public pages as an encyclopedia has them: paragraphs about made-up places, whose facts stand in several of them."""

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_NAMES = [
    *("Alder", "Birch", "Cedar", "Dorn", "Elm", "Fawley", "Garnet", "Holm"),
    *("Iver", "Juniper", "Kestrel", "Linden", "Maple", "Norton", "Oakham", "Pryor"),
]
_WORKS = ["mill", "bridge", "theatre", "tannery", "harbour", "brewery", "school", "library", "market", "chapel"]
_MONTHS = ["January", "March", "April", "June", "July", "September", "November"]


def paragraphs(number: int, seed: int) -> list[str]:
    """Three paragraphs about one place; each tells a founder, a year and a count, and the others tell of them again."""
    draw = random.Random(f"{seed} {number}")
    first, second, person = draw.sample(_NAMES, 3)
    year, month, many = draw.randint(1500, 1999), draw.choice(_MONTHS), draw.randint(20, 900)
    one, other, third = draw.sample(_WORKS, 3)
    return [
        f"The {one} of {first} was opened in {month} {year} by Mr. {person}, who paid for its roof. Before that day"
        f" people of the valley walked to {second} Lake for their trade. In {year} the {one} had {many} workers.",
        f"Mr. {person} came to the valley with a letter and an old horse. He built the {other} beside {second} Lake and"
        f" gave work to {many} workers from the hills. Nobody there had seen a {other} as large as his.",
        f"After the fire of {year} the town council closed the {third} near {second} Lake. It had stood since"
        f" {month} {year}, and Mr. {person} wrote of it in his letters to the county.",
    ]


def write_pages(path: Path, pages: int, seed: int = 0) -> Path:
    """A Parquet file of paragraphs, each with the title of its page."""
    rows = [
        {"article": f"Place {number}", "text": text} for number in range(pages) for text in paragraphs(number, seed)
    ]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def asked_pages(pages: int, seed: int) -> list[dict[str, object]]:
    """Questions as people ask them about the first paragraph of pages, with sentence, answer and its place."""
    rows = []
    for number in range(pages):
        text = paragraphs(number, seed)[0]
        opened, _, counted = (f"{each.rstrip('.')}." for each in text.replace("Mr. ", "Mr.~").split(". "))
        opened = opened.replace("~", " ")
        one, person, many = opened.split()[1], opened.split(",")[0].split(" by ")[1], counted.split()[5]
        date = opened.split(" in ")[1].split(" by ")[0]
        asked = [
            (opened, f"who opened the {one} ?", person),
            (opened, f"when was the {one} opened ?", date),
            (counted, f"how many workers had the {one} ?", many),
        ]
        for sentence, question, answer in asked:
            start = text.index(sentence) + sentence.index(answer)
            row = {"title": f"Page {number}", "context": text, "sentence": sentence, "question": question}
            rows.append(row | {"answers": {"text": [answer], "answer_start": [start]}})
    return rows


def write_asked(folder: Path, pages: int = 16) -> dict[str, object]:
    """Public pairs and annotations in files of a folder; returns keys of `questions` that name them, and are quick."""
    for name, seed in (("pairs", 7), ("annotations", 8)):
        pq.write_table(pa.Table.from_pylist(asked_pages(pages, seed)), folder / f"{name}.parquet")
    keys = {
        "pairs.source": folder / "pairs.parquet",
        "pairs.evidence": "sentence",
        "value.annotations": folder / "annotations.parquet",
        "value.iterations": 20,
        "value.estimators": 1,
        "value.batch": 20,
        "asker.steps": 60,
        "asker.learning_rate": 0.003,
        "asker.adapter.kind": "full",
        "asker.max_tokens": 24,
        "asker.question_tokens": 16,
        "asker.engine": "transformers",
        "judge.encoder": None,
        "phrases.most": 1,
        "evidence.most": 2,
        "entities": "rules",
        "keep.by": "measured",
    }
    return {f"questions.{name}": str(value) if isinstance(value, Path) else value for name, value in keys.items()}


def content(folder: Path) -> tuple[dict[str, bytes], Any, Any]:
    """Every file of a question set, but for the seconds: `stages.json` as its inputs and counts."""
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    stages = json.loads(files.pop("stages.json"))
    return files, stages["inputs"], stages["counts"]
