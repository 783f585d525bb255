"""A whole set of questions about public pages, as the command leaves it, without the minutes in which it is asked."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from public_pages import asked_pages, write_asked

from rayprivacy.questions.settings import parse_questions
from rayprivacy.questions.table import ASKED, finished
from rayprivacy.runs.files import overridden


def write_set(folder: Path, base: Path, **changes: Any) -> Path:
    """A set in which every other question is about the wrong sentence, and its public files beside it."""
    keys = write_asked(folder) | {"questions.asker.base": str(base), "questions.judge": None} | changes
    settings = parse_questions(overridden({}, keys)).model_dump(mode="json")
    rows = []
    for number, row in enumerate(asked_pages(30, 3)):
        evidence = str(row["context"]).rpartition(". ")[2] if number % 2 else str(row["sentence"])
        whole = {"document": number, "passage": str(number), "evidence": evidence, "answer_kind": "span"}
        rows.append(row | whole | {"evidence_start": str(row["context"]).index(evidence)})
    out = folder / "set"
    out.mkdir()
    pq.write_table(finished(pa.Table.from_pylist(rows, ASKED), {}, 0, "public"), out / "questions.parquet")
    inputs = {"source": "pages.parquet", "text": "text", "document": None, "stamp": "", "questions": settings}
    (out / "stages.json").write_text(json.dumps({"inputs": inputs, "origin": "public", "counts": {}}))
    return out


def write_space(folder: Path, **blocks: Any) -> Path:
    """A space file for the set of a folder."""
    usual = {
        "release": "set",
        "charging": "free",
        "fixed": {"questions": {"keep": {"by": "value"}, "value": {"iterations": 30, "estimators": 2}}},
        "search": {
            "questions.value.inner_rate": {"loguniform": [0.1, 1.0]},
            "questions.keep.share": {"uniform": [0.2, 0.9]},
        },
        "metric": {"name": "annotated_accuracy"},
        "searcher": "random",
        "trials": 3,
    }
    path = folder / "space.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in (usual | blocks).items() if value is not None}))
    return path
