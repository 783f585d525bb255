"""Public pages as an encyclopedia has them: paragraphs about made-up places, whose facts stand in several of them."""

import random
from pathlib import Path

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
