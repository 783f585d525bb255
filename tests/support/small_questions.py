"""Small private passages with what people asked about them, public pairs and annotations, and a recipe on them."""

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from small_jobs import Job, small_corpus_block, small_privacy

USERS, SENTENCES = 24, 3
THINGS = ("soup", "bread", "the train", "the station", "apples", "a long book")
PLACES = ("at the market", "at home", "at the library", "over the sea")
KINDS = ("what do they like", "where do they like")
MARK, ASKED_MARK = "zqxjvk", "vkqxzj"  # of private text alone: no public text has them


def sentence(dice: random.Random) -> tuple[str, str, str]:
    """A sentence, a question about it, and the answer."""
    thing, place = dice.choice(THINGS), dice.choice(PLACES)
    kind = dice.choice(KINDS)
    question, answer = (f"{kind} {place}", thing) if kind == KINDS[0] else (f"{kind} {thing}", place)
    return f"they like {thing} {place} this morning .", f"{question} ?", answer


def passage(dice: random.Random) -> tuple[str, list[dict[str, str]]]:
    found = [sentence(dice) for _ in range(SENTENCES)]
    asked = [{"question": question, "answer": text} for text, question, _ in found]
    return " ".join(text for text, *_ in found), asked


def write_passages(folder: Path, mark: str = "", asked_mark: str = "") -> None:
    """`talk.parquet`: private passages, a user each; marks stand in all of them, and in all that was asked."""
    dice, rows = random.Random(1), []
    for user in range(USERS):
        text, asked = passage(dice)
        if asked_mark:
            asked = [each | {"question": f"{asked_mark} {each['question']}"} for each in asked]
            asked.append({"question": asked_mark, "answer": asked_mark})
        rows.append({"who": f"user-{user}", "said": f"{mark} {text}".strip(), "asked": json.dumps(asked)})
    pq.write_table(pa.Table.from_pylist(rows), folder / "talk.parquet")


def write_public(folder: Path) -> None:
    """`pairs.parquet`, `annotations.parquet` and `public.parquet`, of other people."""
    dice = random.Random(2)
    pairs = [dict(zip(("sentence", "question"), sentence(dice)[:2], strict=True)) for _ in range(60)]
    pq.write_table(pa.Table.from_pylist(pairs), folder / "pairs.parquet")
    annotated = []
    for number in range(20):
        found = [sentence(dice) for _ in range(SENTENCES)]
        context = " ".join(text for text, *_ in found)
        _, question, answer = found[0]
        answers = {"text": [answer], "answer_start": [context.index(answer)]}
        row = {"title": f"title {number}", "context": context, "question": question, "answers": answers}
        annotated.append(row)
    pq.write_table(pa.Table.from_pylist(annotated), folder / "annotations.parquet")
    public = [{"passage": passage(dice)[0]} for _ in range(60)]
    pq.write_table(pa.Table.from_pylist(public), folder / "public.parquet")


def small_recipe(folder: Path, base: Path) -> dict[str, Any]:
    return {
        "method": "question_answering",
        "corpus": small_corpus_block(folder) | {"labels": ["asked"], "max_records_per_user": 2},
        "privacy": small_privacy(folder) | {"epsilon": 1.0},
        "model": {"base": str(base), "dtype": "float32"},
        "pretrain": {
            "source": str(folder / "public.parquet"),
            "text": "passage",
            **{"steps": 60, "batch": 8, "max_tokens": 64, "learning_rate": 0.003},
        },
        "training": {"sampling_rate": 0.4, "expected_batch": 10, "steps": 2, "chunk": 1, "max_tokens": 48},
        "generation": {"texts": 12, "max_tokens": 64, "engine": "transformers"},
        "questions": {
            "pairs": {"source": str(folder / "pairs.parquet"), "evidence": "sentence", "question": "question"},
            "heldout": "asked",
            "phrases": {"most": 2},
            "asker": {
                "engine": "transformers",
                "adapter": {"kind": "full"},
                **{"steps": 40, "learning_rate": 0.003, "max_tokens": 32, "question_tokens": 24},
            },
            "entities": "rules",
            "judge": {"encoder": None},
            "value": {
                "annotations": str(folder / "annotations.parquet"),
                **{"iterations": 3, "batch": 8, "inner_steps": 2, "rollouts": 2, "estimators": 1},
            },
            "keep": {"by": "measured", "attributable": False, "distinct": False},
        },
        "evaluation": {"users": 12},
        "resources": {"cpus": 1, "actors": 1},
    }


def small_job(folder: Path, base: Path, mark: str = "", asked_mark: str = "", **blocks: Any) -> Job:
    write_passages(folder, mark, asked_mark)
    write_public(folder)
    recipe = small_recipe(folder, base)
    return Job.of(folder, recipe | {name: recipe.get(name, {}) | keys for name, keys in blocks.items()})
