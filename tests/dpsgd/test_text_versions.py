"""Texts that change by step: the model reads the version of the step, and who takes part stays the same.

The method of these tests hides digits at first, shows them later, and learns to write a column of its own.
"""

import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from changing_noise import changing

from rayprivacy.core.errors import ConfigError, ReleaseError
from rayprivacy.core.keys import Key
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.manifest import write_part
from rayprivacy.dpsgd.batches import Document, physical_batches
from rayprivacy.dpsgd.engines.engine import StepNoise, make_engine
from rayprivacy.dpsgd.losses import row_losses
from rayprivacy.dpsgd.noise import KeyedNoise
from rayprivacy.dpsgd.sampler import PoissonSampler, Unit, unit_tag
from rayprivacy.dpsgd.settings import DpSgdConfig, EngineConfig, OptimizerConfig
from rayprivacy.dpsgd.units import Reading, documents_of, read_units
from rayprivacy.models.settings import AdapterConfig
from rayprivacy.models.trainable import trainable

KEY = Key.for_tests()
STEPS, SHOWN = 6, 3  # the second version is read from step 3 on
ROWS = [
    ("ann", "meet me at 5 today", "ask(meet)"),
    ("ann", "the sun is out", "tell(sun)"),
    ("bob", "call 123 or 456 tomorrow", "ask(call)"),
    ("bob", "how are you", "ask(you)"),
    ("bob", "we are 7 people", "tell(people)"),
    ("cat", "hello", "greet()"),
]


def _no_context(row: Any) -> str:
    return ""


def _redacted(row: Any, version: int) -> str:
    return str(row["text"]) if version else "".join("_" if each.isdigit() else each for each in row["text"])


def _lifted(step: int) -> int:
    return int(step >= SHOWN)


def _behind_its_parse(row: Any) -> str:
    return f"{row['parse']}\n"


def _parse(row: Any, version: int) -> str:
    return str(row["parse"])


PLAIN = Reading(PrivacyUnit.USER, (), _no_context, 50)
SCHEDULE = replace(PLAIN, text=_redacted, versions=2, version_of=_lifted)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All rows in part 0."""
    folder = tmp_path_factory.mktemp("shards")
    table = pa.table(
        {
            "shard": pa.array([0] * len(ROWS), pa.int32()),
            "user": [row[0] for row in ROWS],
            "record": pa.array([0, 1, 0, 1, 2, 0], pa.int32()),
            "text": pa.array([row[1] for row in ROWS], pa.large_string()),
            "parse": pa.array([row[2] for row in ROWS], pa.large_string()),
        }
    )
    write_part(table, 0, KEY, folder)
    return folder


def _texts(backbone: Any, documents: Any) -> list[str]:
    return [backbone.text(document.ids[document.first_target :].tolist()) for document in documents]


def test_a_unit_holds_every_version_of_its_rows(shards: Path, tiny_backbone: Any) -> None:
    units = read_units(shards, [0], tiny_backbone, KEY, SCHEDULE)
    plain = read_units(shards, [0], tiny_backbone, KEY, PLAIN)
    assert [unit.tag for unit in units] == [unit.tag for unit in plain]
    for unit, whole in zip(units, plain, strict=True):
        assert len(unit.later) == 1
        assert _texts(tiny_backbone, unit.documents_in(1)) == _texts(tiny_backbone, whole.documents_in(0))
    assert _texts(tiny_backbone, units[2].documents_in(0)) == _texts(tiny_backbone, units[2].documents_in(1))
    assert not any(each.isdigit() for text in _texts(tiny_backbone, units[1].documents_in(0)) for each in text)


def test_records_are_units_with_the_same_tags_whatever_is_read_of_them(shards: Path, tiny_backbone: Any) -> None:
    tags = [
        [unit.tag for unit in read_units(shards, [0], tiny_backbone, KEY, replace(each, unit=PrivacyUnit.RECORD))]
        for each in (PLAIN, SCHEDULE, replace(PLAIN, text=_parse))
    ]
    assert tags[0] == tags[1] == tags[2]
    assert len(set(tags[0])) == len(ROWS)


def test_context_and_text_are_functions_of_the_row(tiny_backbone: Any) -> None:
    """One method learns parses, another one texts behind their parses."""
    rows = [{"text": text, "parse": parse} for _, text, parse in ROWS]
    parses = documents_of(rows, tiny_backbone, replace(PLAIN, text=_parse))
    behind = documents_of(rows, tiny_backbone, replace(PLAIN, context=_behind_its_parse))
    for row, parse, text in zip(rows, parses, behind, strict=True):
        assert parse.ids[parse.first_target :].tolist() == [
            *tiny_backbone.tokenizer.encode(row["parse"], add_special_tokens=False),
            tiny_backbone.end,
        ]
        assert text.ids[: text.first_target].tolist() == tiny_backbone.prefix(_behind_its_parse(row))
        assert _texts(tiny_backbone, [text]) == [row["text"]]


@pytest.mark.parametrize("reading", [PLAIN, SCHEDULE])
def test_a_reading_goes_to_the_workers(reading: Reading) -> None:
    assert pickle.loads(pickle.dumps(reading)) == reading
    assert len(pickle.dumps(reading)) < 500


@pytest.mark.parametrize(("version_of", "wrong"), [(lambda step: step, "step 2 reads version 2"), (lambda _: -1, "-1")])
def test_a_version_that_there_is_not_is_refused(version_of: Callable[[int], int], wrong: str) -> None:
    SCHEDULE.check(STEPS)
    with pytest.raises(ReleaseError, match=f"{wrong}.* of 2"):
        replace(SCHEDULE, version_of=version_of).check(STEPS)


def test_versions_of_a_unit_have_the_same_rows() -> None:
    document = Document(np.array([0, 1], dtype=np.int32), 1)
    with pytest.raises(ConfigError, match="different numbers of documents"):
        Unit(unit_tag(KEY, "user", 1), (document, document), ((document,),))


def _numbered(user: int, version: int) -> tuple[Document, ...]:
    """Documents that say whose, which and of what version they are."""
    return tuple(Document(np.array([0, user, row, version], dtype=np.int32), 1) for row in range(1 + user % 5))


def test_coins_and_turns_do_not_depend_on_the_version() -> None:
    units = [
        Unit(unit_tag(KEY, "user", user), _numbered(user, 0), (_numbered(user, 1), _numbered(user, 2)))
        for user in range(200)
    ]
    versions = (0, 2, 1, 1, 0, 2)
    found = PoissonSampler(KEY, "run", 0.4, units, 2, versions.__getitem__)
    plain = PoissonSampler(KEY, "run", 0.4, units, 2)
    for step, version in enumerate(versions):
        read, first = (
            [[document.ids.tolist() for document in unit] for unit in sampler.sample(step)]
            for sampler in (found, plain)
        )
        assert len(read) > 40
        assert read == [[[0, user, row, version] for _, user, row, _ in unit] for unit in first]


def _after(shards: Path, backbone: Any, reading: Reading, step: int) -> dict[str, torch.Tensor]:
    """Weights after one step, from shards to optimizer."""
    units = read_units(shards, [0], backbone, KEY, reading)
    mechanism = changing((0.5,) * STEPS, sampling_rate=0.9)
    sampler = PoissonSampler(KEY, "run", mechanism.sampling_rate, units, 2, reading.version_of)
    training = DpSgdConfig(
        steps=STEPS, max_tokens=50, optimizer=OptimizerConfig(kind="sgd", learning_rate=1.0, schedule="constant")
    )
    model = trainable(backbone, AdapterConfig(kind="full"))
    noise = StepNoise(KeyedNoise(KEY, "run"), mechanism, 2.0)
    engine = make_engine(model, training, noise, EngineConfig(), row_losses)
    engine.step(step, physical_batches(sampler.sample(step), 64, backbone.end))
    return engine.state_dict()


@pytest.mark.usefixtures("one_thread")
def test_a_step_trains_on_the_version_that_it_reads(shards: Path, tiny_backbone: Any) -> None:
    redacted = replace(PLAIN, text=partial(_of_version, version=0))
    for step in (SHOWN - 1, SHOWN):
        found, hidden, shown = (_after(shards, tiny_backbone, reading, step) for reading in (SCHEDULE, redacted, PLAIN))
        same, other = (shown, hidden) if _lifted(step) else (hidden, shown)
        assert all(torch.equal(found[name], same[name]) for name in found)
        assert not all(torch.equal(found[name], other[name]) for name in found)


def _of_version(row: Any, _: int, version: int) -> str:
    return _redacted(row, version)
