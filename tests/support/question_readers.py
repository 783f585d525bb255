"""Readers of question sets as the documentation of other tools has them, for tools that are not installed."""

import csv
import json
from pathlib import Path
from typing import Any


def read_beir(folder: Path, split: str) -> tuple[dict[str, dict[str, str]], dict[str, str], dict[str, dict[str, int]]]:
    """As BEIR's `GenericDataLoader`: corpus, queries of the split, and the passages that are right for them."""
    lines = [json.loads(line) for line in (folder / "corpus.jsonl").read_text("utf-8").splitlines()]
    corpus = {line["_id"]: {"text": line["text"], "title": line["title"]} for line in lines}
    lines = [json.loads(line) for line in (folder / "queries.jsonl").read_text("utf-8").splitlines()]
    queries = {line["_id"]: line["text"] for line in lines}
    with (folder / "qrels" / f"{split}.tsv").open(encoding="utf-8") as file:
        rows = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_MINIMAL)
        next(rows)  # it skips a header, whatever stands there
        qrels: dict[str, dict[str, int]] = {}
        for query, passage, score in rows:
            qrels.setdefault(query, {})[passage] = int(score)
    return corpus, {query: queries[query] for query in qrels}, qrels


def read_ragas(path: Path) -> list[dict[str, Any]]:
    """As `EvaluationDataset.from_jsonl` of ragas: samples of one turn, whose fields have these types."""
    kinds = {"user_input": str, "reference": str, "reference_contexts": list}
    samples = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    for sample in samples:
        if any(not isinstance(sample[name], kind) for name, kind in kinds.items()) or sample.keys() != kinds.keys():
            raise ValueError("no sample of ragas")
    return samples


def read_pairs(path: Path) -> list[tuple[str, str, str]]:
    """As sentence-transformers takes a dataset for its triplet losses: columns by their order, all of them texts."""
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    if any([*row] != ["anchor", "positive", "negative"] for row in rows):
        raise ValueError("no triplets: each column is an input of the loss")
    return [tuple(row.values()) for row in rows]
