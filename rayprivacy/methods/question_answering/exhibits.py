"""What the report shows of a question set: all of it was released, or is public."""

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rayprivacy.core.files import Json, read_json
from rayprivacy.questions.phrases import divergence, question_type
from rayprivacy.questions.public import public_pairs
from rayprivacy.questions.settings import QuestionsConfig
from rayprivacy.runs.method import Chart, Table
from rayprivacy.runs.questions_folder import TABLE
from rayprivacy.runs.questions_plan import STAGES

SHOWN, SEED = 12, 12
BINS = 10  # of values, each with as many questions
_COLUMNS = ("question", "answer", "label", "value", "kept")


def of_set(folder: Path, config: QuestionsConfig) -> list[Chart | Table]:
    """Charts and tables of a question set that is whole."""
    found, asked = read_json(folder / STAGES), pq.read_table(folder / TABLE)
    public = [question for _, question in public_pairs(config.pairs)] if config.pairs else []
    funnel = [(name.replace("_", " "), f"{count:,}") for name, count in found["counts"].items()]
    funnel.append(("kept by", found["kept_by"]))
    if why := found.get("retriever", {}).get("left_out"):
        funnel.append(("retriever", f"none: {why}"))
    return [
        *_by_value(asked),
        Table("From passages to the questions that are kept", ("what", "how many"), funnel, internal=False),
        *([_types(asked, public)] if public else []),
        Table("Twelve questions, drawn and not chosen", _COLUMNS, _drawn(asked), internal=False),
    ]


def _types(asked: pa.Table, public: Sequence[str]) -> Table:
    kept = asked.filter(asked["kept"])["question"].to_pylist()
    ours, theirs = (Counter(map(question_type, each)) for each in (kept, public))
    rows = [(kind, _share(ours, kind), _share(theirs, kind)) for kind, _ in (ours + theirs).most_common()]
    distance = ("KL from public ones, nats x 100", f"{divergence(kept, public):.1f}" if kept else "", "0")
    columns = ("first word", "kept", "public pairs")
    return Table("First words of questions, beside public ones", columns, [*rows, distance], internal=False)


def _share(counts: Counter[str], kind: str) -> str:
    return f"{counts[kind] / max(1, counts.total()):.1%}"


def _by_value(asked: pa.Table) -> list[Chart]:
    """The share that is kept in each tenth of the questions by value; nothing where there are no values."""
    values, kept = (asked[name].to_numpy() for name in ("value", "kept"))
    known = np.isfinite(values.astype(float))
    values, kept = values[known], kept[known]
    if len(values) < BINS:
        return []
    tenths = np.array_split(np.argsort(values, kind="stable"), BINS)
    points = [(float(values[each].mean()), float(kept[each].mean())) for each in tenths]
    chart = Chart(
        "kept-by-value",
        "Share of questions that is kept, by their value",
        across="value",
        up="share kept",
        series={"questions": points},
        internal=False,
    )
    return [chart]


def _drawn(asked: pa.Table) -> list[tuple[str, ...]]:
    places = sorted(random.Random(SEED).sample(range(len(asked)), min(SHOWN, len(asked))))
    return [_cells(row) for row in asked.take(places).to_pylist()]


def _cells(row: Json) -> tuple[str, ...]:
    value: Any = row["value"]
    answer = next(iter(row["answers"]["text"]), "")
    number = "" if value is None or np.isnan(value) else f"{value:.2f}"
    return row["question"], answer, row["attribution"] or "", number, "yes" if row["kept"] else ""
