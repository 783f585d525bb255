"""Files in the shape of SMCalFlow's, small: dialogues of a calendar assistant with their parse trees."""

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from small_trees import DAYS, FUNCTIONS, pair

TURNS = 2


def write_smcalflow(folder: Path, dialogues: int = 60, dev: int = 12) -> Path:
    """Training dialogues and dev dialogues, and the names of all functions."""
    dice, rows = random.Random(3), list[dict[str, Any]]()
    for number in range(dialogues + dev):
        for _ in range(TURNS):
            text, tree = pair(dice)
            split = "train" if number < dialogues else "dev"
            dialogue = {"split": split, "dialogue_id": f"dialogue {number}", "skip": False}
            rows.append(dialogue | {"user_utterance": text, "lispress": tree})
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), folder / "smcalflow_v2_valid.parquet")
    listed = [[name, 1] for name in (*FUNCTIONS, *DAYS.values())]
    (folder / "smcalflow_functions.json").write_text(json.dumps({"functions": listed}))
    return folder
