"""Private rows become units, behind their control code and cut where they are too long: in memory, on disk, by step."""

import pickle
import threading
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
import torch
from changing_noise import changing

from rayprivacy.core.errors import ConfigError, ReleaseError
from rayprivacy.core.keys import Key
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.manifest import write_part
from rayprivacy.dpsgd import units
from rayprivacy.dpsgd.batches import Document, ahead, physical_batches
from rayprivacy.dpsgd.engines.engine import StepNoise, make_engine
from rayprivacy.dpsgd.losses import row_losses
from rayprivacy.dpsgd.noise import KeyedNoise
from rayprivacy.dpsgd.sampler import PoissonSampler, Unit, unit_tag
from rayprivacy.dpsgd.settings import DpSgdConfig, EngineConfig, OptimizerConfig
from rayprivacy.dpsgd.units import Reading, UnitFile, documents_of, no_context, read_units, shares_of_rank
from rayprivacy.models.settings import AdapterConfig
from rayprivacy.models.trainable import trainable

KEY, STEPS, SHOWN = Key.for_tests(), 6, 3  # the second version is read from step 3 on
ROWS = [
    {"user": user, "record": record, "text": text, "topic": topic, "parse": parse}
    for user, record, text, topic, parse in (
        ("ann", 0, "meet me at 5 today", "food", "ask(meet)"),
        ("ann", 1, "the sun is out", None, "tell(sun)"),
        ("bob", 0, "call 123 or 456 tomorrow at the station", "pets", "ask(call)"),
        ("bob", 1, "the sun is out", "pets", "ask(you)"),
        ("bob", 2, "could you tell me", "pets", "tell(people)"),
        ("cat", 0, "hello", "food", "greet()"),
    )
]
KINDS = {"shard": pa.int32(), "record": pa.int32(), "text": pa.large_string(), "parse": pa.large_string()}
SCHEMA = pa.schema([(name, KINDS.get(name, pa.string())) for name in ("shard", *ROWS[0])])


def _table(part, rows):
    return pa.Table.from_pylist([{"shard": part, **row} for row in rows], SCHEMA)


def _redacted(row, version):
    return str(row["text"]) if version else "".join("_" if each.isdigit() else each for each in row["text"])


def _lifted(step):
    return int(step >= SHOWN)


CODED = Reading(PrivacyUnit.USER, ("topic",), lambda row: f"topic: {row['topic']}\n", 50)
PLAIN = Reading(PrivacyUnit.USER, (), no_context, 50)
SCHEDULE = replace(PLAIN, text=_redacted, versions=2, version_of=_lifted)  # digits are hidden at first
PARSES = replace(PLAIN, text=lambda row, _: row["parse"])
BEHIND = replace(PLAIN, context=lambda row: f"{row['parse']}\n")


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Ann in part 0, and the others in part 1."""
    folder = tmp_path_factory.mktemp("shards")
    for part, own in enumerate((ROWS[:2], ROWS[2:])):
        write_part(_table(part, own), part, KEY, folder)
    return folder


def _units(shards, backbone, reading, parts=(0, 1)):
    return list(read_units(shards, parts, backbone, KEY, reading))


def _texts(backbone, documents):
    return [backbone.text(document.ids[document.first_target :].tolist()) for document in documents]


def _ids(units):
    return [[document.ids.tolist() for document in unit] for unit in units]


def test_all_records_of_a_user_are_one_unit(shards, tiny_backbone):
    found = _units(shards, tiny_backbone, CODED)
    assert [len(unit.documents) for unit in found] == [2, 3, 1]
    assert [unit.tag for unit in found] == [unit_tag(KEY, "user", name) for name in ("ann", "bob", "cat")]
    apart = [unit for part in (1, 0) for unit in _units(shards, tiny_backbone, CODED, [part])]
    assert {unit.tag for unit in apart} == {unit.tag for unit in found}


def test_a_record_is_a_unit_of_its_own_whatever_is_read_of_it(shards, tiny_backbone):
    found = _units(shards, tiny_backbone, replace(CODED, unit=PrivacyUnit.RECORD))
    assert [len(unit.documents) for unit in found] == [1] * 6
    assert len({unit.tag for unit in found}) == 6  # one text of two people is two records
    plain, *others = [
        [unit.tag for unit in _units(shards, tiny_backbone, replace(each, unit=PrivacyUnit.RECORD))]
        for each in (PLAIN, SCHEDULE, PARSES)
    ]
    assert len(set(plain)) == 6
    assert others == [plain, plain]


@pytest.mark.parametrize("reading", [CODED, BEHIND, PARSES])
def test_a_document_is_start_context_text_end_without_loss_on_context(tiny_backbone, reading):
    for row, document in zip(ROWS, documents_of(ROWS, tiny_backbone, reading), strict=True):
        ids = document.ids.tolist()
        assert ids[: document.first_target] == tiny_backbone.prefix(reading.context(row))
        assert ids[-1] == tiny_backbone.end
        assert _texts(tiny_backbone, [document]) == [reading.text(row, 0)]


def test_a_long_text_is_cut_and_does_not_end(tiny_backbone):
    whole = documents_of(ROWS[:5], tiny_backbone, CODED)
    for document, long in zip(documents_of(ROWS[:5], tiny_backbone, replace(CODED, max_tokens=3)), whole, strict=True):
        assert len(document.ids) == document.first_target + 3
        assert document.ids.tolist() == long.ids.tolist()[: len(document.ids)]
        assert document.ids[-1] != tiny_backbone.end
    exactly = len(tiny_backbone.tokenizer.encode(ROWS[1]["text"], add_special_tokens=False))
    (fits,) = documents_of([ROWS[1]], tiny_backbone, replace(CODED, max_tokens=exactly))
    assert fits.ids[-1] == tiny_backbone.end
    assert documents_of([], tiny_backbone, CODED) == []


def _many(shards, split):
    """Two parts of twenty users; where parts are split, each part is three files."""
    shards.mkdir()
    for part in range(2):
        users = [f"user-{part}-{user:02d}" for user in range(20) for _ in range(1 + user % 3)]
        rows = [{"user": user, "record": at, "text": f"the sun is out on day {at}"} for at, user in enumerate(users)]
        cuts = [0, *([users.index(f"user-{part}-07"), users.index(f"user-{part}-13")] if split else []), len(rows)]
        for number, (start, end) in enumerate(pairwise(cuts)):
            write_part(_table(part, rows[start:end]), part, KEY, shards, number=number)
    return shards


def test_files_ranks_and_slices_change_nothing_about_who_is_sampled(tmp_path, tiny_backbone, monkeypatch):
    """Eight ranks share two parts of three files: together they sample what one rank does of two whole files."""
    monkeypatch.setattr(units, "_AT_ONCE", 3)
    sampled = {}
    for world, split in ((1, False), (8, True)):
        folder, ranks = _many(tmp_path / f"{world}", split), []
        for number in range(world):
            own = units.each_unit(folder, shares_of_rank(2, number, world), tiny_backbone, KEY, CODED)
            ranks.append(PoissonSampler(KEY, "run", 0.4, UnitFile(tmp_path / "units", own), 2))
        sampled[world] = [sorted(_ids(unit for rank in ranks for unit in rank.sample(step))) for step in range(6)]
    assert sampled[8] == sampled[1]
    assert 40 < sum(map(len, sampled[1])) < 150


def test_a_unit_holds_every_version_of_its_rows(shards, tiny_backbone):
    found, plain = (_units(shards, tiny_backbone, reading) for reading in (SCHEDULE, PLAIN))
    assert [unit.tag for unit in found] == [unit.tag for unit in plain]
    for unit, whole in zip(found, plain, strict=True):
        assert len(unit.later) == 1
        assert _texts(tiny_backbone, unit.documents_in(1)) == _texts(tiny_backbone, whole.documents_in(0))
    assert _texts(tiny_backbone, found[2].documents_in(0)) == _texts(tiny_backbone, found[2].documents_in(1))
    assert not any(each.isdigit() for text in _texts(tiny_backbone, found[1].documents_in(0)) for each in text)


def test_a_reading_is_small_and_goes_to_the_workers():
    assert pickle.loads(pickle.dumps(SCHEDULE)) == SCHEDULE
    assert len(pickle.dumps(SCHEDULE)) < 500


@pytest.mark.parametrize(("version_of", "wrong"), [(lambda step: step, "step 2 reads version 2"), (lambda _: -1, "-1")])
def test_a_version_that_there_is_not_is_refused(version_of, wrong):
    SCHEDULE.check(STEPS)
    with pytest.raises(ReleaseError, match=f"{wrong}.* of 2"):
        replace(SCHEDULE, version_of=version_of).check(STEPS)
    document = Document(np.array([0, 1], dtype=np.int32), 1)
    with pytest.raises(ConfigError, match="different numbers of documents"):
        Unit(unit_tag(KEY, "user", 1), (document, document), ((document,),))


def _numbered(user, version):
    """Documents that say whose, which and of what version they are."""
    return tuple(Document(np.array([0, user, row, version], dtype=np.int32), 1) for row in range(1 + user % 5))


def test_coins_and_turns_do_not_depend_on_the_version():
    held = [Unit(unit_tag(KEY, "user", n), _numbered(n, 0), (_numbered(n, 1), _numbered(n, 2))) for n in range(200)]
    versions = (0, 2, 1, 1, 0, 2)
    found = PoissonSampler(KEY, "run", 0.4, held, 2, versions.__getitem__)
    plain = PoissonSampler(KEY, "run", 0.4, held, 2)
    for step, version in enumerate(versions):
        read, first = _ids(found.sample(step)), _ids(plain.sample(step))
        assert len(read) > 40
        assert read == [[[0, user, row, version] for _, user, row, _ in unit] for unit in first]


def _after(shards, backbone, reading, step):
    """Weights after one step, from shards to optimizer."""
    mechanism = changing((0.5,) * STEPS, sampling_rate=0.9)
    held = _units(shards, backbone, reading)
    sampler = PoissonSampler(KEY, "run", mechanism.sampling_rate, held, 2, reading.version_of)
    optimizer = OptimizerConfig(kind="sgd", learning_rate=1.0, schedule="constant")
    training = DpSgdConfig(steps=STEPS, max_tokens=50, optimizer=optimizer)
    model = trainable(backbone, AdapterConfig(kind="full"))
    noise = StepNoise(KeyedNoise(KEY, "run"), mechanism, 2.0)
    engine = make_engine(model, training, noise, EngineConfig(batch_tokens=64), row_losses)
    engine.step(step, physical_batches(sampler.sample(step), 64, backbone.end))
    return engine.state_dict()


@pytest.mark.usefixtures("one_thread")
def test_a_step_trains_on_the_version_that_it_reads(shards, tiny_backbone):
    hidden = replace(PLAIN, text=lambda row, _: _redacted(row, 0))
    for step, same, other in ((SHOWN - 1, hidden, PLAIN), (SHOWN, PLAIN, hidden)):
        found, same_, other_ = (_after(shards, tiny_backbone, reading, step) for reading in (SCHEDULE, same, other))
        assert all(torch.equal(found[name], same_[name]) for name in found)
        assert not all(torch.equal(found[name], other_[name]) for name in found)


def _document(draw, start):
    ids = draw.integers(0, 50_000, start + int(draw.integers(2, 30))).astype(np.int32)
    return Document(ids, start, redacted=bool(draw.integers(2)))


def _random_units(count, versions=1):
    draw, found = np.random.default_rng(7), []
    for user in range(count):
        many = int(draw.integers(1, 6))
        first, *later = [tuple(_document(draw, at % 3) for at in range(many)) for _ in range(versions)]
        found.append(Unit(unit_tag(KEY, "user", user), first, tuple(later), part=user % 3))
    return found


def _content(unit):
    versions = (unit.documents, *unit.later)
    said = [[(each.ids.tolist(), each.first_target, each.redacted) for each in version] for version in versions]
    return unit.tag, unit.part, said


@pytest.mark.parametrize("versions", [1, 3])
def test_units_come_back_from_disk_as_they_were(tmp_path, versions):
    held = _random_units(40, versions)
    kept = UnitFile(tmp_path / "private", iter(held))
    assert len(kept) == 40
    assert kept.tags == b"".join(unit.tag for unit in held)
    assert [_content(unit) for unit in kept] == [_content(unit) for unit in held]
    assert [_content(unit) for unit in kept[3:9:2]] == [_content(unit) for unit in held[3:9:2]]
    assert _content(kept[-1]) == _content(held[-1])
    with pytest.raises(IndexError):
        kept[40]
    assert kept[0].documents[0].ids.dtype == np.int32
    assert list((tmp_path / "private").iterdir()) == [], "no name is left to find the text by"
    assert (tmp_path / "private").stat().st_mode & 0o777 == 0o700
    nobody = UnitFile(tmp_path, [])
    assert len(nobody) == 0
    assert PoissonSampler(KEY, "run", 0.5, nobody, 1).sample(0) == []
    with pytest.raises(ReleaseError, match="same tag"):
        PoissonSampler(KEY, "run", 0.5, UnitFile(tmp_path, [*held, held[1]]), 1)


def test_steps_sample_from_disk_what_they_sample_from_memory(tmp_path, monkeypatch):
    held, read = _random_units(300), []
    on_disk, in_memory = (PoissonSampler(KEY, "run", 0.05, given, 2) for given in (UnitFile(tmp_path, held), held))
    real = units._unpacked
    monkeypatch.setattr(units, "_unpacked", lambda *given: read.append(1) or real(*given))
    for step in range(20):
        read.clear()
        sampled = on_disk.sample(step)
        assert len(read) == len(sampled) < 60, "only the sampled units are read"
        assert _ids(sampled) == _ids(in_memory.sample(step))


@pytest.mark.parametrize(("parts", "world"), [(16, 1), (16, 3), (16, 16), (16, 40), (3, 8), (1, 5)])
def test_ranks_share_all_units_each_once(parts, world):
    tags = [unit_tag(KEY, "user", user) for user in range(400)]
    of_rank = [shares_of_rank(parts, number, world) for number in range(world)]
    held = [(share.part, tag) for shares in of_rank for share in shares for tag in tags if share.holds(tag)]
    assert sorted(held) == sorted((part, tag) for part in range(parts) for tag in tags)
    assert all(of_rank), "every rank has something to read"
    if world <= parts:
        whole = [list(range(number, parts, world)) for number in range(world)]
        assert [[share.part for share in shares] for shares in of_rank] == whole


def test_the_next_step_is_made_while_one_runs_and_what_goes_wrong_is_raised_at_its_step():
    made, began = [], threading.Event()

    def make(step):
        made.append(step)
        if step == 6:
            began.set()
        if step == 8:
            raise ReleaseError("not this one.")
        return 10 * step

    steps = ahead(range(5, 9), make)
    assert next(steps) == (5, 50)
    assert began.wait(10), "step 6 is made although nobody has asked for it"
    assert [next(steps), next(steps)] == [(6, 60), (7, 70)]
    with pytest.raises(ReleaseError, match="not this one"):
        next(steps)
    assert made == [5, 6, 7, 8]
    assert list(ahead(range(0), make)) == []


MARKED = ["see <REDACTED> there, <REDACTED>", "<REDACTED>", "a < b <REDACTED>\nand <REDACTED> again and again", "5<RED"]


@pytest.mark.parametrize("text", MARKED)
def test_a_long_text_is_cut_in_front_of_a_mark_and_not_inside_it(tiny_backbone, text):
    row, mark = {"user": "ann", "text": text}, "<REDACTED>"
    most = len(tiny_backbone.ids(text))
    for tokens in range(1, most + 2):
        read = replace(PLAIN, max_tokens=tokens)
        (plain,), (whole,) = (documents_of([row], tiny_backbone, each) for each in (read, replace(read, whole=mark)))
        ids, shown = whole.ids[1:].tolist(), tiny_backbone.tokenizer.decode(whole.ids[1:])
        assert ids == plain.ids[1 : 1 + len(ids)].tolist()
        assert whole.first_target == plain.first_target
        if tokens >= most:
            assert ids == plain.ids[1:].tolist()
        elif not text.startswith(mark):
            left = text.removeprefix(shown)
            assert not any(shown.endswith(mark[:cut]) and left.startswith(mark[cut:]) for cut in range(1, len(mark)))
            assert len(plain.ids) - len(whole.ids) < len(mark)
        assert ids, "something is left"
