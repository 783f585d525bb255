"""Private rows become units: one per user or per record, behind their control code, cut where they are too long."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rayprivacy.core.keys import Key
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.parts import write_part
from rayprivacy.dpsgd.sampler import unit_tag
from rayprivacy.dpsgd.units import Reading, documents_of, read_units

ROWS = [
    ("ann", "hello how are you today", "food"),
    ("ann", "the sun is out", None),
    ("bob", "we should meet tomorrow at the station", "pets"),
    ("bob", "the sun is out", "pets"),
    ("bob", "could you tell me", "pets"),
]


def _prefix(labels: Any) -> str:
    return f"topic: {labels['topic']}\n"


def _reading(unit: PrivacyUnit = PrivacyUnit.USER, most: int = 50) -> Reading:
    return Reading(unit, ("topic",), _prefix, most)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Ann in part 0 and Bob in part 1."""
    for part, user in enumerate(("ann", "bob")):
        own = [row for row in ROWS if row[0] == user]
        table = pa.table(
            {
                "shard": pa.array([part] * len(own), pa.int32()),
                "user": [row[0] for row in own],
                "record": pa.array(range(len(own)), pa.int32()),
                "text": pa.array([row[1] for row in own], pa.large_string()),
                "topic": pa.array([row[2] for row in own], pa.string()),
            }
        )
        write_part(table, part, Key.for_tests(), tmp_path)
    return tmp_path


def test_all_records_of_a_user_are_one_unit(shards: Path, tiny_backbone: Any) -> None:
    units = read_units(shards, range(2), tiny_backbone, Key.for_tests(), _reading())
    assert [len(unit.documents) for unit in units] == [2, 3]
    assert [unit.tag for unit in units] == [unit_tag(Key.for_tests(), "user", name) for name in ("ann", "bob")]


def test_a_record_is_a_unit_of_its_own(shards: Path, tiny_backbone: Any) -> None:
    reading = _reading(PrivacyUnit.RECORD)
    units = read_units(shards, range(2), tiny_backbone, Key.for_tests(), reading)
    assert [len(unit.documents) for unit in units] == [1] * 5
    assert len({unit.tag for unit in units}) == 5  # one text of two people is two records


def test_a_part_holds_its_own_users_whoever_reads_it(shards: Path, tiny_backbone: Any) -> None:
    together = read_units(shards, range(2), tiny_backbone, Key.for_tests(), _reading())
    apart = [unit for part in (1, 0) for unit in read_units(shards, [part], tiny_backbone, Key.for_tests(), _reading())]
    assert {unit.tag for unit in apart} == {unit.tag for unit in together}


def test_a_document_is_start_code_text_end_and_the_code_carries_no_loss(tiny_backbone: Any) -> None:
    rows = [{"text": text, "topic": topic} for _, text, topic in ROWS]
    for row, document in zip(rows, documents_of(rows, tiny_backbone, _reading()), strict=True):
        ids = document.ids.tolist()
        assert ids[: document.first_target] == tiny_backbone.prefix(_prefix(row))
        assert ids[-1] == tiny_backbone.end
        assert tiny_backbone.text(ids[document.first_target :]) == row["text"]


def test_a_long_text_is_cut_and_does_not_end(tiny_backbone: Any) -> None:
    rows = [{"text": text, "topic": topic} for _, text, topic in ROWS]
    whole = documents_of(rows, tiny_backbone, _reading())
    for document, long in zip(documents_of(rows, tiny_backbone, _reading(most=3)), whole, strict=True):
        assert len(document.ids) == document.first_target + 3
        assert document.ids.tolist() == long.ids.tolist()[: len(document.ids)]
        assert document.ids[-1] != tiny_backbone.end


def test_a_text_of_exactly_the_most_tokens_ends(tiny_backbone: Any) -> None:
    row = {"text": "the sun is out", "topic": "food"}
    tokens = len(tiny_backbone.tokenizer.encode(row["text"], add_special_tokens=False))
    document = documents_of([row], tiny_backbone, _reading(most=tokens))[0]
    assert document.ids[-1] == tiny_backbone.end


def test_no_rows_are_no_documents(tiny_backbone: Any) -> None:
    assert documents_of([], tiny_backbone, _reading()) == []
