"""Private rows become units: one per user or per record, behind their control code, cut where they are too long."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rayprivacy.core.keys import Key
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.manifest import write_part
from rayprivacy.dpsgd import units
from rayprivacy.dpsgd.sampler import PoissonSampler, unit_tag
from rayprivacy.dpsgd.units import Reading, UnitFile, documents_of, read_units, shares_of_rank

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
    found = read_units(shards, range(2), tiny_backbone, Key.for_tests(), _reading())
    assert [len(unit.documents) for unit in found] == [2, 3]
    assert [unit.tag for unit in found] == [unit_tag(Key.for_tests(), "user", name) for name in ("ann", "bob")]


def test_a_record_is_a_unit_of_its_own(shards: Path, tiny_backbone: Any) -> None:
    reading = _reading(PrivacyUnit.RECORD)
    found = read_units(shards, range(2), tiny_backbone, Key.for_tests(), reading)
    assert [len(unit.documents) for unit in found] == [1] * 5
    assert len({unit.tag for unit in found}) == 5  # one text of two people is two records


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
    assert documents_of([], tiny_backbone, _reading()) == []


def _many(shards: Path, split: bool) -> Path:
    """Two parts of twenty users; where parts are split, each part is three files."""
    shards.mkdir()
    for part in range(2):
        rows = [(f"user-{part}-{user:02d}", record, f"the sun is out on day {user} and {record}") for user in range(20)
                for record in range(1 + user % 3)]  # fmt: skip
        users, records, texts = zip(*rows, strict=True)
        columns = {"shard": pa.array([part] * len(rows), pa.int32()), "user": users}
        columns |= {"record": pa.array(records, pa.int32()), "text": pa.array(texts, pa.large_string())}
        table = pa.table(columns | {"topic": pa.array([None] * len(rows), pa.string())})
        cuts = [0, *([users.index(f"user-{part}-07"), users.index(f"user-{part}-13")] if split else []), len(rows)]
        for number, (start, end) in enumerate(pairwise(cuts)):
            write_part(table.slice(start, end - start), part, Key.for_tests(), shards, number=number)
    return shards


def test_files_ranks_and_slices_change_nothing_about_who_is_sampled(
    tmp_path: Path, tiny_backbone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight ranks share two parts of three files: together they sample what one rank does of two whole files."""
    monkeypatch.setattr(units, "_AT_ONCE", 3)
    key, sampled = Key.for_tests(), {}
    for world, split in ((1, False), (8, True)):
        folder = _many(tmp_path / f"{world}", split)
        ranks = []
        for number in range(world):
            own = units.each_unit(folder, shares_of_rank(2, number, world), tiny_backbone, key, _reading())
            ranks.append(PoissonSampler(key, "run", 0.4, UnitFile(tmp_path / "units", own), 2))
        sampled[world] = [
            sorted([[each.ids.tolist() for each in unit] for rank in ranks for unit in rank.sample(step)])
            for step in range(6)
        ]
    assert sampled[8] == sampled[1]
    assert 40 < sum(map(len, sampled[1])) < 150
