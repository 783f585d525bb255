"""SanText from end to end on two corpora that differ in words alone: everything released has one shape."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from santext_bench import ledger_of, santext_bench
from toy_bench import QUIET, Bench

from rayprivacy.api import Result
from rayprivacy.corpus.manifest import ShardManifest
from rayprivacy.methods.registry import method_of
from rayprivacy.runs.drive import drive
from rayprivacy.sanitize.documents import split, tidy

pytestmark = pytest.mark.usefixtures("local_ray")

# One word against another, in rows of (user, mood, text, the same with other words).
ROWS = [
    ("ann", "glad", "the people was good", "the people was good"),
    ("ann", "glad", "the people was bad", "the people was good"),  # two documents become equal
    ("ann", None, "good " + "people " * 12, "A" * 1990 + " people" * 12),  # a pasted key, say
    ("ann", "None", "the end", "the \x1c"),
    ("ann", None, "the end", "the end"),
    ("ann", None, " ", "\ue000"),
    ("bob", "sad", "null", "None"),
    ("bob", "sad", "good", "\u200b"),
    ("bob", "sad", "the city", "the \U0001f642"),
    ("bob", None, "caf\u00e9 city", "cafe\u0301 cafe\u0301"),
    ("bob", None, "", "\u3000"),
    ("bob", "None", "NaN 7 true", "nan \u0667 was"),
]
# Each is one word wherever it stands, so that words of the released text can be counted.
VOCABULARY = "the people was good bad end city null none true home bread soup tea".split()  # noqa: SIM905
LENGTHS = [4, 4, 13, 2, 2, 0, 1, 1, 2, 2, 0, 3]


@pytest.fixture
def bench(tmp_path: Path, tiny_base: Path) -> Bench:
    found = santext_bench(tmp_path, tiny_base)
    np.savez(found.folder / "plain.npz", words=VOCABULARY, vectors=np.eye(len(VOCABULARY)))
    return found


def _run(bench: Bench, column: int, name: str, **more: Any) -> Result:
    """A run up to its figures."""
    corpus = bench.folder / "corpus.jsonl"
    corpus.write_text("\n".join(json.dumps({"who": row[0], "mood": row[1], "said": row[column]}) for row in ROWS))
    plain = {"vectors_file": str(bench.folder / "plain.npz"), "words": len(VOCABULARY), "entities": []}
    more |= {"sanitize": {"keep": 0.5, "max_tokens": 6, **plain}, "evaluation.attacked": 0, "corpus.labels": ["mood"]}
    recipe = bench.load({"privacy.ledger": ledger_of(bench, name), "corpus.source": str(corpus), **more})
    return Result(drive(method_of(recipe), recipe, bench.folder / name, console=QUIET).run.root)


def _words(text: str) -> int:
    return len(split(tidy(text))[0])


def _shape(result: Result) -> dict[str, Any]:
    """Everything that leaves, but for which words were drawn and the head of the ledger, which knows their digest."""
    rows = pq.read_table(result.path / "sanitized.parquet")
    certificate = json.loads((result.path / "certificate.json").read_text())
    return {
        "columns": rows.schema,
        **{name: rows[name].to_pylist() for name in ("document", "mood")},
        "words": [_words(text) for text in rows["text"].to_pylist()],
        "markdown": (result.path / "certificate.md").read_text().replace(certificate.pop("ledger_head"), ""),
        "certificate": certificate,
        "lengths": result.metrics["synthetic"]["words"]["histogram"]["counts"],
        "files": sorted(path.name for path in result.path.iterdir()),
    }


@pytest.mark.parametrize("unit", ["user", "record"])
def test_neighbours_leave_files_of_one_shape(bench: Bench, unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coins of two corpora have nothing to do with each other; here both have those of one."""
    monkeypatch.setattr(ShardManifest, "corpus_digest", lambda *_: "d" * 64)
    more = {"privacy.unit": unit, "corpus.max_records_per_user": None if unit == "record" else 4}
    first = _shape(_run(bench, 2, "first", **more))
    assert first == _shape(_run(bench, 3, "second", **more, **{"resources.parts": 1}))
    if unit == "record":
        assert sorted(first["words"]) == sorted(min(length, 6) for length in LENGTHS)
        assert len(set(first["document"])) == len(ROWS)
    else:
        assert len(first["words"]) == 8


def test_the_rows_of_these_corpora_are_as_long_as_each_other() -> None:
    assert [_words(row[2]) for row in ROWS] == [_words(row[3]) for row in ROWS] == LENGTHS
