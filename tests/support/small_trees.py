"""Small utterances with parse trees of the shape of Lispress, and a recipe of two-stage generation on them."""

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from small_jobs import Job, small_corpus_block, small_privacy

DAYS = {"today": "Today", "tomorrow": "Tomorrow", "on monday": "Monday"}
THINGS = ("lunch", "tea", "a run", "dinner")
FUNCTIONS = ("Yield", "Find", "Create", "Delete", "&", "Event.name_?", "Event.start_?", "?=", "?~=", "Any", "Confirm")
USERS, TURNS = 30, 4


def pair(dice: random.Random) -> tuple[str, str]:
    (day, name), thing = dice.choice(list(DAYS.items())), dice.choice(THINGS)
    return dice.choice(
        [
            (f"what is {day}", f"(Yield (Find (Event.start_? ({name})) (^(Event) Any)))"),
            (f"add {thing} {day}", f'(Yield (Create (& (Event.name_? (?= "{thing}")) (Event.start_? ({name})))))'),
            (f"no more {thing}", f'(Yield (Delete (Event.name_? (?~= "{thing}"))))'),
            ("yes please", "(Confirm)"),
        ]
    )


def pairs(seed: int, count: int) -> list[tuple[str, str]]:
    dice = random.Random(seed)
    return [pair(dice) for _ in range(count)]


def rows_of(seed: int, count: int) -> list[dict[str, str]]:
    return [{"said": said, "lispress": tree} for said, tree in pairs(seed, count)]


def write_corpus(folder: Path, users: int = USERS, turns: int = TURNS) -> None:
    """`talk.parquet`, private; `public.parquet`, public rows of other people; `api.txt`, the public list of names."""
    private = [{"who": f"user-{n // turns}", **each} for n, each in enumerate(rows_of(1, users * turns))]
    pq.write_table(pa.Table.from_pylist(private), folder / "talk.parquet")
    pq.write_table(pa.Table.from_pylist(rows_of(2, 80)), folder / "pub.parquet")
    (folder / "api.txt").write_text("\n".join([*FUNCTIONS, *DAYS.values()]))


def _object(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False, **more}


BOTH = ["intent", "slots"]
WORD = {"type": "string", "maxLength": 8}
SCHEMA = {
    "anyOf": [
        _object({"intent": {"const": intent}, "slots": _object(dict.fromkeys(slots, WORD))}, required=BOTH)
        for intent, slots in {"Play": ("artist", "track"), "Stop": ()}.items()
    ]
}


def write_requests(folder: Path, users: int = USERS, turns: int = TURNS) -> None:
    """`requests.parquet`, private, whose structures are JSON; `pairs.parquet` and `schema.json`, public."""
    for name, seed, people in (("requests", 1, users), ("pairs", 2, 20)):
        dice = random.Random(seed)
        rows = []
        for n in range(people * turns):
            said, structure = request(dice)
            rows.append({"who": f"user-{n // turns}", "said": said, "structure": structure})
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{name}.parquet")
    (folder / "schema.json").write_text(json.dumps(SCHEMA))


def request(dice: random.Random) -> tuple[str, str]:
    artist, track = dice.choice(("the band", "a girl")), dice.choice(("help", "home"))
    both = f"play {track} by {artist}", "Play", {"artist": artist, "track": track}
    said, intent, slots = dice.choice([both, (f"play {artist}", "Play", {"artist": artist}), ("stop it", "Stop", {})])
    return said, json.dumps({"intent": intent, "slots": slots})


def small_recipe(folder: Path, base: Path) -> dict[str, Any]:
    return {
        "method": "two_stage",
        "corpus": small_corpus_block(folder),
        "privacy": small_privacy(folder),
        "model": {"base": str(base), "dtype": "float32"},
        "parses": {"max_tokens": 64},
        "stages": {"trees": {"steps": 4}, "utterances": {"steps": 6}},
        "training": {"sampling_rate": 0.4, "expected_batch": 10, "chunk": 2, "max_tokens": 16},
        "generation": {"texts": 12, "max_tokens": 12, "engine": "transformers"},
        "resources": {"cpus": 1, "actors": 1},
    }


def small_job(folder: Path, base: Path, **blocks: Any) -> Job:
    write_corpus(folder)
    recipe = small_recipe(folder, base)
    return Job.of(folder, recipe | {name: recipe.get(name, {}) | keys for name, keys in blocks.items()})


PRETRAINING = {"steps": 120, "batch": 8, "max_tokens": 96, "learning_rate": 0.003}


def warm(folder: Path) -> dict[str, Any]:
    """Blocks of a run that begins from public pairs, and writes trees under the grammar."""
    return {
        "parses": {"max_tokens": 64, "grammar": "lispress", "functions": str(folder / "api.txt")},
        "pretrain": {"source": str(folder / "pub.parquet"), "text": "said", **PRETRAINING},
    }
